//! What this machine is, as far as a figure measured on it depends on it.

use std::fs;
use std::thread;

use serde::Serialize;

use crate::doctor::field;

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
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let value = |path, name| {
            field(&read(path), name).unwrap_or_default().trim_start_matches([':', ' ']).to_owned()
        };
        let kib = value("/proc/meminfo", "MemTotal");
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            cpu: value("/proc/cpuinfo", "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: kib.trim_end_matches(" kB").parse().map_or(0, |kib: u64| kib * 1024),
        }
    }
}
