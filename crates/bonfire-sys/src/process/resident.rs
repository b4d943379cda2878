//! Memory of this process, as the operating system counts it.

use std::fs;
use std::io;

/// The pages that this process has in memory, those included that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    pub now_bytes: u64,
    /// At the most, since the process began or [`forget_peak`](Self::forget_peak) was called.
    pub peak_bytes: u64,
}

impl Resident {
    /// Of this process.
    ///
    /// # Errors
    /// On systems without Linux's `/proc`, of the kind [`Unsupported`](io::ErrorKind::Unsupported).
    pub fn of_this_process() -> io::Result<Self> {
        let unsupported = |cause: &str| {
            let text = format!("what a process has in memory is only known on Linux: {cause}");
            io::Error::new(io::ErrorKind::Unsupported, text)
        };
        let status = fs::read_to_string("/proc/self/status");
        let status = status.map_err(|error| unsupported(&error.to_string()))?;
        let found = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kib.map(|kib| 1024 * kib).ok_or_else(|| unsupported("the system does not say it"))
        };
        Ok(Self { now_bytes: found("VmRSS:")?, peak_bytes: found("VmHWM:")? })
    }

    /// Begins to look for the peak again, from what there is now.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn forget_peak() -> io::Result<()> {
        // The number is that of Linux for it: proc(5), /proc/pid/clear_refs.
        fs::write("/proc/self/clear_refs", "5")
    }
}
