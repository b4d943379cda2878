//! Which machine this is.

use std::num::NonZero;

/// Threads that can run at one time.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Text that is the same for the processes of one host and one network namespace, and no others.
pub(crate) fn identity() -> String {
    let read = |path| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let namespace = std::fs::read_link("/proc/self/ns/net")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let boot = read("/proc/sys/kernel/random/boot_id");
    format!("{name} {boot} {namespace}")
}
