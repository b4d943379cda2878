//! A choice of connections, for what costs something on each.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The connections that something is done on: encrypted, see [`Tls`], or given checksums, see [`Checksums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Connections {
    Off,
    Hosts,
    /// All, on one host as well.
    All,
}

impl Connections {
    /// Whether connections to a store that serves at `ip` are among them. Both ends know the address.
    pub(crate) fn cover_store(self, ip: IpAddr) -> bool {
        match self {
            Self::Off => false,
            Self::Hosts => !ip.is_loopback(),
            Self::All => true,
        }
    }
}

bonfire_plan::named!(Connections as "choice of connections" { Off = "off", Hosts = "hosts", All = "all" });

/// Which connections are encrypted: none, for a network of the job's own; those between hosts, and those to the store
/// unless it serves on loopback; or every TCP connection. Connections within a host that do not use TCP (shared
/// memory, Unix-domain sockets) never leave its kernel and never are.
pub type Tls = Connections;

/// The links whose frames carry a CRC-32C of their header and one of their payload: none, those between
/// hosts, or all that go over sockets, on one host as well.
///
/// TCP's own checksum has 16 bits, and is computed again by whatever rewrites packets; memory of interfaces and
/// switches that turns bits over gets past it now and then. Without a checksum of its own such a frame is a wrong
/// sum, in silence, on all ranks or on some. With it the operation fails as `CollectiveError::Corrupted`. Connections
/// that TLS encrypts need none: it authenticates every record. The book has what it costs.
pub type Checksums = Connections;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_refused() {
        for choice in Connections::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "on".parse::<Connections>().unwrap_err().to_string();
        assert!(error.contains("off, hosts or all"), "{error}");
    }

    #[test]
    fn a_store_on_loopback_is_within_a_host() {
        let [near, far] = ["127.0.0.1", "10.0.0.1"].map(|ip| ip.parse().unwrap());
        assert!(!Connections::Off.cover_store(far) && !Connections::Hosts.cover_store(near));
        assert!(Connections::Hosts.cover_store(far) && Connections::All.cover_store(near));
    }
}
