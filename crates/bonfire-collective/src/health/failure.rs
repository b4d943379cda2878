//! What ends a group, as its ranks report to each other.

use std::any::Any;
use std::fmt;

use bonfire_plan::{Operation, Rank};
use serde::{Deserialize, Serialize};

/// Why a group stopped. The first failure anywhere is the failure of every rank: all pending and
/// future operations return it, so it is cheap to clone and can be sent between processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Failure {
    /// A rank died, panicked, gave up or left while it was needed.
    #[error("rank {rank} failed: {cause}")]
    Peer { rank: Rank, cause: String },
    /// Another group of the same [domain](crate::health::domain) ended, and nobody of this one is to blame: `rank` is
    /// the culprit's in the job, where one is named.
    #[error("{}{cause}", .rank.map_or_else(String::new, |rank| format!("rank {rank} of the job failed: ")))]
    Elsewhere { rank: Option<Rank>, cause: String },
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    #[error(transparent)]
    Timeout(Box<Timeout>),
    #[error("{0}")]
    Corrupted(Box<Corruption>),
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// How the text of a [`Mismatch`] begins, by which a report knows it again.
pub(crate) const DISAGREE: &str = "ranks disagree: ";

/// Two ranks were in different operations at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Mismatch {
    /// The rank that compared the operations, in numbers of the group.
    pub rank: Rank,
    /// The operation that this rank was in.
    pub operation: Operation,
    /// The rank whose frame it received.
    pub other_rank: Rank,
    /// The operation in the header of that frame.
    pub other_operation: Operation,
    /// What the programs of the two say of it, in words.
    #[serde(default)]
    pub calls: Option<[String; 2]>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, operation, other_rank, other_operation, calls } = self;
        let [call, other_call] = calls.clone().unwrap_or_default();
        write!(
            f,
            "{DISAGREE}rank {rank} is in {call}{operation}, but rank {other_rank} is in \
             {other_call}{other_operation}; every rank must call the same operations in the same order"
        )?;
        match operation.step.or(other_operation.step) {
            Some(_) => f.write_str(". Do all ranks have equally many batches?"),
            None => Ok(()),
        }
    }
}

/// A frame arrived with another checksum than it was sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corruption {
    /// The rank that sent the frame, in numbers of the group.
    pub source: Rank,
    /// The rank that computed another checksum on arrival.
    pub target: Rank,
    /// The number of the operation in the group that it belongs to.
    pub seq: u64,
}

/// A rank waited longer than the timeout of the group or call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "rank {rank} waited {elapsed_ms} ms for rank {waited_for} in {operation}{}{verdict} (who needs longer \
     sets GroupOptions::timeout)", if .verdict.is_empty() { "" } else { ": " }
)]
pub struct Timeout {
    /// The rank whose time ran out, in numbers of the group.
    pub rank: Rank,
    /// The peer that had to send or receive next.
    pub waited_for: Rank,
    /// The operation in which the rank waited.
    pub operation: Operation,
    /// How long it had been in that operation.
    pub elapsed_ms: u64,
    /// Which ranks were not there, and what they were doing instead, in words.
    pub verdict: String,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, target, seq } = self;
        write!(
            f,
            "what rank {source} sent to rank {target} in operation #{seq} was changed on the way: memory, an \
             interface or a switch between them is faulty, and results computed over this link before may be \
             wrong where checksums were off"
        )
    }
}
/// What a panic said, as a cause for [`ProcessGroup::abort`](crate::ProcessGroup::abort).
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
