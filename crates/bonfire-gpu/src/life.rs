//! What binds a rank to the others: set-up that succeeds on all or on none, waits that end with the group, and
//! what is done when it has failed.

pub(crate) mod guard;
pub(crate) mod late_drop;
pub(crate) mod wait;

use bonfire_collective::ProcessGroup;
use bonfire_plan::Rank;

use crate::error::CudaGroupError;

/// Sends all ranks the outcome of this one's part of set-up, and returns the first failure, which
/// is the same on all ranks. Also a barrier.
pub(crate) fn agree<T, E: std::fmt::Display>(
    group: &ProcessGroup,
    mine: Result<T, E>,
) -> Result<T, CudaGroupError> {
    let reason = match &mine {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let reasons = group.all_gather_bytes(reason.as_bytes())?;
    let failed = reasons.iter().position(|reason| !reason.is_empty());
    match (failed, mine) {
        (None, Ok(value)) => Ok(value),
        (Some(index), _) => Err(CudaGroupError::SetUp {
            rank: Rank::new(index as u32),
            reason: String::from_utf8_lossy(&reasons[index]).into_owned(),
        }),
        (None, Err(error)) => Err(CudaGroupError::SetUp {
            rank: group.rank(),
            reason: error.to_string(),
        }),
    }
}
