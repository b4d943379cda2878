//! Who the other ranks are and how memory is shared with them.

use std::sync::Arc;

use bonfire_plan::Rank;
use bonfire_sys::cuda::{
    Context, CudaError, DeviceRegion, ImportedRegion, IpcHandle, Span, Stream,
};
use serde::{Deserialize, Serialize};

use super::agreement::agree;
use super::error::CudaGroupError;
use super::neighbours::Neighbours;
use super::options::{CudaOptions, CudaSync};
use crate::ProcessGroup;
use crate::transport::HostId;

/// What a rank tells the others about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    host: HostId,
    neighbours: [u8; 16],
    device: [u8; 16],
    device_name: String,
    multiprocessors: u32,
    options: String,
}

/// What all ranks know of each other, and what follows from it.
#[derive(Debug)]
pub(super) struct Peers {
    group: ProcessGroup,
    context: Context,
    neighbours: Neighbours,
    cards: Vec<Card>,
    shared: u64,
}

/// Why memory is not shared.
#[derive(Debug, thiserror::Error)]
enum ShareError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("it cannot open the memory of rank {peer}: {source}")]
    Open { peer: Rank, source: CudaError },
    #[error(
        "rank {peer} is in this process but shares nothing: give all ranks of a process clones of one \
         Neighbours"
    )]
    Absent { peer: Rank },
    #[error(
        "rank {peer} sent {bytes} bytes where a handle has {}",
        IpcHandle::BYTES
    )]
    Handle { peer: Rank, bytes: usize },
}

impl Peers {
    /// Introduces the ranks to each other.
    pub(super) fn meet(
        group: &ProcessGroup,
        context: &Context,
        neighbours: &Neighbours,
        options: &CudaOptions,
    ) -> Result<Self, CudaGroupError> {
        let device = context.device();
        let mine = Card {
            host: HostId::of_this_process(None),
            neighbours: neighbours.id(),
            device: device.uuid(),
            device_name: device.name().to_owned(),
            multiprocessors: device.multiprocessors(),
            options: options.agreed(),
        };
        let text = serde_json::to_vec(&mine).expect("a card is plain data");
        let cards: Result<Vec<Card>, _> = group
            .all_gather_bytes(&text)?
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect();
        let cards = agree(group, cards)?;
        let peers = Self {
            group: group.clone(),
            context: context.clone(),
            neighbours: neighbours.clone(),
            cards,
            shared: 0,
        };
        agree(group, peers.check())?;
        Ok(peers)
    }

    fn check(&self) -> Result<(), String> {
        let mine = &self.cards[self.group.rank().index()];
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

    /// How ranks can wait for each other: what was asked for, or the best that is safe.
    pub(super) fn sync(&self, asked: Option<CudaSync>) -> CudaSync {
        asked.unwrap_or(if self.processes_share_a_device() {
            CudaSync::Stream
        } else {
            CudaSync::Kernel
        })
    }

    pub(super) fn processes_share_a_device(&self) -> bool {
        self.pairs()
            .any(|(a, b)| a.device == b.device && a.neighbours != b.neighbours)
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

    /// The distinct devices and how many ranks are on the fullest, for the log.
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

    fn is_neighbour(&self, peer: Rank) -> bool {
        self.cards[peer.index()].neighbours == self.neighbours.id()
    }

    /// Allocates `len` bytes on every rank, zero, and opens them to all: one span per rank. Every rank calls
    /// it in the same order, and none waits on the device meanwhile.
    pub(super) fn share(
        &mut self,
        stream: &Stream,
        len: usize,
    ) -> Result<Vec<Span>, CudaGroupError> {
        let me = self.group.rank();
        let number = self.shared;
        self.shared += 1;
        let made = DeviceRegion::allocate(&self.context, len).and_then(|own| {
            stream.fill(&own.span(), 0)?;
            stream.synchronize()?;
            let handle = if self.has_other_processes() {
                IpcHandle::export(&own)?.to_bytes().to_vec()
            } else {
                Vec::new()
            };
            Ok((own, handle))
        });
        let (own, handle) = agree(&self.group, made)?;
        self.neighbours.put(number, me, Arc::clone(&own));
        let handles = self.group.all_gather_bytes(&handle)?;
        let opened = self.open_all(number, len, &handles);
        let spans = agree(&self.group, opened);
        self.neighbours.take_back(number, me);
        let mut spans = spans?;
        spans[me.index()] = own.span();
        Ok(spans)
    }

    fn open_all(
        &self,
        number: u64,
        len: usize,
        handles: &[Vec<u8>],
    ) -> Result<Vec<Span>, ShareError> {
        let ranks = self.group.world_size().ranks();
        ranks
            .map(|peer| self.open(number, len, peer, &handles[peer.index()]))
            .collect()
    }

    fn open(&self, number: u64, len: usize, peer: Rank, handle: &[u8]) -> Result<Span, ShareError> {
        if self.is_neighbour(peer) {
            let region = self.neighbours.get(number, peer);
            let region = region.ok_or(ShareError::Absent { peer })?;
            self.context
                .enable_peer(region.context())
                .map_err(|source| ShareError::Open { peer, source })?;
            return Ok(region.span());
        }
        let bytes = handle.try_into().map_err(|_| ShareError::Handle {
            peer,
            bytes: handle.len(),
        })?;
        let region = ImportedRegion::open(&self.context, IpcHandle::from_bytes(bytes), len)
            .map_err(|source| ShareError::Open { peer, source })?;
        Ok(region.span())
    }
}
