//! What those for whom a file is meant find in it: other programs, in Python, and people who type what pages show.

mod documents;

use std::path::Path;
use std::process::Command;

pub use documents::{CommandLine, assert_understood, command_lines};

/// Names a Python that has TensorBoard, safetensors and NumPy.
const PYTHON: &str = "BONFIRE_TEST_PYTHON";

/// Reads a folder with TensorBoard's own reader and prints what it found.
const TENSORBOARD: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()['scalars']):
    for event in events.Scalars(tag):
        print(tag, event.step, event.value)
";

/// Reads a safetensors file with its own reader and prints names, shapes and values.
const SAFETENSORS: &str = "
import sys
from safetensors.numpy import load_file
for name, array in sorted(load_file(sys.argv[1]).items()):
    print(name, list(array.shape), *(value.hex() for value in array.flatten().tolist()), sep=';')
";

/// A point of a curve: its tag, its step and its value.
pub type Scalar = (String, u64, f64);

/// All points, by tag and then in their order; nothing, and a word why, where
/// `BONFIRE_TEST_PYTHON` names no Python.
///
/// # Panics
/// If TensorBoard cannot read the folder.
#[track_caller]
pub fn read_by_tensorboard(folder: &Path) -> Option<Vec<Scalar>> {
    let text = printed(TENSORBOARD, folder)?;
    let scalar = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [tag, step, value] = words[..] else {
            panic!("not a tag, a step and a value: {line:?}")
        };
        let number = "TensorBoard prints numbers";
        let step = step.parse().expect(number);
        (tag.to_owned(), step, value.parse().expect(number))
    };
    Some(text.lines().map(scalar).collect())
}

/// The float tensors of a safetensors file in the order of their names, each as a line: its name, its shape such as
/// `[2, 3]`, and its values in hexadecimal as Python prints them, with semicolons between. Nothing, and a word why,
/// where `BONFIRE_TEST_PYTHON` names no Python.
///
/// # Panics
/// If safetensors cannot read the file.
#[track_caller]
pub fn read_by_safetensors(file: &Path) -> Option<Vec<String>> {
    let text = printed(SAFETENSORS, file)?;
    Some(text.lines().map(str::to_owned).collect())
}

#[track_caller]
fn printed(program: &str, path: &Path) -> Option<String> {
    let Some(python) = std::env::var_os(PYTHON) else {
        println!("skipped: {PYTHON} names no Python");
        return None;
    };
    let mut command = Command::new(python);
    let output = command.arg("-c").arg(program).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("{PYTHON} cannot be started: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
