//! What all ranks do next: one decision out of what each of them proposes.
//!
//! A rank that stops, saves or has no more data must not do so alone: the others would wait for it in
//! the next operation. The decision costs one all-reduce of four numbers.

use bonfire_plan::{Rank, ReduceOp};

use super::ProcessGroup;
use crate::CollectiveError;

/// No rank has this number.
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

impl ProcessGroup {
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
    ///
    /// # Errors
    /// See [`CollectiveError`].
    #[track_caller]
    pub fn agree(&self, proposal: Proposal) -> Result<Agreement, CollectiveError> {
        let caller = self.caller();
        let me = self.rank().get();
        let mut lowest = [
            proposal.stop,
            proposal.checkpoint,
            proposal.out_of_data,
            !proposal.out_of_data,
        ]
        .map(|is_mine| if is_mine { me } else { NOBODY });
        self.in_turn(|core| core.all_reduce(caller, &mut lowest, ReduceOp::Min))?;
        let [stop, checkpoint, out_of_data, with_data] =
            lowest.map(|rank| (rank != NOBODY).then(|| Rank::new(rank)));
        Ok(Agreement {
            stop,
            checkpoint,
            out_of_data,
            with_data,
        })
    }
}
