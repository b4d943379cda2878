//! Who the ranks of a group are, and what they need to form smaller groups.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bonfire_plan::{Rank, WorldSize};

use super::link_pool::LinkPool;
use crate::CollectiveError;
use crate::health::failure::Failure;
use crate::options::GroupOptions;
use crate::rendezvous::Home;
use crate::transport::topology::Topology;

/// A group's place in its job, as one of its ranks knows it.
///
/// A group has a number of its own, which is sent in every frame. The first group of a job is number 0. Of a group
/// that a split makes, the lowest rank picks a number that it never picked before, and multiplies it by the size of
/// the job and adds its own rank there: no two groups of a job get the same number, though nobody keeps a list (until
/// 2^32 of them have been made, divided by the size of the job).
#[derive(Clone, Debug)]
pub(crate) struct Roster {
    pub(super) number: u32,
    job_size: WorldSize,
    /// The rank in the job of each rank of the group.
    members: Arc<[Rank]>,
    pub(super) topology: Topology,
    /// Ranks of the job on this host; they share its cores.
    pub(super) local_world_size: usize,
    pub(super) origin: Origin,
    /// The last number that this rank picked, in all its groups.
    picked: Arc<AtomicU32>,
    pub(super) options: GroupOptions,
}

/// How the ranks of the group can meet again.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    Threads(Arc<LinkPool>),
    Processes(Arc<Home>),
}

pub(super) struct Part {
    pub(super) number: u32,
    /// The new ranks' numbers in the group that they come from.
    pub(super) ranks: Vec<Rank>,
    pub(super) options: GroupOptions,
}

impl Roster {
    /// Of the first group of a job, which has all its ranks.
    pub(crate) fn of_job(
        me: Rank,
        topology: Topology,
        origin: Origin,
        options: GroupOptions,
    ) -> Self {
        let ranks = topology.hosts().len() as u32;
        let job_size = WorldSize::new(ranks).expect("this rank is in the job");
        Self {
            number: 0,
            job_size,
            members: job_size.ranks().collect(),
            local_world_size: topology.ranks_of(topology.host_of(me)).len(),
            topology,
            origin,
            picked: Arc::new(AtomicU32::new(0)),
            options,
        }
    }

    pub(super) fn part(&self, part: Part) -> Self {
        Self {
            number: part.number,
            members: part.ranks.iter().map(|rank| self.world_rank(*rank)).collect(),
            topology: self.topology.restrict(&part.ranks),
            options: part.options,
            ..self.clone()
        }
    }

    /// A number that this rank never returned before.
    pub(super) fn pick(&self) -> u32 {
        // Relaxed: only the number itself matters.
        self.picked.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// The number of a group whose lowest rank is `lowest`, of this group, and picked `picked`.
    pub(super) fn number_of(&self, lowest: Rank, picked: u32) -> u32 {
        picked.wrapping_mul(self.job_size.get()).wrapping_add(self.world_rank(lowest).get())
    }

    pub(super) fn members(&self) -> &[Rank] {
        &self.members
    }

    pub(super) fn world_rank(&self, rank: Rank) -> Rank {
        self.members[rank.index()]
    }

    /// The error that a failure of this group is to the caller. Ranks in it are the group's own;
    /// where they have other numbers in the job, the cause says so.
    pub(super) fn explain(&self, failure: Failure) -> CollectiveError {
        match failure {
            Failure::Peer { rank, cause } if self.is_renamed(rank) => {
                let world_rank = self.world_rank(rank);
                let cause =
                    format!("{cause} (rank {rank} of {self} is rank {world_rank} of the job)");
                CollectiveError::PeerFailed { rank, cause }
            }
            failure => failure.into(),
        }
    }

    fn is_renamed(&self, rank: Rank) -> bool {
        self.members.get(rank.index()).is_some_and(|world_rank| *world_rank != rank)
    }
}

impl fmt::Display for Roster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "group {}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(hosts: &[u32], me: u32) -> Roster {
        let origin = Origin::Threads(Arc::default());
        let options = GroupOptions::default();
        Roster::of_job(Rank::new(me), Topology::of(hosts), origin, options)
    }

    fn part(parent: &Roster, number: u32, ranks: &[u32]) -> Roster {
        parent.part(Part {
            number,
            ranks: ranks.iter().copied().map(Rank::new).collect(),
            options: GroupOptions::default(),
        })
    }

    #[test]
    fn parts_of_parts_know_their_ranks_in_the_job() {
        let job = job(&[0, 0, 1, 1, 1], 4);
        let odd = part(&job, 9, &[3, 4, 1]);
        assert_eq!(odd.members(), [3, 4, 1].map(Rank::new));
        assert_eq!(odd.topology.hosts(), [0, 0, 1]);
        let pair = part(&odd, 14, &[1, 2]);
        assert_eq!(pair.members(), [4, 1].map(Rank::new));
        assert_eq!(pair.topology.hosts(), [0, 1]);
        assert_eq!(pair.local_world_size, 3, "the cores are the whole job's");
    }

    #[test]
    fn no_two_groups_of_a_job_have_one_number() {
        let ranks: Vec<Roster> = (0..3).map(|me| job(&[0, 0, 0], me)).collect();
        let mut numbers = vec![0];
        for (lowest, roster) in (0..).map(Rank::new).zip(&ranks) {
            for _ in 0..5 {
                numbers.push(roster.number_of(lowest, roster.pick()));
            }
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{numbers:?}");
    }

    #[test]
    fn a_culprit_is_named_by_both_its_numbers() {
        let job = job(&[0; 4], 3);
        let pair = part(&job, 5, &[2, 3]);
        let failure = || Failure::Peer { rank: Rank::new(1), cause: "it panicked".to_owned() };
        assert_eq!(
            pair.explain(failure()).to_string(),
            "rank 1 failed: it panicked (rank 1 of group 5 is rank 3 of the job)"
        );
        assert_eq!(job.explain(failure()).to_string(), "rank 1 failed: it panicked");
    }
}
