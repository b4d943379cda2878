//! What the real TensorBoard finds in a folder of event files.

use std::path::Path;
use std::process::Command;

/// Names a Python that has TensorBoard.
const PYTHON: &str = "BONFIRE_TEST_TENSORBOARD";

/// Reads a folder with TensorBoard's own reader and prints what it found.
const READER: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()['scalars']):
    for event in events.Scalars(tag):
        print(tag, event.step, event.value)
";

/// A point of a curve: its tag, its step and its value.
pub type Scalar = (String, u64, f64);

/// All points, by tag and then in their order; nothing, and a word why, where
/// `BONFIRE_TEST_TENSORBOARD` names no Python that has TensorBoard.
///
/// # Panics
/// If TensorBoard cannot read the folder.
#[track_caller]
pub fn read_by_tensorboard(folder: &Path) -> Option<Vec<Scalar>> {
    let Some(python) = std::env::var_os(PYTHON) else {
        println!("skipped: {PYTHON} names no Python with TensorBoard");
        return None;
    };
    let mut command = Command::new(python);
    let output = command.arg("-c").arg(READER).arg(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{PYTHON} cannot be started: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.lines().map(scalar).collect())
}

fn scalar(line: &str) -> Scalar {
    let words: Vec<&str> = line.split(' ').collect();
    let [tag, step, value] = words[..] else {
        panic!("not a tag, a step and a value: {line:?}")
    };
    let number = "TensorBoard prints numbers";
    let step = step.parse().expect(number);
    (tag.to_owned(), step, value.parse().expect(number))
}
