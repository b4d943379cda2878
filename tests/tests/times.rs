//! `.ci/times` gives a fresh clone its old times, and never makes Cargo take changed content for built: a file has an
//! old time only if nothing was built from other content since.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.ci/times");

/// A repository with two files, and the folder in which its runs build.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    /// A clone whose files are all new, with this content of one of them.
    fn clone(&self, name: &str, content: &str) -> PathBuf {
        let tree = self.0.path().join(name);
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir_all(tree.join(".ci")).expect("a folder");
        fs::copy(SCRIPT, tree.join(".ci/times")).expect("the script is there");
        fs::write(tree.join("changing.rs"), content).expect("a file");
        fs::write(tree.join("same.rs"), "same").expect("a file");
        fs::write(tree.join("bound.rs"), "env!(\"CARGO_MANIFEST_DIR\")").expect("a file");
        sh(&tree, "git init -q && git add .");
        tree
    }

    fn times(&self, tree: &Path, verb: &str) {
        let target = self.0.path().join("target");
        sh(tree, &format!("bash .ci/times {verb} '{}'", target.display()));
    }

    /// What a build leaves, now.
    fn build(&self) -> SystemTime {
        let folder = self.0.path().join("target-other/debug/.fingerprint/crate-1");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("dep-lib-crate"), "").expect("a file");
        let built = time(&folder.join("dep-lib-crate"));
        // Files have the time of the kernel's last tick: what comes next is to be newer.
        let probe = self.0.path().join("probe");
        loop {
            fs::write(&probe, "").expect("a file");
            if time(&probe) > built {
                return built;
            }
        }
    }
}

fn sh(folder: &Path, script: &str) {
    let output =
        Command::new("bash").args(["-c", script]).current_dir(folder).output().expect("bash runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
}

fn time(file: &Path) -> SystemTime {
    let metadata = fs::metadata(file).expect("a file");
    metadata.modified().expect("a time")
}

fn set_time(file: &Path, time: SystemTime) {
    let file = File::options().write(true).open(file).expect("a file");
    file.set_modified(time).expect("a time is set");
}

/// A run that builds everything and ends.
fn whole_run(scratch: &Scratch, tree: &Path) -> SystemTime {
    scratch.times(tree, "restore");
    let built = scratch.build();
    scratch.times(tree, "keep");
    built
}

#[test]
fn a_fresh_clone_has_the_times_of_what_was_built_and_changes_are_newer() {
    let scratch = Scratch::new();
    let built = whole_run(&scratch, &scratch.clone("tree", "one"));
    let tree = scratch.clone("tree", "two");
    // Written before that build, as by a clone that waited.
    set_time(&tree.join("changing.rs"), built - Duration::from_secs(1));
    scratch.times(&tree, "restore");
    assert!(time(&tree.join("same.rs")) <= built);
    assert!(time(&tree.join("bound.rs")) <= built);
    assert!(time(&tree.join("changing.rs")) > built);
    // The first content again, which the run that failed may not have built.
    scratch.times(&tree, "keep");
    let tree = scratch.clone("tree", "one");
    scratch.times(&tree, "restore");
    assert!(time(&tree.join("changing.rs")) > built);
}

#[test]
fn a_clone_elsewhere_builds_what_knows_its_folder() {
    let scratch = Scratch::new();
    let built = whole_run(&scratch, &scratch.clone("tree", "one"));
    let elsewhere = scratch.clone("elsewhere", "one");
    scratch.times(&elsewhere, "restore");
    assert!(time(&elsewhere.join("same.rs")) <= built);
    assert!(time(&elsewhere.join("bound.rs")) > built);
}

#[test]
fn a_run_without_an_end_and_a_build_by_somebody_else_leave_times_alone() {
    let scratch = Scratch::new();
    let tree = scratch.clone("tree", "one");
    scratch.times(&tree, "restore");
    let built = scratch.build();
    let tree = scratch.clone("tree", "one");
    scratch.times(&tree, "restore");
    assert!(time(&tree.join("same.rs")) > built, "the run was killed");
    scratch.times(&tree, "keep");
    let built = scratch.build();
    let tree = scratch.clone("tree", "one");
    scratch.times(&tree, "restore");
    assert!(time(&tree.join("same.rs")) > built, "another build came");
}

/// A tree in which one works, between two runs: what is built stays built.
#[test]
fn a_build_by_somebody_else_does_not_make_everything_new() {
    let scratch = Scratch::new();
    let tree = scratch.clone("tree", "one");
    whole_run(&scratch, &tree);
    let before = time(&tree.join("same.rs"));
    scratch.build();
    scratch.times(&tree, "restore");
    assert_eq!(time(&tree.join("same.rs")), before);
}

#[test]
fn a_file_that_changes_during_a_run_is_built_again() {
    let scratch = Scratch::new();
    let tree = scratch.clone("tree", "one");
    scratch.times(&tree, "restore");
    fs::write(tree.join("changing.rs"), "while it built").expect("a file");
    let built = scratch.build();
    fs::write(tree.join("changing.rs"), "one").expect("a file");
    scratch.times(&tree, "keep");
    let tree = scratch.clone("tree", "one");
    scratch.times(&tree, "restore");
    assert!(time(&tree.join("same.rs")) <= built);
    assert!(time(&tree.join("changing.rs")) > built);
}
