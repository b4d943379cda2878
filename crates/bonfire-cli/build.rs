//! Tells the program which commit it is built from, where it is built in its repository.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let version = match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=BONFIRE_VERSION={version}");
}

/// The commit that is checked out, if this package lies in its own repository, and not in that of somebody who has
/// copied it. Asks Cargo to come again when another one is.
fn commit() -> Option<String> {
    // Asked for at run time: Cargo may run a script that it compiled in another copy of the repository.
    let package = env::var_os("CARGO_MANIFEST_DIR")?;
    let root = fs::canonicalize(Path::new(&package).join("../..")).ok()?;
    if Path::new(&git(&["rev-parse", "--show-toplevel"])?) != root {
        return None;
    }
    // The commit is behind a branch, which is behind HEAD; each has a file, unless branches are packed into one.
    // Cargo takes a file that is not there for one that has changed.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs", branch.as_deref().unwrap_or("HEAD")] {
        let file = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&file).exists() {
            println!("cargo::rerun-if-changed={file}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// What git says; nothing where it is not installed, or has nothing to say.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let said = said.trim();
    (output.status.success() && !said.is_empty()).then(|| said.to_owned())
}
