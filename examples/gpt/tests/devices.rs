//! The program on a machine without the devices that it is asked for.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use bonfire_testkit::Job;

/// One line, before any rank is started, of what is missing.
#[test]
fn without_cuda_one_line_says_what_is_missing() {
    for flags in ["--nproc 1", "--nproc 1000", "--nproc 2 --oversubscribe"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
        command.args(flags.split(' '));
        command.args(["--device", "cuda", "--steps", "1", "--report-dir"]);
        command.arg(folder.path());
        let end = Job::start(&mut command).end();
        if end.status.success() {
            println!("skipped {flags}: this machine has CUDA devices");
            continue;
        }
        let [line] = &end.stderr[..] else {
            panic!("{flags}: {:?}", end.stderr);
        };
        assert!(line.starts_with("error: "), "{line}");
        assert!(line.to_lowercase().contains("cuda"), "{line}");
        assert_eq!(end.stdout, [""; 0], "{flags}");
    }
}
