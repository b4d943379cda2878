//! What is asked of the driver, for tests that count: a line for each call, in a file.
//!
//! A line is the name of the function, what it is about where that is known, and `by` with the name
//! of the thread that called: `cuLaunchKernel pack_u32 by rank 0`. A test that needs to know where
//! something began appends a line as well. Calls that ask for constants, such as a device's name,
//! are not recorded.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

use crate::settings::Settings;

pub(crate) fn tell(function: &str) {
    tell_of(function, "");
}

pub(crate) fn tell_of(function: &str, what: &str) {
    let Some(mut file) = file() else {
        return;
    };
    let gap = if what.is_empty() { "" } else { " " };
    let line = format!("{function}{gap}{what} by {}\n", thread());
    // One write, which the system appends as a whole.
    let written = file.write_all(line.as_bytes());
    written.expect("the file that CUDA_STAND_IN_CALLS names can be written to");
}

fn file() -> Option<&'static File> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let open = || {
        let path = Settings::get().calls.as_ref()?;
        let opened = OpenOptions::new().create(true).append(true).open(path);
        Some(opened.expect("CUDA_STAND_IN_CALLS names a file"))
    };
    FILE.get_or_init(open).as_ref()
}

/// The name that the system has for this thread, since this library and the program do not share one standard
/// library.
fn thread() -> String {
    let name = fs::read_to_string("/proc/thread-self/comm");
    name.map_or_else(|_| "a thread".to_owned(), |name| name.trim_end().to_owned())
}
