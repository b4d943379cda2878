//! `bonfire --version`, `bonfire completions`, and the output of every command.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::{Command, Stdio};

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| text.trim().to_owned())
}

fn bonfire(arguments: &[&str]) -> String {
    said(env!("CARGO_BIN_EXE_bonfire"), arguments).expect("it succeeds")
}

#[test]
fn the_version_has_the_commit_where_there_is_a_repository() {
    let version = env!("CARGO_PKG_VERSION");
    let commit = said("git", &["rev-parse", "--short=12", "HEAD"]);
    let expected = match commit {
        Some(commit) => format!("bonfire {version} ({commit})"),
        None => format!("bonfire {version}"),
    };
    assert_eq!(bonfire(&["--version"]), expected);
}

#[test]
fn completions_know_commands_and_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = bonfire(&["completions", shell]);
        for word in ["simulate", "max-restarts", "scaling", "completions"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    // bash itself reads it.
    let script = bonfire(&["completions", "bash"]);
    if let Some(found) = said("bash", &["-c", &format!("{script}\ncomplete -p bonfire")]) {
        assert!(found.contains("_bonfire"), "{found}");
    }
}

/// A panic would have the code 101.
#[test]
fn a_closed_pipe_is_quiet_and_a_full_disk_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [run, page, file, model] = ["run", "page.html", "train.toml", "a.safetensors"].map(inside);
    std::fs::create_dir(&run).unwrap();
    let log = "{\"step\":1,\"unix_seconds\":1.0,\"loss\":2.0}\n";
    std::fs::write(inside("run/log.jsonl"), log).unwrap();
    std::fs::write(&file, "steps = 1\n").unwrap();
    let tensor = r#"{"a":{"dtype":"F32","shape":[4]}}"#;
    let begin = (tensor.len() as u64).to_le_bytes();
    std::fs::write(&model, [&begin[..], tensor.as_bytes()].concat()).unwrap();
    let pipeline = "simulate pipeline --stages 2 --micro-batches 2 --schedule 1f1b";
    for line in [
        "completions bash",
        "doctor",
        "simulate --ranks 2 --link shm --bytes 1K",
        pipeline,
        &format!("config check {file}"),
        &format!("plan {model}"),
        &format!("report {run} --out {page}"),
    ] {
        let ends = |output: Stdio| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_bonfire"));
            let end = command.args(line.split(' ')).stdout(output).output().unwrap();
            (end.status.code(), String::from_utf8(end.stderr).unwrap())
        };
        let (reader, closed) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(ends(closed.into()), (Some(0), String::new()), "{line}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let (code, said) = ends(full.into());
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{line}: {said}");
        assert!(said.starts_with("error: cannot write to the standard output"), "{said}");
    }
}
