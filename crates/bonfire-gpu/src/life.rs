//! What binds a rank to the others: set-up that succeeds on all or on none, waits that end with the group, and
//! what is done when it has failed.

pub(crate) mod guard;
pub(crate) mod late_drop;
pub(crate) mod wait;

use bonfire_collective::{Disagreement, ProcessGroup};
use bonfire_cuda::CudaError;

use crate::error::{CudaGroupError, Result};

/// Makes a failure of this rank's device the failure of all ranks.
pub(crate) fn local<T>(group: &ProcessGroup, result: Result<T, CudaError>) -> Result<T> {
    result.map_err(|source| {
        let rank = group.rank();
        group.abort(&source.to_string());
        CudaGroupError::Device { rank, source }
    })
}

/// Sends all ranks the outcome of this one's part of set-up, and returns the first failure, which
/// is the same on all ranks. Also a barrier.
pub(crate) fn agree<T, E: std::fmt::Display>(
    group: &ProcessGroup,
    mine: Result<T, E>,
) -> Result<T> {
    let agreed = group.agree_on(mine.map_err(|error| error.to_string()));
    agreed.map_err(|disagreement| match disagreement {
        Disagreement::Refused { rank, reason, .. } => CudaGroupError::SetUp { rank, reason },
        Disagreement::Group { error, .. } => error.into(),
    })
}
