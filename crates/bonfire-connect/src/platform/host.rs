//! Which machine this is, and what it has for ranks.

use std::num::NonZero;

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// How many connections and files this process can still open, with its limit raised as far as allowed.
pub fn open_files_left() -> u64 {
    bonfire_sys::process::open_files_left()
}

/// The letter that Linux has for the state of a process of this host: `T` for a stopped one, `t` for one
/// that a debugger holds.
pub fn process_state(id: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The state follows the name, which is in parentheses and may contain anything.
    stat.rsplit(')').next()?.trim_start().chars().next()
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
