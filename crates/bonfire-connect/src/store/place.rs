//! Where the store is: on the host of rank 0, by its name or address.
//!
//! A name may be known later than the job starts: that of a Kubernetes pod is when the pod is ready and the name
//! servers know it. So a name is looked up again and again, and only what cannot be a name is refused at once.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::{LongWait, StoreError};
use crate::platform::{clock, thread};

/// Pause before a name is looked up again: each rank asks, and one server answers all of them.
pub(super) const LOOKUP_PAUSE: Duration = Duration::from_millis(500);
/// Longest name of a host (RFC 1035).
const NAME_BYTES_MAX: usize = 253;
/// Longest part of it between two dots.
const LABEL_BYTES_MAX: usize = 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// All are on the host that serves.
    OneHost,
    /// Some are on other hosts.
    Hosts,
}

/// The addresses of a host, looked up once.
pub(super) fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let unresolved = |source: io::Error| {
        let text = format!("the name does not resolve: {source}");
        io::Error::new(io::ErrorKind::NotFound, text)
    };
    let addresses: Vec<_> = (host, port).to_socket_addrs().map_err(unresolved)?.collect();
    if addresses.is_empty() {
        Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
    } else {
        Ok(addresses)
    }
}

/// The addresses of a host, looked up until `timeout`.
pub(super) fn await_addresses(
    host: &str,
    port: u16,
    timeout: Duration,
) -> Result<Vec<SocketAddr>, StoreError> {
    check_name(host)?;
    let started = clock::now();
    let mut wait = LongWait::begin();
    loop {
        let source = match look_up(host, port) {
            Ok(addresses) => return Ok(addresses),
            Err(source) => source,
        };
        let waited = clock::since(started);
        if waited >= timeout {
            let host = host.to_owned();
            return Err(StoreError::Unresolved { host, waited, source });
        }
        wait.log(|| format!("an address of {host}, the host of rank 0 ({source})"));
        thread::sleep(LOOKUP_PAUSE);
    }
}

/// An error if no host can have this name, now or later.
pub(super) fn check_name(host: &str) -> Result<(), StoreError> {
    if is_name(host) || is_address(host) {
        Ok(())
    } else {
        Err(StoreError::NotAName { host: host.to_owned() })
    }
}

/// Whether the host is named by its number, which may be followed by an interface: `fe80::1%eth0`.
pub(super) fn is_address(host: &str) -> bool {
    let address = host.split('%').next().unwrap_or(host);
    host.parse::<IpAddr>().is_ok() || address.parse::<Ipv6Addr>().is_ok()
}

fn is_name(host: &str) -> bool {
    let is_proper = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || byte >= 128;
    let is_label =
        |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(is_proper);
    // A dot at the end keeps search domains away.
    let labels = host.strip_suffix('.').unwrap_or(host);
    labels.len() <= NAME_BYTES_MAX && labels.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_never_be_a_host_is_refused_at_once() {
        let long = "a".repeat(64);
        for host in ["", "gpu[01-03]", "host 0", "a..b", "host:29500", &long] {
            let error = check_name(host).unwrap_err();
            assert!(matches!(error, StoreError::NotAName { .. }), "{error}");
        }
        for host in
            ["train-0.train", "no-such.invalid", "node_1.", "10.0.0.1", "::1", "fe80::1%eth0"]
        {
            check_name(host).unwrap();
        }
    }

    #[test]
    fn a_name_that_does_not_resolve_is_waited_for_and_the_reason_kept() {
        let host = "no-such-host.invalid";
        let timeout = Duration::from_millis(600);
        let error = await_addresses(host, 1, timeout).unwrap_err();
        let StoreError::Unresolved { waited, source, .. } = &error else {
            panic!("{error}");
        };
        assert!(*waited >= timeout, "given up after {waited:?}");
        assert!(source.to_string().contains("does not resolve"), "{source}");
    }
}
