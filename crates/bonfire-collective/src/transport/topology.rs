//! Which host each rank of a group is on, as set-up found it.
//!
//! Hosts are numbered in the order in which the ranks first name them, so every rank numbers them
//! alike. Containers with network namespaces of their own count as hosts of their own; see
//! `BONFIRE_HOST_ID` in [`RankEnv::host_id`](crate::RankEnv::host_id) for saying otherwise.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use bonfire_plan::Rank;

/// The hosts of a group and the ranks on them.
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
/// use bonfire::collective::{GroupOptions, ProcessGroup, Rank, WorldSize};
///
/// let groups = ProcessGroup::local(WorldSize::new(3)?, GroupOptions::default())?;
/// let topology = groups[0].topology();
/// // The threads of one process are on one host, and its lowest rank leads it.
/// assert_eq!(topology.host_count(), 1);
/// assert_eq!(topology.ranks_of(0), [0, 1, 2].map(Rank::new));
/// assert_eq!(topology.leaders(), [Rank::new(0)]);
/// assert_eq!(topology.local_rank(Rank::new(2)), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    tables: Arc<Tables>,
}

/// Shared by the clones: a group of a thousand ranks has one of them.
#[derive(Debug, PartialEq, Eq)]
struct Tables {
    hosts: Vec<u32>,
    local_ranks: Vec<u32>,
    ranks: Vec<Vec<Rank>>,
}

impl Topology {
    /// The topology of ranks whose hosts have these names, in rank order.
    pub(crate) fn of<H: Hash + Eq>(names: impl IntoIterator<Item = H>) -> Self {
        let mut numbers: HashMap<H, u32> = HashMap::new();
        let mut hosts = Vec::new();
        let mut local_ranks = Vec::new();
        let mut ranks: Vec<Vec<Rank>> = Vec::new();
        for (rank, name) in (0..).map(Rank::new).zip(names) {
            let next = ranks.len() as u32;
            let host = *numbers.entry(name).or_insert(next);
            if host == next {
                ranks.push(Vec::new());
            }
            let there = &mut ranks[host as usize];
            local_ranks.push(there.len() as u32);
            there.push(rank);
            hosts.push(host);
        }
        let tables = Arc::new(Tables { hosts, local_ranks, ranks });
        Self { tables }
    }

    /// What remains of it for these ranks, who are renumbered from 0 in this order.
    pub(crate) fn restrict(&self, ranks: &[Rank]) -> Self {
        Self::of(ranks.iter().map(|rank| self.host_of(*rank)))
    }

    /// How many hosts there are.
    pub fn host_count(&self) -> u32 {
        self.tables.ranks.len() as u32
    }

    /// The host of each rank, in rank order.
    pub fn hosts(&self) -> &[u32] {
        &self.tables.hosts
    }

    /// The host that `rank` is on.
    ///
    /// # Panics
    /// When `rank` is not a member of the group.
    pub fn host_of(&self, rank: Rank) -> u32 {
        self.tables.hosts[rank.index()]
    }

    /// The ranks on `host`, ascending.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn ranks_of(&self, host: u32) -> &[Rank] {
        &self.tables.ranks[host as usize]
    }

    /// The place of `rank` among the ranks of its host, from 0.
    ///
    /// # Panics
    /// When `rank` is not a member of the group.
    pub fn local_rank(&self, rank: Rank) -> u32 {
        self.tables.local_ranks[rank.index()]
    }

    /// The lowest rank of `host`, which speaks for it in two-level algorithms.
    ///
    /// # Panics
    /// When there is no such host.
    pub fn leader_of(&self, host: u32) -> Rank {
        self.ranks_of(host)[0]
    }

    /// The leader of every host, in the order of the hosts.
    pub fn leaders(&self) -> Vec<Rank> {
        (0..self.host_count()).map(|host| self.leader_of(host)).collect()
    }

    /// Whether two ranks are on one host.
    ///
    /// # Panics
    /// When one of them is not a member of the group.
    pub fn same_host(&self, one: Rank, other: Rank) -> bool {
        self.host_of(one) == self.host_of(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(numbers: &[u32]) -> Vec<Rank> {
        numbers.iter().copied().map(Rank::new).collect()
    }

    #[test]
    fn hosts_are_numbered_as_they_appear() {
        let topology = Topology::of(["b", "a", "b", "c", "a"]);
        assert_eq!(topology.hosts(), [0, 1, 0, 2, 1]);
        assert_eq!(topology.host_count(), 3);
        assert_eq!(topology.ranks_of(1), ranks(&[1, 4]));
        assert_eq!(topology.leaders(), ranks(&[0, 1, 3]));
        let local: Vec<u32> = (0..5).map(|rank| topology.local_rank(Rank::new(rank))).collect();
        assert_eq!(local, [0, 0, 1, 0, 1]);
        assert!(topology.same_host(Rank::new(0), Rank::new(2)));
        assert!(!topology.same_host(Rank::new(0), Rank::new(1)));
    }

    #[test]
    fn a_part_is_numbered_again() {
        let topology = Topology::of(["b", "a", "b", "c", "a"]);
        let part = topology.restrict(&ranks(&[4, 3, 1]));
        assert_eq!(part.hosts(), [0, 1, 0]);
        assert_eq!(part.ranks_of(0), ranks(&[0, 2]));
    }
}
