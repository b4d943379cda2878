//! A test that starts itself once more, as a process of its own.

use std::env;
use std::process::Command;

/// The variable that names the task of such a process.
const TASK: &str = "BONFIRE_TEST_TASK";

/// What precedes a figure that such a process prints.
const FIGURE: &str = "the figure is ";

/// Returns what this process is to do, if a test started it.
pub fn task() -> Option<String> {
    env::var(TASK).ok()
}

/// Returns this program as a command that runs one test, with a task for it.
///
/// # Panics
/// If this program has no path.
pub fn again(test: &str, task: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command.args(["--exact", test, "--nocapture"]).env(TASK, task);
    command
}

/// Prints the figure of a task, for [`measured`].
pub fn print_figure(figure: u64) {
    println!("\n{FIGURE}{figure}");
}

/// Runs a test with a task, and returns the figure that it prints.
///
/// # Panics
/// If it fails, or prints none.
pub fn measured(test: &str, task: &str) -> u64 {
    let output = again(test, task).output().expect("this program starts");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let figure = printed.lines().find_map(|line| line.strip_prefix(FIGURE));
    figure.and_then(|figure| figure.parse().ok()).expect("the test prints a figure")
}
