//! What the ranks report to each other about themselves, and what follows from it alike on all of them.

use bonfire_collective::HostId;
use bonfire_cuda::{CONNECTIONS_VARIABLE, Context};
use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

use crate::device::neighbours::Neighbours;
use crate::options::{CudaOptions, CudaSync};

/// What a rank reports to the others about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    host: HostId,
    neighbours: [u8; 16],
    device: [u8; 16],
    device_name: String,
    multiprocessors: u32,
    /// The driver ends kernels of its device that take long.
    limits_kernels: bool,
    /// Its memory can be given by a descriptor.
    gives_descriptors: bool,
    /// The queues that the streams of its process have on the device.
    queues: u32,
    options: String,
}

/// The ranks of one process that share a device have more streams there than the driver has queues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ranks} ranks of one process need {} queues on a device, and the driver has {queues}: set {CONNECTIONS_VARIABLE}={} \
     before the program starts, or let ranks be processes",
    queues_of(*ranks), queues_of(*ranks).min(QUEUES_MAX)
)]
pub(crate) struct Crowd {
    pub(crate) rank: Rank,
    ranks: u32,
    queues: u32,
}

/// A rank's streams that others may wait for, each while another waits: that of its operations, and that
/// which frees it.
const STREAMS: u32 = 2;

/// The stream of the thread that makes the data: CubeCL has one for each thread that computes. What
/// it holds must not stand behind another rank's wait for it.
const COMPUTE: u32 = 1;

/// The streams that CubeCL always has on a device: one for what it frees, one for its own collectives.
const COMMON: u32 = 2;

/// The queues that `ranks` ranks of one process need on a device that they share.
const fn queues_of(ranks: u32) -> u32 {
    ranks * (STREAMS + COMPUTE) + COMMON
}

/// The driver has no more.
const QUEUES_MAX: u32 = 32;

/// Those of all ranks, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Cards {
    cards: Vec<Card>,
}

/// How ranks wait for each other, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncChoice {
    pub(crate) sync: CudaSync,
    /// A rank whose device ends kernels that wait long.
    pub(crate) limited: Option<Rank>,
}

impl Card {
    pub(crate) fn of(context: &Context, neighbours: &Neighbours, options: &CudaOptions) -> Self {
        let device = context.device();
        Self {
            host: HostId::of_this_process(None),
            neighbours: neighbours.id(),
            device: device.uuid(),
            device_name: device.name().to_owned(),
            multiprocessors: device.multiprocessors(),
            limits_kernels: device.limits_kernel_time(),
            gives_descriptors: device.gives_descriptors(),
            queues: device.connections(),
            options: options.agreed(),
        }
    }
}

impl Cards {
    pub(crate) fn new(cards: Vec<Card>) -> Self {
        assert!(!cards.is_empty(), "a group has a rank");
        Self { cards }
    }

    /// Why this rank cannot be in one group with the others.
    pub(crate) fn check(&self, me: Rank) -> Result<(), String> {
        let mine = &self.cards[me.index()];
        for (peer, card) in self.cards.iter().enumerate() {
            if card.host != mine.host {
                return Err(format!(
                    "rank {peer} is on another host; a group of GPUs spans one host: split the group by \
                     host"
                ));
            }
            if card.options != mine.options {
                return Err(format!(
                    "it has {}, but rank {peer} has {}",
                    mine.options, card.options
                ));
            }
        }
        Ok(())
    }

    /// How ranks wait for each other: as was asked for, or the best that is safe. A kernel that waits for a
    /// rank that still compiles is one that takes long.
    pub(crate) fn sync(&self, asked: Option<CudaSync>) -> SyncChoice {
        let limited = self.cards.iter().position(|card| card.limits_kernels);
        let limited = limited.map(|rank| Rank::new(rank as u32));
        let safe = if limited.is_some() || self.processes_share_a_device() {
            CudaSync::Stream
        } else {
            CudaSync::Kernel
        };
        SyncChoice { sync: asked.unwrap_or(safe), limited }
    }

    /// Whether streams that wait for other ranks could stand in a queue before those that the
    /// others wait for, so that no rank ever continues.
    pub(crate) fn uncrowded(&self) -> Result<(), Crowd> {
        if self.cards.len() == 1 {
            return Ok(()); // It waits for nobody.
        }
        for (rank, card) in self.cards.iter().enumerate() {
            let ranks = self.in_context_of(card);
            if queues_of(ranks) > card.queues {
                return Err(Crowd { rank: Rank::new(rank as u32), ranks, queues: card.queues });
            }
        }
        Ok(())
    }

    /// The streams that a ring or a chain may have, of those that are asked for. One is that of all operations;
    /// more must each have a queue.
    pub(crate) fn lanes(&self, asked: u32) -> u32 {
        let most = |card: &Card| {
            let ranks = self.in_context_of(card);
            card.queues.saturating_sub(queues_of(ranks)) / ranks
        };
        let most = self.cards.iter().map(most).min().unwrap_or(asked);
        asked.min(most).max(1)
    }

    /// The ranks that share process and device with one, and that one.
    fn in_context_of(&self, card: &Card) -> u32 {
        let same =
            |other: &&Card| other.device == card.device && other.neighbours == card.neighbours;
        self.cards.iter().filter(same).count() as u32
    }

    fn processes_share_a_device(&self) -> bool {
        self.pairs().any(|(a, b)| a.device == b.device && a.neighbours != b.neighbours)
    }

    pub(crate) fn share_a_process(&self) -> bool {
        self.pairs().any(|(a, b)| a.neighbours == b.neighbours)
    }

    /// Whether any two ranks are on different devices.
    pub(crate) fn are_on_several_devices(&self) -> bool {
        self.pairs().any(|(a, b)| a.device != b.device)
    }

    fn pairs(&self) -> impl Iterator<Item = (&Card, &Card)> {
        let cards = &self.cards;
        cards
            .iter()
            .enumerate()
            .flat_map(move |(index, a)| cards[..index].iter().map(move |b| (a, b)))
    }

    /// Blocks that each rank may keep waiting on a device, so that those of all its ranks fit beside each
    /// other with at most one per multiprocessor.
    pub(crate) fn waiting_blocks_max(&self) -> u32 {
        let share = |card: &Card| {
            let on_it = self.cards.iter().filter(|other| other.device == card.device);
            card.multiprocessors / (on_it.count().max(1) as u32)
        };
        self.cards.iter().map(share).min().unwrap_or(1).max(1)
    }

    /// The distinct devices and how many ranks there are, for the log.
    pub(crate) fn summary(&self) -> String {
        let mut devices: Vec<&[u8; 16]> = self.cards.iter().map(|card| &card.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let (ranks, devices, name) = (self.cards.len(), devices.len(), &self.cards[0].device_name);
        format!("{ranks} ranks on {devices} x {name}")
    }

    pub(crate) fn has_other_processes(&self) -> bool {
        self.pairs().any(|(a, b)| a.neighbours != b.neighbours)
    }

    pub(crate) fn are_apart(&self, a: u32, b: u32) -> bool {
        let [a, b] = [a, b].map(|rank| self.cards.get(rank as usize));
        a.map(|card| card.neighbours) != b.map(|card| card.neighbours)
    }

    pub(crate) fn give_descriptors(&self) -> bool {
        self.cards.iter().all(|card| card.gives_descriptors)
    }

    /// Whether a rank is in the process of these neighbours.
    pub(crate) fn is_neighbour(&self, peer: Rank, neighbours: &Neighbours) -> bool {
        self.cards[peer.index()].neighbours == neighbours.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of ranks in this process and on this device each.
    fn cards(places: &[(u8, u8)]) -> Cards {
        let card = |&(process, device): &(u8, u8)| Card {
            host: HostId::of_this_process(None),
            neighbours: [process; 16],
            device: [device; 16],
            device_name: "a GPU".to_owned(),
            multiprocessors: 12,
            limits_kernels: false,
            gives_descriptors: true,
            queues: 8,
            options: String::new(),
        };
        Cards::new(places.iter().map(card).collect())
    }

    #[test]
    fn ranks_wait_in_kernels_where_those_run_beside_each_other() {
        for places in [&[(0, 0), (1, 1)][..], &[(0, 0), (0, 0)], &[(0, 0), (0, 1)]] {
            let choice = cards(places).sync(None);
            assert_eq!(choice.sync, CudaSync::Kernel, "{places:?}");
            assert_eq!(choice.limited, None);
        }
        let choice = cards(&[(0, 0), (1, 0)]).sync(None);
        assert_eq!(choice.sync, CudaSync::Stream);
    }

    #[test]
    fn no_kernel_waits_where_one_device_ends_kernels_that_take_long() {
        let mut ranks = cards(&[(0, 0), (1, 1), (2, 2)]);
        ranks.cards[1].limits_kernels = true;
        let choice = ranks.sync(None);
        assert_eq!(choice.sync, CudaSync::Stream);
        assert_eq!(choice.limited, Some(Rank::new(1)));
        // Unless that is asked for.
        let asked = ranks.sync(Some(CudaSync::Kernel));
        assert_eq!(asked.sync, CudaSync::Kernel);
        assert_eq!(asked.limited, Some(Rank::new(1)));
    }

    #[test]
    fn the_streams_of_all_ranks_of_a_process_find_queues() {
        // A rank for each device, or for each process.
        for places in [&[(0, 0); 1][..], &[(0, 0), (0, 1)], &[(0, 0), (1, 0)]] {
            assert_eq!(cards(places).lanes(4), 3, "{places:?}");
            assert_eq!(cards(places).uncrowded(), Ok(()));
        }
        for (ranks, queues, lanes) in [(2, 8, 1), (2, 32, 8), (4, 32, 4), (8, 32, 1), (10, 32, 1)] {
            let mut shared = cards(&vec![(0, 0); ranks]);
            for card in &mut shared.cards {
                card.queues = queues;
            }
            assert_eq!(shared.lanes(8), lanes, "{ranks} ranks, {queues} queues");
            assert_eq!(shared.uncrowded(), Ok(()));
        }
        // The process that has fewest decides for all.
        let mut apart = cards(&[(0, 0), (1, 1), (2, 2)]);
        apart.cards[2].queues = 7;
        assert_eq!(apart.lanes(4), 2);
    }

    #[test]
    fn ranks_with_more_streams_than_queues_learn_what_to_do() {
        // Two streams of each, CubeCL's of each, and two that CubeCL has anyway.
        let crowd = cards(&[(0, 0); 3]).uncrowded().unwrap_err();
        assert_eq!(
            crowd.to_string(),
            "3 ranks of one process need 11 queues on a device, and the driver has 8: set \
             CUDA_DEVICE_MAX_CONNECTIONS=11 before the program starts, or let ranks be processes"
        );
        let mut few_queues = cards(&[(0, 0), (1, 1)]);
        few_queues.cards[1].queues = 4;
        let crowd = few_queues.uncrowded().unwrap_err();
        assert_eq!(crowd.rank, Rank::new(1));
        // A lone rank waits for nobody.
        let mut alone = cards(&[(0, 0)]);
        alone.cards[0].queues = 1;
        assert_eq!(alone.uncrowded(), Ok(()));
    }

    #[test]
    fn waiting_blocks_of_ranks_that_share_a_device_fit_beside_each_other() {
        assert_eq!(cards(&[(0, 0), (1, 1)]).waiting_blocks_max(), 12);
        assert_eq!(cards(&[(0, 0), (0, 0), (1, 1)]).waiting_blocks_max(), 6);
        assert_eq!(cards(&[(0, 0); 13]).waiting_blocks_max(), 1);
    }
}
