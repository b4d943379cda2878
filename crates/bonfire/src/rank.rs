//! Runs a program's function as one rank, so that its failure, of whatever kind, reaches the others.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bonfire_collective::{ProcessGroup, panic_message};
use bonfire_train::{DeviceKind, LocalRank, Occupancy, World};

use crate::error::{BoxError, Error, with_causes};

/// A rank's function did not end well.
pub(crate) struct RankFailure {
    pub(crate) error: Error,
    pub(crate) fault: Fault,
}

/// Whose doing a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This rank's, or nobody's in particular.
    Own,
    /// Another rank's, which made this one fail.
    Peer,
}

/// Makes the rank's world, runs the function in it, and, if that fails or panics, tells all ranks.
pub(crate) fn run<T, E: Into<BoxError>>(
    group: ProcessGroup,
    local: LocalRank,
    device: (DeviceKind, Occupancy),
    function: impl FnOnce(World) -> Result<T, E>,
) -> Result<T, RankFailure> {
    let attempt = || {
        let world = World::with_occupancy(group.clone(), local, device)?;
        function(world).map_err(|error| Error::from_program(error.into()))
    };
    // The group is the only thing that is used after a panic, and it is made for that.
    let error = match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(panic) => Error::Panicked {
            rank: group.rank(),
            message: panic_message(&*panic).to_owned(),
        },
    };
    let cause = match &error {
        Error::Panicked { message, .. } => format!("panicked: {message}"),
        other => with_causes(other),
    };
    group.abort(&cause);
    let fault = fault(&group);
    Err(RankFailure { error, fault })
}

/// Whose failure ended an aborted group: the first one, which every operation now returns.
fn fault(group: &ProcessGroup) -> Fault {
    match group.barrier() {
        Err(error) if error.blames_another(group.rank()) => Fault::Peer,
        _ => Fault::Own,
    }
}
