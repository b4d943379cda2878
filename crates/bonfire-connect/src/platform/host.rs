//! Which machine this is, and what it has for ranks.

use std::num::NonZero;

use bonfire_sys::process::ProcessStat;
pub use bonfire_sys::process::open_files_left;

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The letter of a process's state: `T` for a stopped one, `t` for one that a debugger holds.
pub fn process_state(id: u32) -> Option<char> {
    ProcessStat::read(id).map(|stat| stat.state)
}

/// Text that is the same for the processes of one host and one network namespace, and no others.
pub fn identity() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let namespace = std::fs::read_link("/proc/self/ns/net")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let boot = read("/proc/sys/kernel/random/boot_id");
    format!("{name} {boot} {namespace}")
}
