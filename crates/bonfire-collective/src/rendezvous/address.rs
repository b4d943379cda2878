//! What a rank publishes about itself for the others before they connect.

use std::net::SocketAddr;

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use super::ConnectError;
use crate::options::GroupOptions;
use crate::options::builds::Build;
use crate::options::place::HostId;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) host: HostId,
    pub(crate) unix: String,
    pub(crate) tcp: SocketAddr,
    /// Whether it can make memory that processes share, which filters of system calls may refuse.
    pub(crate) shares: bool,
}

impl Address {
    /// Where `self` is to be connected to from a rank that listens at `mine`. A link-local address holds on
    /// one link, for which each host has a number of its own.
    pub(super) fn seen_from(&self, mine: &Self) -> SocketAddr {
        match (self.tcp, mine.tcp) {
            (SocketAddr::V6(mut theirs), SocketAddr::V6(mine))
                if theirs.ip().is_unicast_link_local() =>
            {
                theirs.set_scope_id(mine.scope_id());
                theirs.into()
            }
            (theirs, _) => theirs,
        }
    }
}

/// The settings that all ranks of a group must share, as text: they are compared and printed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    version: String,
    transport: String,
    algorithm: String,
    overrides: String,
    order: String,
    chunk_bytes: String,
    streams_per_link: String,
    tls: String,
    checksums: String,
    call_sites: String,
    /// `None` if any build will do.
    build: Option<Build>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    pub(super) settings: Settings,
    pub(super) address: Address,
}

impl Settings {
    pub(crate) fn new(options: &GroupOptions) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            transport: name_of(options.transport),
            algorithm: name_of(options.algorithm),
            overrides: options.overrides.to_string(),
            order: format!("{:?}", options.order),
            chunk_bytes: options.chunk_bytes.to_string(),
            streams_per_link: options.streams_per_link.to_string(),
            tls: options.tls.to_string(),
            checksums: options.checksums.to_string(),
            call_sites: options.call_sites.to_string(),
            build: Build::to_compare(options.builds),
        }
    }

    /// These settings of another version of Bonfire.
    #[cfg(test)]
    pub(super) fn of_version(self, version: &str) -> Self {
        Self { version: version.to_owned(), ..self }
    }

    /// These settings of another build of the program.
    #[cfg(test)]
    pub(super) fn of_build(self, build: Build) -> Self {
        Self { build: Some(build), ..self }
    }

    /// Compares what must be the same on all ranks.
    pub(crate) fn agree(&self, me: Rank, peer: Rank, theirs: &Self) -> Result<(), ConnectError> {
        let settings = [
            ("version", &self.version, &theirs.version),
            ("transport", &self.transport, &theirs.transport),
            ("algorithm", &self.algorithm, &theirs.algorithm),
            ("BONFIRE_ALGORITHM", &self.overrides, &theirs.overrides),
            ("order", &self.order, &theirs.order),
            ("chunk_bytes", &self.chunk_bytes, &theirs.chunk_bytes),
            (
                "streams_per_link (BONFIRE_STREAMS)",
                &self.streams_per_link,
                &theirs.streams_per_link,
            ),
            ("tls (--tls or BONFIRE_TLS)", &self.tls, &theirs.tls),
            ("checksums (BONFIRE_CHECKSUMS)", &self.checksums, &theirs.checksums),
            ("call_sites (BONFIRE_CALL_SITES)", &self.call_sites, &theirs.call_sites),
        ];
        for (what, my_value, their_value) in settings {
            if my_value != their_value {
                return Err(ConnectError::Disagree {
                    mine: me,
                    what,
                    my_value: my_value.clone(),
                    theirs: peer,
                    their_value: their_value.clone(),
                });
            }
        }
        match Build::differ(self.build.as_ref(), theirs.build.as_ref()) {
            None => Ok(()),
            Some((my_program, their_program)) => {
                Err(ConnectError::Builds { mine: me, my_program, theirs: peer, their_program })
            }
        }
    }
}

fn name_of(choice: Option<impl ToString>) -> String {
    choice.map_or_else(|| "any".to_owned(), |choice| choice.to_string())
}

impl Card {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an address is plain data")
    }

    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Self, ConnectError> {
        serde_json::from_slice(bytes)
            .map_err(|error| ConnectError::Address { rank, reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_is_reached_through_the_own_interface() {
        let at = |tcp: &str| Address {
            host: HostId::of_this_process(None),
            unix: String::new(),
            tcp: tcp.parse().unwrap(),
            shares: true,
        };
        let mine = at("[fe80::1%2]:1");
        let seen = |theirs: &str| at(theirs).seen_from(&mine).to_string();
        assert_eq!(seen("[fe80::2%7]:9"), "[fe80::2%2]:9");
        assert_eq!(seen("[fd00::2]:9"), "[fd00::2]:9");
        assert_eq!(seen("10.0.0.2:9"), "10.0.0.2:9");
    }
}
