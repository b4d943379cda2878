//! Runs a program's function as one rank, so that any failure of it reaches the others.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bonfire_collective::{CollectiveError, ProcessGroup, panic_message};
use bonfire_train::{DeviceKind, LocalRank, Occupancy, TrainError, World};

use crate::error::{BoxError, Error, Reporter, with_causes};

pub(crate) struct RankFailure {
    pub(crate) error: Error,
    pub(crate) fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This rank's, or of unknown origin.
    Own,
    /// Another rank's, which made this one fail.
    Peer,
}

/// Makes the rank's world, runs the function in it, and, if it fails or panics, reports that to all ranks.
pub(crate) fn run<T, E: Into<BoxError>>(
    group: ProcessGroup,
    local: LocalRank,
    kind: DeviceKind,
    occupancy: Occupancy,
    function: impl FnOnce(World) -> Result<T, E>,
) -> Result<T, RankFailure> {
    let mut entered = None;
    let attempt = || {
        let world = World::with_occupancy(group.clone(), local, kind, occupancy)?;
        entered = Some(world.clone());
        function(world).map_err(|error| Error::from_program(error.into()))
    };
    // The group is the only thing that is used after a panic, and it is made for that.
    let error = match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        // A layer has no other way out of a forward pass than a panic.
        Err(panic) => match entered.and_then(|world| world.take_failure()) {
            Some(failure) => failure.into(),
            None => {
                Error::Panicked { rank: group.rank(), message: panic_message(&*panic).to_owned() }
            }
        },
    };
    let cause = match &error {
        Error::Panicked { message, .. } => format!("panicked: {message}"),
        other => with_causes(other),
    };
    if Reporter::of(&error).is_some_and(|reporter| reporter.rank != group.rank()) {
        // Until that rank has ended the group: who is first is taken for the culprit.
        let _ = group.with_timeout(Duration::from_secs(2)).barrier();
    }
    group.abort(&cause);
    let fault = fault(&group, &error);
    Err(RankFailure { error, fault })
}

/// The origin of the first failure of an aborted group, which every operation now returns. It has this rank's own text
/// where a group of some ranks failed before that of all; then the text blames another rank.
fn fault(group: &ProcessGroup, error: &Error) -> Fault {
    let me = group.rank();
    match group.barrier() {
        Err(failure) if failure.blames_another(me) => Fault::Peer,
        _ if failure_of_group(error).is_some_and(|failure| failure.blames_another(me)) => {
            Fault::Peer
        }
        _ => Fault::Own,
    }
}

/// The failure of a group in an error or its causes.
fn failure_of_group(error: &Error) -> Option<&CollectiveError> {
    let mut cause: Option<&(dyn StdError + 'static)> = match error {
        Error::Program(held) => Some(held.as_ref()),
        error => Some(error),
    };
    while let Some(error) = cause {
        // A transparent error has the causes of its content, and is not a cause itself.
        let held = match (error.downcast_ref(), error.downcast_ref()) {
            (Some(Error::Collective(held) | Error::Train(TrainError::Collective(held))), _)
            | (_, Some(TrainError::Collective(held))) => Some(held),
            _ => error.downcast_ref(),
        };
        if held.is_some() {
            return held;
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use bonfire_collective::Rank;

    use super::*;

    #[test]
    fn a_rank_that_heard_of_a_failure_in_a_group_of_some_ranks_is_not_the_culprit() {
        let failure = || CollectiveError::PeerFailed {
            rank: Rank::new(1),
            cause: "its host cannot be reached".to_owned(),
        };
        let errors = [
            Error::from(failure()),
            Error::from(TrainError::Collective(failure())),
            Error::from_program(Box::new(failure())),
            Error::from_program(Box::new(TrainError::Collective(failure()))),
        ];
        for error in errors {
            let found = failure_of_group(&error).expect("it tells of a group");
            assert!(found.blames_another(Rank::new(0)), "{error}");
        }
        assert!(failure_of_group(&Error::Usage("no data".to_owned())).is_none());
    }
}
