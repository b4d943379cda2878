//! What can go wrong with a process group, and whose fault it is.

use std::sync::Arc;

use bonfire_plan::{PlanError, Rank};
use bonfire_sys::ArenaError;

use crate::health::failure::{Corruption, Failure, Mismatch, Timeout};
use crate::rendezvous::ConnectError;

/// An operation of a process group failed.
///
/// All but [`Buffer`](Self::Buffer) and [`Connect`](Self::Connect) end the group: every pending and future operation on every rank
/// returns the same failure.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank died, panicked, gave up, left the group while it was needed, or gave an operation
    /// buffers that do not fit it.
    #[error("rank {rank} failed: {cause}")]
    PeerFailed {
        /// The culprit.
        rank: Rank,
        /// What is known about it.
        cause: String,
    },
    /// A group that [shares this one's fate](crate::ProcessGroup::split) ended, and no rank of this one is to blame.
    #[error("{}{cause}", .rank.map_or_else(String::new, |rank| format!("rank {rank} of the job failed: ")))]
    FailedElsewhere {
        /// The culprit's rank in the first group of the job, if one is to blame.
        rank: Option<Rank>,
        /// What is known about it.
        cause: String,
    },
    /// Two ranks called different operations, or the same one with other arguments.
    #[error(transparent)]
    Mismatch(Box<Mismatch>),
    /// A rank waited longer than the group's timeout.
    #[error(transparent)]
    Timeout(Box<Timeout>),
    /// What a rank sent was changed on the way to another, as a checksum of Bonfire's shows; TCP's own
    /// did not. See [`Checksums`](crate::Checksums).
    #[error("{0}")]
    Corrupted(Box<Corruption>),
    /// The caller asked for something that no rank can do. On the other ranks it is a failure of this one.
    #[error(transparent)]
    Usage(#[from] PlanError),
    /// There is no memory for a buffer. The group continues.
    #[error(transparent)]
    Buffer(#[from] Arc<ArenaError>),
    /// The group could not be formed.
    #[error(transparent)]
    Connect(#[from] Arc<ConnectError>),
}

pub(crate) type Result<T, E = CollectiveError> = std::result::Result<T, E>;

impl CollectiveError {
    /// Whether rank `me`, in the numbers of the group that failed, only suffers from what happened
    /// elsewhere. A process that ends because of such an error exits with `PEER_FAILED_EXIT_CODE`,
    /// so that its launcher looks for the culprit elsewhere. A rank that waits for too long is not
    /// a culprit, and its report shows which rank is late.
    pub fn blames_another(&self, me: Rank) -> bool {
        match self {
            Self::PeerFailed { rank, .. } => *rank != me,
            Self::FailedElsewhere { .. } | Self::Timeout(_) => true,
            // Nobody can tell which of the two it is, or whether it is either.
            Self::Corrupted(corruption) => ![corruption.source, corruption.target].contains(&me),
            Self::Connect(error) => match &**error {
                ConnectError::GroupFailed(failure) => failure.blames_another(me),
                _ => false,
            },
            Self::Mismatch(_) | Self::Usage(_) | Self::Buffer(_) => false,
        }
    }

    /// What ends a group, as the other ranks receive it; nothing of what does not.
    pub(crate) fn as_failure(&self) -> Option<Failure> {
        Some(match self {
            Self::PeerFailed { rank, cause } => Failure::Peer { rank: *rank, cause: cause.clone() },
            Self::FailedElsewhere { rank, cause } => {
                Failure::Elsewhere { rank: *rank, cause: cause.clone() }
            }
            Self::Mismatch(mismatch) => Failure::Mismatch(mismatch.clone()),
            Self::Timeout(timeout) => Failure::Timeout(timeout.clone()),
            Self::Corrupted(corruption) => Failure::Corrupted(corruption.clone()),
            Self::Usage(_) | Self::Buffer(_) | Self::Connect(_) => return None,
        })
    }
}

impl From<Failure> for CollectiveError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Peer { rank, cause } => Self::PeerFailed { rank, cause },
            Failure::Elsewhere { rank, cause } => Self::FailedElsewhere { rank, cause },
            Failure::Mismatch(mismatch) => Self::Mismatch(mismatch),
            Failure::Timeout(timeout) => Self::Timeout(timeout),
            Failure::Corrupted(corruption) => Self::Corrupted(corruption),
        }
    }
}

impl From<ConnectError> for CollectiveError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corrupted_frame_is_reported_with_its_link_and_blamed_on_nobody_else() {
        let [source, target, other] = [1, 2, 3].map(Rank::new);
        let failure = Failure::Corrupted(Box::new(Corruption { source, target, seq: 40 }));
        let sent = serde_json::to_vec(&failure).unwrap();
        let received: Failure = serde_json::from_slice(&sent).unwrap();
        assert_eq!(received, failure);
        let error = CollectiveError::from(received);
        let text = error.to_string();
        let part = "what rank 1 sent to rank 2 in operation #40 was changed on the way";
        assert!(text.starts_with(part), "{text}");
        assert!(error.blames_another(other));
        assert!(!error.blames_another(source) && !error.blames_another(target));
        assert_eq!(error.as_failure(), Some(failure));
        let joining = CollectiveError::from(ConnectError::GroupFailed(Box::new(error)));
        assert!(joining.blames_another(other) && !joining.blames_another(source));
    }
}
