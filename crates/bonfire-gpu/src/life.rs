//! What binds a rank to the others: set-up that succeeds on all or on none, waits that end with the group, and
//! what is done when it has failed.

pub(crate) mod guard;
pub(crate) mod late_drop;
pub(crate) mod wait;

use std::time::Duration;

use bonfire_collective::{Disagreement, ProcessGroup};
use bonfire_cuda::CudaError;
use bonfire_plan::Rank;

use crate::error::{CudaGroupError, Result};

/// Makes a failure of this rank's device the failure of all ranks.
pub(crate) fn local<T>(group: &ProcessGroup, result: Result<T, CudaError>) -> Result<T> {
    let rank = group.rank();
    group.or_abort(result).map_err(|source| CudaGroupError::Device { rank, source })
}

/// Ends the group because an operation has taken too long, for which `waited_for` are to blame if they are known.
pub(crate) fn time_out(
    group: &ProcessGroup,
    waited_for: Vec<Rank>,
    operation: String,
    elapsed: Duration,
) -> CudaGroupError {
    let elapsed_ms = elapsed.as_millis() as u64;
    let error = CudaGroupError::Timeout { rank: group.rank(), waited_for, operation, elapsed_ms };
    group.abort(&error.to_string());
    error
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
