//! The common next step of all ranks: a step, the end of the data, or a requested stop.
//!
//! A rank never acts on its own observations, because the others would wait for it: all agree before each step.

use bonfire_collective::Proposal;
use bonfire_launch::StopRequest;
use bonfire_train::World;

use crate::all_or_none;
use crate::error::{BoxError, Result};

/// The common next step of all ranks.
#[derive(Debug)]
pub enum NextStep<B> {
    /// A step, with this rank's batch if it has one.
    Step(Option<B>),
    /// No rank has another batch.
    End,
    /// Some rank was asked to stop.
    Stop,
}

/// Agrees on the next step of all ranks. `prepared` is this rank's batch or error, or `None` at the end of its data.
/// Every rank must call it, between the same two steps. It costs an [`agree`](crate::collective::ProcessGroup::agree),
/// a few microseconds on one host.
///
/// ```
/// use bonfire::{Error, NextStep, agree_on_next_step, spawn};
/// use bonfire::world::StopRequest;
///
/// let steps = spawn(2, |world| {
///     let stop = StopRequest::never();
///     // Rank 1 has more data than rank 0.
///     let mut batches = (0..3 + world.rank().get()).map(Ok::<_, Error>);
///     let mut steps = 0;
///     while let NextStep::Step(batch) = agree_on_next_step(&world, &stop, batches.next())? {
///         assert_eq!(batch.is_none(), world.is_main() && steps == 3);
///         steps += 1;
///     }
///     Ok::<_, Error>(steps)
/// })?;
/// assert_eq!(steps, [4, 4]);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The data's of the lowest rank that has one, as [`all_or_none`] gives it to all; or if a rank has failed.
#[track_caller]
pub fn agree_on_next_step<B, E: Into<BoxError>>(
    world: &World,
    stop: &StopRequest,
    prepared: Option<Result<B, E>>,
) -> Result<NextStep<B>> {
    let (batch, outcome) = match prepared {
        Some(Ok(batch)) => (Some(batch), Ok(())),
        Some(Err(error)) => (None, Err(error)),
        None => (None, Ok(())),
    };
    let agreed = world.group().agree(Proposal {
        stop: outcome.is_err() || stop.is_made(),
        out_of_data: batch.is_none(),
        ..Proposal::default()
    });
    let agreed = match (agreed, outcome) {
        (Ok(agreed), Ok(())) if agreed.stop.is_none() => agreed,
        (Ok(_), outcome) => return all_or_none(world, outcome).map(|()| NextStep::Stop),
        // This rank's own error has more details.
        (Err(_), Err(own)) => return Err(crate::Error::from_program(own.into())),
        (Err(failure), Ok(())) => return Err(failure.into()),
    };
    Ok(match agreed.with_data {
        Some(_) => NextStep::Step(batch),
        None => NextStep::End,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    /// What each of three ranks does next: `prepared` says it of a rank.
    fn turns(
        prepared: impl Fn(u32) -> Option<Result<u32, &'static str>> + Sync,
    ) -> Result<Vec<String>> {
        crate::spawn(3, |world| {
            let own = prepared(world.rank().get());
            let turn = agree_on_next_step(&world, &StopRequest::never(), own)?;
            Ok::<_, Error>(format!("{turn:?}"))
        })
    }

    #[test]
    fn all_go_on_while_any_has_a_batch() {
        let found = turns(|rank| (rank == 1).then_some(Ok(5))).unwrap();
        assert_eq!(found, ["Step(None)", "Step(Some(5))", "Step(None)"]);
        assert_eq!(turns(|_| None).unwrap(), ["End"; 3]);
    }

    #[test]
    fn an_error_of_the_data_ends_all_and_its_rank_tells() {
        let error = turns(|rank| (rank < 2).then_some(if rank == 1 { Err("torn") } else { Ok(0) }));
        assert_eq!(format!("{:?}", error.unwrap_err()), "rank 1 failed: torn");
    }
}
