//! What all ranks do next: one decision out of what each of them proposes.
//!
//! A rank that stops, saves or has no more data must not do so alone: the others would wait for it in
//! the next operation. The decision costs one all-reduce of four numbers.

use std::fmt;

use bonfire_plan::{Rank, ReduceOp};

use super::{CAUSE_BYTES_MAX, ProcessGroup};
use crate::CollectiveError;
use crate::rendezvous::group_error::Result;

const NOBODY: u32 = u32::MAX;

/// What a rank would do between two steps, if it were alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// End the training: the loss is good enough, the time is up, somebody pressed Ctrl-C.
    pub stop: bool,
    /// Save the state of the training.
    pub checkpoint: bool,
    /// This rank has no batch for the next step.
    pub out_of_data: bool,
}

/// What the ranks do between two steps: the same on all of them.
///
/// Each field names the lowest rank that is of this mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Agreement {
    /// Who wants to stop. If anybody does, all stop.
    pub stop: Option<Rank>,
    /// The rank that wants a checkpoint.
    pub checkpoint: Option<Rank>,
    /// Who has no more data. To stop with the shortest share, stop as soon as anybody has none.
    pub out_of_data: Option<Rank>,
    /// Who still has data. To use all data, continue while anybody has: a rank without takes part
    /// in the step with a batch of no samples.
    pub with_data: Option<Rank>,
}

/// Why [`agree_on`](ProcessGroup::agree_on) gives no value.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement<E: fmt::Debug> {
    /// Some ranks have an error. The group goes on.
    #[error("rank {rank} failed: {reason}")]
    Refused {
        /// The lowest of them.
        rank: Rank,
        /// Its error in words.
        reason: String,
        /// This rank's, if it has one.
        own: Option<E>,
    },
    /// The group has failed.
    #[error("{error}")]
    Group {
        /// Its failure.
        error: CollectiveError,
        /// This rank's own error, if it has one.
        own: Option<E>,
    },
}

impl ProcessGroup {
    /// Goes on if all ranks can: gives every rank its value, or, if some have an error, every rank one that names
    /// the lowest of them. Every rank must call it.
    ///
    /// It takes the time of a small all-reduce; where a rank has an error its text follows, of 4 KiB at most.
    ///
    /// ```
    /// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
    /// use bonfire::collective::{Disagreement, GroupOptions, ProcessGroup, Rank, WorldSize};
    ///
    /// let groups = ProcessGroup::local(WorldSize::new(3)?, GroupOptions::default())?;
    /// std::thread::scope(|scope| {
    ///     for group in groups {
    ///         scope.spawn(move || {
    ///             let me = group.rank();
    ///             let opened = if me == Rank::new(1) { Err("no such file") } else { Ok(7) };
    ///             let Err(Disagreement::Refused { rank, reason, own }) = group.agree_on(opened) else {
    ///                 panic!("rank 1 has an error");
    ///             };
    ///             assert_eq!((rank, reason.as_str()), (Rank::new(1), "no such file"));
    ///             assert_eq!(own.is_some(), me == rank);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn agree_on<T, E: fmt::Display + fmt::Debug>(
        &self,
        result: Result<T, E>,
    ) -> Result<T, Disagreement<E>> {
        let own_reason = result.as_ref().err().map(ToString::to_string);
        match (self.lowest_reason(own_reason), result) {
            (Ok(None), Ok(value)) => Ok(value),
            (Ok(None), Err(_)) => unreachable!("this rank said that it has an error"),
            (Ok(Some((rank, reason))), result) => {
                let own = result.err();
                Err(Disagreement::Refused { rank, reason, own })
            }
            (Err(error), result) => {
                let own = result.err();
                Err(Disagreement::Group { error, own })
            }
        }
    }

    /// The lowest rank that gives a reason, and its reason.
    #[track_caller]
    fn lowest_reason(&self, own: Option<String>) -> Result<Option<(Rank, String)>> {
        let caller = self.caller();
        let me = self.rank();
        let mut lowest = [if own.is_some() { me.get() } else { NOBODY }];
        self.in_turn(|core| {
            core.all_reduce(caller, &mut lowest, ReduceOp::Min)?;
            if lowest == [NOBODY] {
                return Ok(None);
            }
            let rank = Rank::new(lowest[0]);
            // As long on all ranks, so that one broadcast is enough.
            let mut text = vec![0_u8; CAUSE_BYTES_MAX];
            if let Some(own) = own.filter(|_| rank == me) {
                let end = own.floor_char_boundary(CAUSE_BYTES_MAX);
                text[..end].copy_from_slice(&own.as_bytes()[..end]);
            }
            core.broadcast(caller, &mut text, rank)?;
            let end = text.iter().rposition(|byte| *byte != 0);
            text.truncate(end.map_or(0, |last| last + 1));
            Ok(Some((rank, String::from_utf8_lossy(&text).into_owned())))
        })
    }

    /// Decides with all ranks what happens before the next step.
    ///
    /// Every rank must call it, between the same two steps: every step, or every k steps. It takes the
    /// time of a small all-reduce, a few microseconds on one host.
    ///
    /// ```
    /// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
    /// use bonfire::collective::{GroupOptions, ProcessGroup, Proposal, Rank, WorldSize};
    ///
    /// let groups = ProcessGroup::local(WorldSize::new(2)?, GroupOptions::default())?;
    /// std::thread::scope(|scope| {
    ///     for group in groups {
    ///         scope.spawn(move || {
    ///             // Rank 1 has had enough after three steps.
    ///             for step in 0.. {
    ///                 let enough = group.rank() == Rank::new(1) && step == 3;
    ///                 let agreed = group.agree(Proposal { stop: enough, ..Proposal::default() }).unwrap();
    ///                 if agreed.stop.is_some() {
    ///                     assert_eq!((step, agreed.stop), (3, Some(Rank::new(1))));
    ///                     break;
    ///                 }
    ///             }
    ///         });
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn agree(&self, proposal: Proposal) -> Result<Agreement> {
        let caller = self.caller();
        let me = self.rank().get();
        let mut lowest =
            [proposal.stop, proposal.checkpoint, proposal.out_of_data, !proposal.out_of_data]
                .map(|is_mine| if is_mine { me } else { NOBODY });
        self.in_turn(|core| core.all_reduce(caller, &mut lowest, ReduceOp::Min))?;
        let [stop, checkpoint, out_of_data, with_data] =
            lowest.map(|rank| (rank != NOBODY).then(|| Rank::new(rank)));
        Ok(Agreement { stop, checkpoint, out_of_data, with_data })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use bonfire_plan::WorldSize;

    use super::*;
    use crate::GroupOptions;

    /// What each of three ranks gets, of which some have an error; and whether the group goes on.
    fn outcomes(
        wrong: &[u32],
        before: impl Fn(&ProcessGroup) + Sync,
    ) -> Vec<Result<u32, Disagreement<String>>> {
        let three = WorldSize::new(3).unwrap();
        let groups = ProcessGroup::local(three, GroupOptions::default()).unwrap();
        let run = |group: ProcessGroup| {
            let me = group.rank().get();
            before(&group);
            let own = if wrong.contains(&me) { Err(format!("trouble of {me}")) } else { Ok(me) };
            let agreed = group.agree_on(own);
            let has_failed = matches!(agreed, Err(Disagreement::Group { .. }));
            assert_eq!(group.barrier().is_err(), has_failed);
            agreed
        };
        thread::scope(|scope| {
            let run = &run;
            let ranks: Vec<_> =
                groups.into_iter().map(|group| scope.spawn(move || run(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_get_their_values_if_none_has_an_error() {
        let values: Result<Vec<u32>, _> = outcomes(&[], |_| ()).into_iter().collect();
        assert_eq!(values.unwrap(), [0, 1, 2]);
    }

    #[test]
    fn the_lowest_rank_with_an_error_is_named_and_each_keeps_its_own() {
        for wrong in [&[0][..], &[2], &[1, 2], &[0, 1, 2]] {
            for (me, outcome) in (0..).zip(outcomes(wrong, |_| ())) {
                let Err(Disagreement::Refused { rank, reason, own }) = outcome else {
                    panic!("{outcome:?}");
                };
                assert_eq!(rank.get(), wrong[0]);
                assert_eq!(reason, format!("trouble of {rank}"));
                let expected = wrong.contains(&me).then(|| format!("trouble of {me}"));
                assert_eq!(own, expected);
            }
        }
    }

    #[test]
    fn in_a_group_that_has_failed_each_keeps_its_own_error() {
        let failing = |group: &ProcessGroup| {
            if group.rank() == Rank::new(2) {
                group.abort("no more disk");
            }
        };
        for (me, outcome) in (0..).zip(outcomes(&[2], failing)) {
            let Err(Disagreement::Group { error, own }) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(error.to_string(), "rank 2 failed: no more disk");
            assert_eq!(own.is_some(), me == 2);
        }
    }
}
