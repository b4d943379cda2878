//! How many files this process may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than the ranks of the largest job need. Some programs close all descriptors that they might
/// have, one by one, so a child should not get a limit of a thousand million.
const WANTED: u64 = 1 << 17;

/// Raises the limit as far as the administrator allows; what it is then.
///
/// Systems have a low limit for programs that use select(2), which Bonfire does not, and a higher one
/// that each process may ask for.
pub fn raise_open_files() -> u64 {
    let limits = getrlimit(Resource::Nofile);
    let current = limits.current.unwrap_or(u64::MAX);
    let wanted = limits.maximum.unwrap_or(u64::MAX).min(WANTED);
    let raised = Rlimit { current: Some(wanted), ..limits };
    if current < wanted && setrlimit(Resource::Nofile, raised).is_ok() { wanted } else { current }
}

/// How many files this process can still open, after [`raise_open_files`].
pub fn open_files_left() -> u64 {
    let limit = raise_open_files();
    // Where the system does not list them, none are open.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    limit.saturating_sub(open as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_as_far_as_allowed() {
        let before = getrlimit(Resource::Nofile);
        let low = Rlimit { current: Some(256), ..before };
        setrlimit(Resource::Nofile, low).unwrap();
        let raised = raise_open_files();
        assert_eq!(raised, before.maximum.unwrap_or(u64::MAX).min(WANTED));
        assert_eq!(getrlimit(Resource::Nofile).current, Some(raised));
        let left = open_files_left();
        assert!((1..raised).contains(&left), "{left} of {raised}");
    }
}
