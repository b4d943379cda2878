//! The program on two ranks and on one, stopped by Ctrl-C: all stop before the same step, and the report is written.
//! And on one rank whose output nobody can write.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_testkit::{Job, JobEnd, Signal, signal_process};

/// The end of a training of some ranks that a signal stopped, after a check of its report.
fn stopped(ranks: u32, signal: Signal) -> JobEnd {
    stopped_by(ranks, |job| job.signal(signal))
}

fn stopped_by(ranks: u32, ask: impl FnOnce(&Job)) -> JobEnd {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    command.args(["--nproc", &ranks.to_string(), "--device", "cpu", "--report-dir"]);
    command.arg(folder.path());
    let sizes = "--layers 1 --heads 2 --width 16 --context 8 --batch 2 --steps 1000000 \
                 --log-interval 1 --eval-interval 1000000 --eval-windows 2 --sample 0";
    command.args(sizes.split_whitespace());
    command.env("BONFIRE_LOG", "warn");
    let job = Job::start(&mut command);
    // Two lines of figures: it trains.
    let mut trained = 0;
    while trained < 2 {
        trained += usize::from(job.next_line().contains("/1000000"));
    }
    ask(&job);
    let end = job.end();
    let (output, errors) = (end.stdout.join("\n"), end.stderr.join("\n"));
    let stop =
        output.split("stopped after step ").nth(1).unwrap_or_else(|| panic!("{output} {errors}"));
    let steps: usize = stop.split(';').next().unwrap().parse().unwrap();
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["steps"], steps, "{report}");
    assert_eq!(report["world_size"], ranks);
    assert!(folder.path().join("report.html").exists());
    end
}

#[test]
fn ctrl_c_ends_a_training_with_its_report() {
    let errors = stopped(2, Signal::INT).with_code(130).stderr.join("\n");
    assert!(errors.contains("interrupted by SIGINT"), "{errors}");
}

#[test]
fn a_signal_to_one_rank_ends_the_job_with_its_code_and_names_the_rank() {
    for (signal, code, rank) in [(Signal::INT, 130, 1), (Signal::TERM, 143, 0)] {
        let end = stopped_by(2, |job| signal_process(job.process_of_rank(rank), signal));
        let errors = end.with_code(code).stderr.join("\n");
        assert!(errors.contains(&format!("root cause: rank {rank} (process ")), "{errors}");
    }
}

#[test]
fn a_rank_alone_does_not_end_as_trained_after_a_signal() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        assert_eq!(stopped(1, signal).with_code(code).stderr, [""; 0]);
    }
}

#[test]
fn a_full_disk_under_the_output_does_not_end_a_training() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
    command.args(["--device", "cpu", "--report-dir"]).arg(folder.path());
    let sizes = "--layers 1 --heads 2 --width 16 --context 8 --batch 2 --steps 6 --log-interval 1 --eval-interval 2 \
                 --eval-windows 2 --sample 4";
    command.args(sizes.split_whitespace());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let end = command.stdout(full).output().unwrap();
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["steps"], 6, "{report}");
}
