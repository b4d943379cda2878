//! Whether all ranks reach each other's device memory, and what is done if not.
//!
//! A collective through the memory of peers needs every pair, in both directions. So one pair that
//! fails sends the data of the whole group through host memory: slower, but right. All ranks decide
//! alike, since they decide from what each of them reported to all.

use std::fmt;

use bonfire_collective::ProcessGroup;
use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use crate::error::{CudaGroupError, Result};
use crate::options::CudaPath;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) by: u32,
    pub(crate) of: u32,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(by: Rank, of: Rank, reason: impl fmt::Display) -> Self {
        Self { by: by.get(), of: of.get(), reason: reason.to_string() }
    }

    pub(crate) fn by(&self) -> Rank {
        Rank::new(self.by)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, of, reason } = self;
        write!(f, "rank {by} does not reach the memory of rank {of}: {reason}")
    }
}

/// Sends all ranks what this one does not reach; returns what any rank does not reach, in rank order.
pub(crate) fn gather(group: &ProcessGroup, mine: &[Refusal]) -> Result<Vec<Refusal>> {
    let text = serde_json::to_vec(mine).expect("a refusal is plain data");
    let mut all = Vec::new();
    for (rank, bytes) in group.all_gather_bytes(&text)?.iter().enumerate() {
        let theirs: Vec<Refusal> =
            serde_json::from_slice(bytes).map_err(|error| CudaGroupError::SetUp {
                rank: Rank::new(rank as u32),
                reason: format!("it sent no list of what it does not reach: {error}"),
            })?;
        all.extend(theirs);
    }
    Ok(all)
}

/// The way that data takes, given what was asked for and what is not reached.
pub(crate) fn decide(asked: Option<CudaPath>, refusals: &[Refusal]) -> Result<CudaPath> {
    match (asked, refusals.first()) {
        (Some(CudaPath::Host), _) | (None, Some(_)) => Ok(CudaPath::Host),
        (Some(CudaPath::Peer) | None, None) => Ok(CudaPath::Peer),
        (Some(CudaPath::Peer), Some(first)) => Err(CudaGroupError::SetUp {
            rank: first.by(),
            reason: format!(
                "it does not reach the memory of rank {}, and CudaOptions::path forbids the way through \
                 host memory: {}",
                first.of, first.reason
            ),
        }),
    }
}

/// One line for each refusal, from rank 0.
pub(crate) fn log(refusals: &[Refusal]) {
    for refusal in refusals {
        tracing::warn!("rank 0: {refusal}");
    }
}

#[cfg(test)]
mod tests;
