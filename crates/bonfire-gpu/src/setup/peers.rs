//! Who the other ranks are and how memory is shared with them.

use std::sync::Arc;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::{Context, CudaError, DeviceRegion, ImportedRegion, IpcHandle, Span, Stream};
use bonfire_plan::Rank;

use crate::device::neighbours::Neighbours;
use crate::error::CudaGroupError;
use crate::life::agree;
use crate::options::CudaOptions;
use crate::setup::card::{Card, Cards};
use crate::setup::reach::{Refusal, gather};
use crate::setup::shared::Shared;

/// What all ranks know of each other, and what follows from it.
#[derive(Debug)]
pub(crate) struct Peers {
    group: ProcessGroup,
    context: Context,
    neighbours: Neighbours,
    cards: Cards,
    shared: u64,
}

/// Why memory is not shared.
#[derive(Debug, thiserror::Error)]
enum ShareError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
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
    pub(crate) fn meet(
        group: &ProcessGroup,
        context: &Context,
        neighbours: &Neighbours,
        options: &CudaOptions,
    ) -> Result<Self, CudaGroupError> {
        let mine = Card::of(context, neighbours, options);
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
            cards: Cards::new(cards),
            shared: 0,
        };
        agree(group, peers.cards.check(group.rank()))?;
        Ok(peers)
    }

    /// What the ranks have told each other.
    pub(crate) fn cards(&self) -> &Cards {
        &self.cards
    }

    fn is_neighbour(&self, peer: Rank) -> bool {
        self.cards.is_neighbour(peer, &self.neighbours)
    }

    /// Allocates `len` bytes on every rank, zero, and opens them to all. Every rank calls it in the same
    /// order, and none waits on the device meanwhile.
    pub(crate) fn share(&mut self, stream: &Stream, len: usize) -> Result<Shared, CudaGroupError> {
        self.try_share(stream, len)?.map_err(|refusals| {
            let first = refusals.first().expect("somebody has refused");
            CudaGroupError::SetUp {
                rank: first.by(),
                reason: first.to_string(),
            }
        })
    }

    /// [`share`](Self::share), or which ranks do not reach which memory, the same on all ranks.
    pub(crate) fn try_share(
        &mut self,
        stream: &Stream,
        len: usize,
    ) -> Result<Result<Shared, Vec<Refusal>>, CudaGroupError> {
        let me = self.group.rank();
        let number = self.shared;
        self.shared += 1;
        let own = agree(&self.group, self.make(stream, len))?;
        let mut refusals = Vec::new();
        let handle = self.export(&own, &mut refusals);
        self.neighbours.put(number, me, Arc::clone(&own));
        let handles = self.group.all_gather_bytes(&handle)?;
        let opened = self.open_all((number, len), &handles, &mut refusals);
        let opened = agree(&self.group, opened);
        self.neighbours.take_back(number, me);
        let mut spans = opened?;
        let refusals = gather(&self.group, &refusals)?;
        if !refusals.is_empty() {
            // Nobody frees memory that another has open.
            drop(spans);
            self.group.barrier()?;
            return Ok(Err(refusals));
        }
        spans[me.index()] = own.span();
        Ok(Ok(Shared::of_ranks(spans, me)))
    }

    /// Allocates `len` bytes on every rank, zero, for each rank alone.
    pub(crate) fn keep(&self, stream: &Stream, len: usize) -> Result<Shared, CudaGroupError> {
        let own = agree(&self.group, self.make(stream, len))?;
        Ok(Shared::alone(own.span()))
    }

    fn make(&self, stream: &Stream, len: usize) -> Result<Arc<DeviceRegion>, CudaError> {
        let own = DeviceRegion::allocate(&self.context, len)?;
        stream.fill(&own.span(), 0)?;
        stream.synchronize()?;
        Ok(own)
    }

    /// What other processes need to open the region; empty if there are none, or it is refused.
    fn export(&self, own: &DeviceRegion, refusals: &mut Vec<Refusal>) -> Vec<u8> {
        if !self.cards.has_other_processes() {
            return Vec::new();
        }
        match IpcHandle::export(own) {
            Ok(handle) => handle.to_bytes().to_vec(),
            Err(error) => {
                let me = self.group.rank();
                let others = self.group.world_size().ranks();
                let others = others.filter(|peer| !self.is_neighbour(*peer));
                refusals.extend(others.map(|peer| {
                    Refusal::new(
                        peer,
                        me,
                        format!("it is not given to other processes: {error}"),
                    )
                }));
                Vec::new()
            }
        }
    }

    /// The memory of all ranks, as far as this one reaches it: if any is missing, the order is not that
    /// of the ranks.
    fn open_all(
        &self,
        (number, len): (u64, usize),
        handles: &[Vec<u8>],
        refusals: &mut Vec<Refusal>,
    ) -> Result<Vec<Span>, ShareError> {
        let mut spans = Vec::new();
        for peer in self.group.world_size().ranks() {
            let handle = &handles[peer.index()];
            if handle.is_empty() && !self.is_neighbour(peer) {
                continue; // It has told why.
            }
            match self.open((number, len), peer, handle)? {
                Ok(span) => spans.push(span),
                Err(error) if error.is_sticky() => return Err(error.into()),
                Err(error) => refusals.push(Refusal::new(self.group.rank(), peer, error)),
            }
        }
        Ok(spans)
    }

    /// The memory of a rank, or why this one does not reach it.
    fn open(
        &self,
        (number, len): (u64, usize),
        peer: Rank,
        handle: &[u8],
    ) -> Result<Result<Span, CudaError>, ShareError> {
        if self.is_neighbour(peer) {
            let region = self.neighbours.get(number, peer);
            let region = region.ok_or(ShareError::Absent { peer })?;
            let enabled = self.context.enable_peer(region.context());
            return Ok(enabled.map(|()| region.span()));
        }
        let bytes = handle.try_into().map_err(|_| ShareError::Handle {
            peer,
            bytes: handle.len(),
        })?;
        let region = ImportedRegion::open(&self.context, IpcHandle::from_bytes(bytes), len);
        Ok(region.map(|region| region.span()))
    }
}
