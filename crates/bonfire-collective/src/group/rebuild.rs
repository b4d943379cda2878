//! A new group of the ranks that are left, without leaving their processes.
//!
//! The course is that of ULFM (Bland et al., "Post-failure recovery of MPI communication capability",
//! 2013): the old group is revoked, so that nobody waits in it; those who are left agree on who they
//! are; and they go on in a smaller group. From torchft come the deadline for those who are late, the
//! least number of ranks to go on with, and the rank that comes back and gets the state from
//! another.
//!
//! The ranks meet at the job's store. Every generation of the group has its own key for every
//! handshake, derived from the job's token, so no connection of an earlier one can enter it; frames
//! travel on connections only.

mod error;
mod reunion;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bonfire_plan::{Rank, WorldSize};

use super::{Origin, ProcessGroup};
use crate::RankEnv;
use crate::options::GroupOptions;
use crate::rendezvous::Home;

pub use error::RebuildError;
use reunion::Reunion;

/// For whom a group that is rebuilt waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WaitFor {
    /// For all ranks of the old group that are not known to be gone.
    #[default]
    Survivors,
    /// For as many ranks as the job had in the beginning: the lost ones are started anew and
    /// [rejoin](ProcessGroup::rejoin).
    Everybody,
}

/// How to rebuild a group. All ranks should give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildOptions {
    /// The fewest ranks to go on with.
    pub min_world: WorldSize,
    /// For whom to wait.
    pub wait_for: WaitFor,
    /// How long to wait for them before going on without those who have not come. Default 10 s: a rank
    /// hears of a failure at its next operation, so allow for the longest time between two.
    pub join_timeout: Duration,
    /// How long all rounds together may take; there is another one when a rank is lost on the way.
    /// Default 120 s.
    pub timeout: Duration,
}

impl Default for RebuildOptions {
    fn default() -> Self {
        Self {
            min_world: WorldSize::ONE,
            wait_for: WaitFor::default(),
            join_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(120),
        }
    }
}

/// A group that was rebuilt.
///
/// Its ranks are numbered from 0 without gaps, in the order that they had; [`ProcessGroup::members`]
/// tells their ranks in the first group of the job.
#[derive(Debug)]
pub struct Rebuilt {
    /// The group.
    pub group: ProcessGroup,
    /// How many rounds of rebuilding the job has seen.
    pub generation: u32,
    /// The ranks of the new group that come without the state of the old one: broadcast it to them,
    /// and to nobody else's harm, from [`donor`](Self::donor).
    pub newcomers: Vec<Rank>,
}

impl Rebuilt {
    /// The lowest rank of the new group that was in the old one.
    pub fn donor(&self) -> Option<Rank> {
        let mut ranks = self.group.world_size().ranks();
        ranks.find(|rank| !self.newcomers.contains(rank))
    }
}

impl ProcessGroup {
    /// Forms a new group of the ranks that are left, after this one has failed.
    ///
    /// Every rank that is left must call it. One that calls it while the group is well ends the group
    /// for all, who then call it, too. What was under way is lost: the program goes on from a state
    /// that all ranks have, such as the one after the last step that all of them finished (compare
    /// step numbers in the new group), or the last checkpoint. Parts of the group are split anew; drop
    /// the old groups when their buffers are no longer needed.
    ///
    /// Ranks of a launcher meet at its store, threads in their process. The launcher must let the
    /// others live when one fails (`--min-ranks`).
    ///
    /// # Errors
    /// See [`RebuildError`].
    pub fn rebuild(&self, options: &RebuildOptions) -> Result<Rebuilt, RebuildError> {
        let core = &self.member.core;
        let roster = &core.roster;
        let Some(generation) = roster.generation else {
            return Err(RebuildError::Part {
                group: roster.number,
            });
        };
        // Acquire and Release order nothing: whoever finds the flag set leaves at once.
        if core.is_rebuilding.swap(true, Ordering::Relaxed) {
            return Err(RebuildError::Busy);
        }
        self.abort("it rebuilds the group");
        let reunion = Reunion {
            me: roster.world_rank(core.me),
            job_size: roster.job_size,
            picked: &roster.picked,
            group_options: &roster.options,
            origin: &roster.origin,
            old: Some((generation, core)),
            options,
        };
        let rebuilt = reunion.meet();
        core.is_rebuilding.store(false, Ordering::Relaxed);
        rebuilt
    }

    /// Takes the place of a rank that was lost, in a process that was started anew: forms the next
    /// group together with the ranks that [rebuild](Self::rebuild) theirs.
    ///
    /// # Errors
    /// See [`RebuildError`].
    pub fn rejoin(
        env: &RankEnv,
        group_options: GroupOptions,
        options: &RebuildOptions,
    ) -> Result<Rebuilt, RebuildError> {
        let group_options = group_options.with(&env.settings);
        let home = Home::of_newcomer(env, &group_options, options.timeout)
            .map_err(RebuildError::StoreGone)?;
        let origin = Origin::Processes(Arc::new(home.ok_or(RebuildError::NoStore)?));
        let reunion = Reunion {
            me: env.rank,
            job_size: env.world_size,
            picked: &Arc::default(),
            group_options: &group_options,
            origin: &origin,
            old: None,
            options,
        };
        reunion.meet()
    }
}
