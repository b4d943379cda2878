//! The plan of memory against what two ranks take, which are processes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire::plan::Bytes;
use bonfire_testkit::{Job, JobEnd};

/// Small, but with states that are several times as large as a process without a model, and passes that take more than the
/// complete model, which `tp` gathers for the report and no plan counts.
const SIZES: &str =
    "--layers 4 --width 512 --heads 8 --context 32 --batch 16 --threads 1 --nproc 2 --device cpu";

fn gpt(more: &[&str]) -> JobEnd {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    let sizes: Vec<_> = SIZES.split_whitespace().collect();
    let sizes = sizes.chunks(2).filter(|size| !more.contains(&size[0]));
    Job::start(command.args(sizes.flatten()).args(more)).end()
}

/// The resident memory of a placement, the second amount from the right: of the rank of pp with the most.
fn planned(table: &JobEnd, placement: &str) -> u64 {
    let most = stages(table, placement).into_iter().max();
    most.unwrap_or_else(|| panic!("{:?} {:?}", table.stdout, table.stderr))
}

/// That of each rank of pp.
fn stages(table: &JobEnd, placement: &str) -> Vec<u64> {
    let lines = table.stdout.iter();
    let lines = lines.filter(|line| line.starts_with(placement));
    let resident = lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let mut amounts = words.windows(2).filter_map(|pair| pair.join(" ").parse::<Bytes>().ok());
        let last = amounts.rfind(|bytes| bytes.get() > 1 << 20);
        last.unwrap().get()
    });
    resident.collect()
}

/// A generous bound: how memory is reused depends on the allocator. `benches/memory.py` compares more exactly.
#[test]
fn two_ranks_take_about_what_was_planned() {
    for (mesh, placement) in [
        ("dp=2", "replicated"),
        ("dp=2", "zero2"),
        ("tp=2", "replicated"),
        ("cp=2", "replicated"),
        ("pp=2", "replicated"),
    ] {
        let table = gpt(&["--plan", "--mesh", mesh, "--micro-batches", "2"]);
        assert!(table.status.success(), "{:?}", table.stderr);
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().to_str().unwrap();
        let short = [
            "--micro-batches",
            "2",
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
        let peak = peaks.iter().map(|peak| peak.as_u64().unwrap()).max().unwrap();
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
fn a_part_of_the_model_takes_less_and_the_first_stage_more_than_the_last() {
    let whole = planned(&gpt(&["--plan"]), "replicated");
    let part = planned(&gpt(&["--plan", "--mesh", "tp=2"]), "replicated");
    assert!(part < whole, "{part} with tp=2, {whole} with dp=2");
    // With GPipe all micro-batches are alive on both, with 1F1B one on the last.
    let plan = |schedule| {
        let mesh = "--plan --mesh pp=2 --batch 64 --micro-batches 8 --schedule";
        let mesh: Vec<_> = mesh.split_whitespace().chain([schedule]).collect();
        let table = gpt(&mesh);
        assert!(
            !table.stdout.iter().any(|line| line.starts_with("zero3")),
            "stages cannot have it: {:?}",
            table.stdout
        );
        stages(&table, "replicated")
    };
    let (gpipe, one) = (plan("gpipe"), plan("1f1b"));
    assert_eq!((gpipe.len(), one.len()), (2, 2));
    assert!(one[1] < one[0], "{one:?}");
    assert!(one[0] < gpipe[0] && one[1] < gpipe[1], "{one:?} {gpipe:?}");
    let end = gpt(&["--plan", "--mesh", "pp=2", "--micro-batches", "2", "--schedule", "auto"]);
    assert!(!end.status.success(), "{:?}", end.stdout);
    let errors = end.stderr.join("\n");
    assert!(errors.contains("name one for --plan"), "{errors}");
}
