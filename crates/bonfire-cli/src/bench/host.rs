//! What this machine is, as far as a figure measured on it depends on it.

use std::fs;
use std::thread;

use serde::Serialize;

/// A machine, in every row of a report so that rows of several machines can be kept together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Host {
    cores: usize,
    cpu: String,
    kernel: String,
    memory_bytes: u64,
}

impl Host {
    /// Describes this machine. What the system does not report is empty or 0.
    pub(crate) fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let kib: u64 = field(&read("/proc/meminfo"), "MemTotal")
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0);
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: kib * 1024,
        }
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> String {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nMemTotal:       12 kB\n";
        assert_eq!(field(text, "model name"), "A CPU @ 2 GHz");
        assert_eq!(field(text, "MemTotal"), "12 kB");
        assert_eq!(field(text, "model"), "");
    }
}
