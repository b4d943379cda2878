//! What a rank publishes about itself.

use std::net::SocketAddr;

use bonfire_plan::{Algorithm, Rank};
use serde::{Deserialize, Serialize};

use super::ConnectError;
use crate::options::GroupOptions;
use crate::transport::{HostId, TransportKind};

/// Where a rank listens, and the settings that all ranks must share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub(super) version: String,
    pub(super) host: HostId,
    /// Name of the abstract Unix-domain socket.
    pub(super) unix: String,
    pub(super) tcp: SocketAddr,
    pub(super) transport: Option<TransportKind>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) chunk_bytes: usize,
}

impl Address {
    pub(super) fn new(
        host: HostId,
        unix: String,
        tcp: SocketAddr,
        options: &GroupOptions,
        chunk_bytes: usize,
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host,
            unix,
            tcp,
            transport: options.transport,
            algorithm: options.algorithm,
            chunk_bytes,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an address is plain data")
    }

    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Self, ConnectError> {
        serde_json::from_slice(bytes).map_err(|error| ConnectError::Address {
            rank,
            reason: error.to_string(),
        })
    }

    /// Compares what must be the same on all ranks.
    pub(super) fn agree(&self, me: Rank, peer: Rank, theirs: &Self) -> Result<(), ConnectError> {
        let settings = [
            ("version", self.version.clone(), theirs.version.clone()),
            (
                "transport",
                format!("{:?}", self.transport),
                format!("{:?}", theirs.transport),
            ),
            (
                "algorithm",
                format!("{:?}", self.algorithm),
                format!("{:?}", theirs.algorithm),
            ),
            (
                "chunk_bytes",
                self.chunk_bytes.to_string(),
                theirs.chunk_bytes.to_string(),
            ),
        ];
        for (what, my_value, their_value) in settings {
            if my_value != their_value {
                return Err(ConnectError::Disagree {
                    mine: me,
                    what,
                    my_value,
                    theirs: peer,
                    their_value,
                });
            }
        }
        Ok(())
    }
}
