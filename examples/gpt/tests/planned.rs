//! The plan of memory against what two ranks take, which are processes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire::plan::Bytes;
use bonfire_testkit::{Job, JobEnd};

/// Small, but with states that are several times as large as a process without a model.
const SIZES: &str =
    "--layers 4 --width 512 --heads 8 --context 32 --batch 2 --threads 1 --nproc 2 --device cpu";

fn gpt(more: &[&str]) -> JobEnd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    Job::start(command.args(SIZES.split_whitespace()).args(more)).end()
}

/// The resident memory of a placement: the second amount from the right.
fn planned(table: &JobEnd, placement: &str) -> u64 {
    let line = table.stdout.iter().find(|line| line.starts_with(placement));
    let line = line.unwrap_or_else(|| panic!("{:?} {:?}", table.stdout, table.stderr));
    let words: Vec<_> = line.split_whitespace().collect();
    let mut amounts = words
        .windows(2)
        .filter_map(|pair| pair.join(" ").parse::<Bytes>().ok());
    let last = amounts.rfind(|bytes| bytes.get() > 1 << 20);
    last.unwrap().get()
}

/// A generous bound: how memory is reused depends on the allocator. `benches/memory.py` compares more exactly.
#[test]
fn two_ranks_take_about_what_was_planned() {
    for (mesh, placement) in [
        ("dp=2", "replicated"),
        ("dp=2", "zero2"),
        ("tp=2", "replicated"),
        ("cp=2", "replicated"),
    ] {
        let table = gpt(&["--plan", "--mesh", mesh]);
        assert!(table.status.success(), "{:?}", table.stderr);
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().to_str().unwrap();
        let short = [
            "--steps",
            "3",
            "--eval-windows",
            "2",
            "--sample",
            "0",
            "--report-dir",
            report,
        ];
        let end = gpt(&[&["--mesh", mesh, "--placement", placement][..], &short].concat());
        assert!(end.status.success(), "{:?}", end.stderr);
        let text = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let peaks = report["memory"]["peak_bytes"].as_array().unwrap();
        assert_eq!(peaks.len(), 2);
        let peak = peaks
            .iter()
            .map(|peak| peak.as_u64().unwrap())
            .max()
            .unwrap();
        let planned = planned(&table, placement);
        let ratio = planned as f64 / peak as f64;
        println!("{mesh}, {placement}: planned {planned}, measured {peak}");
        assert!(
            (0.7..1.4).contains(&ratio),
            "{mesh}, {placement}: planned {planned}, measured {peak}"
        );
    }
}

#[test]
fn a_rank_with_all_layers_is_planned_and_a_stage_is_not() {
    let whole = planned(&gpt(&["--plan"]), "replicated");
    let part = planned(&gpt(&["--plan", "--mesh", "tp=2"]), "replicated");
    assert!(part < whole, "{part} with tp=2, {whole} with dp=2");
    let end = gpt(&["--plan", "--mesh", "pp=2"]);
    assert!(!end.status.success(), "{:?}", end.stdout);
    let errors = end.stderr.join("\n");
    assert!(errors.contains("plan without pp"), "{errors}");
}
