//! What the ranks tell each other about themselves, and what follows from it alike on all of them.

use bonfire_plan::Rank;
use bonfire_sys::cuda::Context;
use serde::{Deserialize, Serialize};

use super::neighbours::Neighbours;
use super::options::{CudaOptions, CudaSync};
use crate::transport::HostId;

/// What a rank tells the others about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    host: HostId,
    neighbours: [u8; 16],
    device: [u8; 16],
    device_name: String,
    multiprocessors: u32,
    /// The driver ends kernels of its device that take long.
    limits_kernels: bool,
    options: String,
}

/// Those of all ranks, in their order.
#[derive(Clone, Debug)]
pub(super) struct Cards {
    cards: Vec<Card>,
}

/// How ranks wait for each other, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncChoice {
    pub(super) sync: CudaSync,
    /// A rank whose device ends kernels that wait long.
    pub(super) limited: Option<Rank>,
}

impl Card {
    pub(super) fn of(context: &Context, neighbours: &Neighbours, options: &CudaOptions) -> Self {
        let device = context.device();
        Self {
            host: HostId::of_this_process(None),
            neighbours: neighbours.id(),
            device: device.uuid(),
            device_name: device.name().to_owned(),
            multiprocessors: device.multiprocessors(),
            limits_kernels: device.limits_kernel_time(),
            options: options.agreed(),
        }
    }
}

impl Cards {
    pub(super) fn new(cards: Vec<Card>) -> Self {
        assert!(!cards.is_empty(), "a group has a rank");
        Self { cards }
    }

    /// Why this rank cannot be in one group with the others.
    pub(super) fn check(&self, me: Rank) -> Result<(), String> {
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
    pub(super) fn sync(&self, asked: Option<CudaSync>) -> SyncChoice {
        let limited = self.cards.iter().position(|card| card.limits_kernels);
        let limited = limited.map(|rank| Rank::new(rank as u32));
        let safe = if limited.is_some() || self.processes_share_a_device() {
            CudaSync::Stream
        } else {
            CudaSync::Kernel
        };
        SyncChoice {
            sync: asked.unwrap_or(safe),
            limited,
        }
    }

    fn processes_share_a_device(&self) -> bool {
        self.pairs()
            .any(|(a, b)| a.device == b.device && a.neighbours != b.neighbours)
    }

    /// Whether threads of one process do.
    pub(super) fn threads_share_a_device(&self) -> bool {
        self.pairs()
            .any(|(a, b)| a.device == b.device && a.neighbours == b.neighbours)
    }

    /// Whether any two ranks are on different devices.
    pub(super) fn are_on_several_devices(&self) -> bool {
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
    pub(super) fn waiting_blocks_max(&self) -> u32 {
        let share = |card: &Card| {
            let on_it = self
                .cards
                .iter()
                .filter(|other| other.device == card.device);
            card.multiprocessors / (on_it.count().max(1) as u32)
        };
        self.cards.iter().map(share).min().unwrap_or(1).max(1)
    }

    /// The distinct devices and how many ranks there are, for the log.
    pub(super) fn summary(&self) -> String {
        let mut devices: Vec<&[u8; 16]> = self.cards.iter().map(|card| &card.device).collect();
        devices.sort_unstable();
        devices.dedup();
        format!(
            "{} ranks on {} x {}",
            self.cards.len(),
            devices.len(),
            self.cards[0].device_name
        )
    }

    /// Whether any rank is in another process.
    pub(super) fn has_other_processes(&self) -> bool {
        self.pairs().any(|(a, b)| a.neighbours != b.neighbours)
    }

    /// Whether a rank is in the process of these neighbours.
    pub(super) fn is_neighbour(&self, peer: Rank, neighbours: &Neighbours) -> bool {
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
    fn waiting_blocks_of_ranks_that_share_a_device_fit_beside_each_other() {
        assert_eq!(cards(&[(0, 0), (1, 1)]).waiting_blocks_max(), 12);
        assert_eq!(cards(&[(0, 0), (0, 0), (1, 1)]).waiting_blocks_max(), 6);
        assert_eq!(cards(&[(0, 0); 13]).waiting_blocks_max(), 1);
    }
}
