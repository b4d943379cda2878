//! `bonfire --version` and `bonfire completions`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

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
