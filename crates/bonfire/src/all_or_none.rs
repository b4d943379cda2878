//! Errors that end all ranks, reported by one of them.

use bonfire_collective::Disagreement;
use bonfire_train::World;

use crate::error::{BoxError, Error, Reporter, Result};

/// Returns every rank its value, or an error on every rank if any has one. The lowest rank with an error gets its own,
/// and the others [`Error::ReportedElsewhere`]. Every rank must call it at the same place, and return the error.
///
/// A file that only rank 2 cannot read, or an option that is wrong for all, is then one line of one
/// rank: [`launch`](crate::launch) prints nothing for the others. It takes the time of a small
/// all-reduce, a few microseconds on one host.
///
/// ```
/// # use bonfire::{Error, all_or_none, spawn};
/// let outcome = spawn(3, |world| {
///     let text = match world.rank().get() {
///         1 => Err("no such file"),
///         _ => Ok("content"),
///     };
///     all_or_none(&world, text).map(str::len)
/// });
/// assert_eq!(format!("{:?}", outcome.unwrap_err()), "rank 1 failed: no such file");
/// ```
///
/// # Errors
/// This rank's own, [`Error::ReportedElsewhere`], or [`Error::Collective`] if a rank has failed before.
#[track_caller]
pub fn all_or_none<T, E: Into<BoxError>>(world: &World, result: Result<T, E>) -> Result<T> {
    let group = world.group();
    let result: Result<T, BoxError> = result.map_err(Into::into);
    let (teller, own) = match group.agree_on(result) {
        Ok(value) => return Ok(value),
        Err(Disagreement::Refused { rank, own, .. }) => (rank, own),
        Err(Disagreement::Group { error, own }) => match own {
            None => return Err(error.into()),
            // The group has failed, perhaps because of what this rank has seen.
            own => (group.rank(), own),
        },
    };
    // The teller ends the group, so it waits until all others have agreed.
    let _ = group.barrier();
    match own {
        Some(error) if teller == group.rank() => Err(Error::from_program(error)),
        _ => {
            // Returns when that rank's error has ended the group, so that it is the first.
            let _ = group.barrier();
            Err(Error::ReportedElsewhere(Reporter { rank: teller }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use bonfire_collective::{GroupOptions, ProcessGroup, WorldSize};
    use bonfire_train::{DeviceKind, LocalRank, Occupancy};
    use thiserror::Error as ThisError;

    use super::*;
    use crate::rank;

    /// A program's own type of errors, which shows what is in it, as `anyhow::Error` does.
    #[derive(Debug, ThisError)]
    #[error(transparent)]
    struct Wrapped(Error);

    /// The error of each of three ranks, if any, when those in `wrong` have one of their own.
    fn outcomes(wrong: &[u32]) -> [Option<String>; 3] {
        let world_size = WorldSize::new(3).unwrap();
        let groups = ProcessGroup::local(world_size, GroupOptions::default()).unwrap();
        let run = |group: ProcessGroup| {
            let local = LocalRank { local_rank: group.rank().get(), local_world_size: 3 };
            let (kind, occupancy) = (DeviceKind::Cpu, Occupancy::Exclusive);
            let outcome = rank::run(group, local, kind, occupancy, |world| {
                let rank = world.rank().get();
                let own =
                    if wrong.contains(&rank) { Err(format!("trouble of {rank}")) } else { Ok(()) };
                all_or_none(&world, own).map_err(Wrapped)
            });
            let error = outcome.err()?.error;
            Some(match Reporter::of(&error) {
                Some(Reporter { rank }) => format!("reported by {rank}"),
                None => error.to_string(),
            })
        };
        thread::scope(|scope| {
            let threads: Vec<_> =
                groups.into_iter().map(|group| scope.spawn(move || run(group))).collect();
            let ends = threads.into_iter().map(|thread| thread.join().unwrap());
            ends.collect::<Vec<_>>().try_into().unwrap()
        })
    }

    #[test]
    fn all_go_on_if_none_has_an_error() {
        assert_eq!(outcomes(&[]), [None, None, None]);
    }

    #[test]
    fn the_lowest_of_the_ranks_with_an_error_tells() {
        for wrong in [&[0][..], &[1], &[2], &[1, 2], &[0, 1, 2]] {
            let lowest = wrong[0];
            let expected = [0, 1, 2].map(|rank| {
                Some(if rank == lowest {
                    format!("trouble of {rank}")
                } else {
                    format!("reported by {lowest}")
                })
            });
            assert_eq!(outcomes(wrong), expected, "{wrong:?}");
        }
    }

    #[test]
    fn what_ended_the_group_before_is_kept() {
        let outcome = crate::spawn(2, |world| {
            if world.rank().get() == 1 {
                world.group().abort("disk full");
                return all_or_none(&world, Err::<(), _>("no room for a picture"));
            }
            all_or_none(&world, Ok::<_, Error>(()))
        });
        let error = format!("{:?}", outcome.unwrap_err());
        assert_eq!(error, "rank 1 failed: no room for a picture");
    }
}
