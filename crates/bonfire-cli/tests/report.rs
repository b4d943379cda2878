//! `bonfire report`: one page of several folders.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs;
use std::process::Command;

#[test]
fn runs_are_side_by_side_on_one_page_and_a_folder_without_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (run, loss) in [("first", 2.5), ("second", 1.25)] {
        let run = folder.path().join(run);
        fs::create_dir(&run).unwrap();
        let line = format!("{{\"step\":10,\"unix_seconds\":1.0,\"loss\":{loss}}}\n");
        fs::write(run.join("log.jsonl"), line).unwrap();
    }
    let report = |folders: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
        command.current_dir(folder.path()).arg("report").args(folders);
        command.args(["--out", "both.html"]).output().unwrap()
    };
    let made = report(&["first", "second"]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(made.stdout, b"both.html\n");
    let page = fs::read_to_string(folder.path().join("both.html")).unwrap();
    for part in [
        "<title>first and second</title>",
        "first: training loss",
        "<td>2.5000 after step 10</td><td>1.2500 after step 10</td>",
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
    let refused = report(&["first", "third"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("there is no run in third"), "{error}");
    fs::create_dir(folder.path().join("third")).unwrap();
    fs::write(folder.path().join("third/report.json"), "{").unwrap();
    let error = String::from_utf8(report(&["third"]).stderr).unwrap();
    assert!(error.contains("is not a report of a training"), "{error}");
    assert_eq!(error.matches("EOF while parsing").count(), 1, "the cause is there once: {error}");
}
