//! Encryption of connections between hosts, without certificates that anybody would have to manage.
//!
//! TLS 1.3 with a key pair that each process makes for itself and sends as it is (RFC 7250). Nobody
//! vouches for the key: whoever is at the other end is known by the challenge with the job's token,
//! which covers a value that only the two ends of this TLS connection have (RFC 9266). Somebody in
//! between who speaks TLS to either side has another value with each, and without the token no proof
//! that holds.

mod identity;
mod session;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub(crate) use identity::Identity;
pub(crate) use session::{BINDING_BYTES, TlsStream};

/// Which connections are encrypted. Connections within a host that are no TCP (shared memory,
/// Unix-domain sockets) never leave its kernel and never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tls {
    /// None: for a network of the job's own.
    #[default]
    Off,
    /// Those between hosts, and those to the store unless it serves on loopback.
    Hosts,
    /// Every TCP connection.
    All,
}

impl Tls {
    const ALL: [Self; 3] = [Self::Off, Self::Hosts, Self::All];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Hosts => "hosts",
            Self::All => "all",
        }
    }

    /// Whether connections to a store that serves at `ip` are encrypted. Both ends know the address.
    pub(crate) fn covers_store(self, ip: IpAddr) -> bool {
        match self {
            Self::Off => false,
            Self::Hosts => !ip.is_loopback(),
            Self::All => true,
        }
    }
}

impl fmt::Display for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text does not say which connections to encrypt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown choice of TLS {0:?}: choose off, hosts or all")]
pub struct UnknownTls(String);

impl FromStr for Tls {
    type Err = UnknownTls;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|tls| tls.name() == text)
            .ok_or_else(|| UnknownTls(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_refused() {
        for tls in Tls::ALL {
            assert_eq!(tls.to_string().parse(), Ok(tls));
        }
        let error = "on".parse::<Tls>().unwrap_err().to_string();
        assert!(error.contains("off, hosts or all"), "{error}");
    }

    #[test]
    fn a_store_on_loopback_is_within_a_host() {
        let [near, far] = ["127.0.0.1", "10.0.0.1"].map(|ip| ip.parse().unwrap());
        assert!(!Tls::Off.covers_store(far) && !Tls::Hosts.covers_store(near));
        assert!(Tls::Hosts.covers_store(far) && Tls::All.covers_store(near));
    }
}
