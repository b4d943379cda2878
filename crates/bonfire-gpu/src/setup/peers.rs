//! Who the other ranks are and how memory is shared with them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::{Context, CudaError, DeviceRegion, ImportedRegion, IpcHandle, Span, Stream};
use bonfire_plan::Rank;

use crate::device::neighbours::Neighbours;
use crate::error::{CudaGroupError, Result};
use crate::life::agree;
use crate::options::CudaOptions;
use crate::setup::card::{Card, Cards};
use crate::setup::descriptors::exchange;
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
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Handles of CUDA IPC, which are bytes.
    Handles,
    /// Descriptors of open files, where handles are refused.
    Descriptors,
}

/// What a rank of another process has given.
enum Given {
    Handle(Vec<u8>),
    Descriptor(OwnedFd, usize),
}

#[derive(Debug, thiserror::Error)]
enum ShareError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(
        "rank {peer} is in this process but shares nothing: give all ranks of a process clones of one \
         Neighbours"
    )]
    Absent { peer: Rank },
    #[error("rank {peer} sent {bytes} bytes where a handle has {}", IpcHandle::BYTES)]
    Handle { peer: Rank, bytes: usize },
}

impl Peers {
    pub(crate) fn meet(
        group: &ProcessGroup,
        context: &Context,
        neighbours: &Neighbours,
        options: &CudaOptions,
    ) -> Result<Self> {
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
            way: Way::Handles,
        };
        agree(group, peers.cards.check(group.rank()))?;
        Ok(peers)
    }

    /// What the ranks have reported to each other.
    pub(crate) fn cards(&self) -> &Cards {
        &self.cards
    }

    fn is_neighbour(&self, peer: Rank) -> bool {
        self.cards.is_neighbour(peer, &self.neighbours)
    }

    /// Allocates `len` bytes on every rank, zero, and opens them to all. Every rank calls it in the same
    /// order, and none waits on the device meanwhile.
    pub(crate) fn share(&mut self, stream: &Stream, len: usize) -> Result<Shared> {
        self.try_share(stream, len)?.map_err(|refusals| {
            let first = refusals.first().expect("somebody has refused");
            CudaGroupError::SetUp { rank: first.by(), reason: first.to_string() }
        })
    }

    /// [`share`](Self::share), or which ranks do not reach which memory, the same on all ranks.
    pub(crate) fn try_share(
        &mut self,
        stream: &Stream,
        len: usize,
    ) -> Result<Result<Shared, Vec<Refusal>>> {
        let refusals = match self.try_share_by(self.way, stream, len)? {
            Err(refusals) if self.way == Way::Handles && self.may_give_descriptors(&refusals) => {
                refusals
            }
            done => return Ok(done),
        };
        match self.try_share_by(Way::Descriptors, stream, len)? {
            Ok(shared) => {
                self.way = Way::Descriptors;
                if self.group.rank() == Rank::new(0) {
                    tracing::info!(
                        "rank 0: memory goes to other processes by descriptors, because {}",
                        refusals[0]
                    );
                }
                Ok(Ok(shared))
            }
            Err(more) => Ok(Err([refusals, more].concat())),
        }
    }

    /// Whether descriptors may help where handles did not: between processes, on devices that have them.
    fn may_give_descriptors(&self, refusals: &[Refusal]) -> bool {
        let between_processes = |refusal: &Refusal| self.cards.are_apart(refusal.by, refusal.of);
        self.cards.give_descriptors() && refusals.iter().any(between_processes)
    }

    fn try_share_by(
        &mut self,
        way: Way,
        stream: &Stream,
        len: usize,
    ) -> Result<Result<Shared, Vec<Refusal>>> {
        let me = self.group.rank();
        let number = self.shared;
        self.shared += 1;
        let own = agree(&self.group, self.make(way, stream, len))?;
        let mut refusals = Vec::new();
        self.neighbours.put(number, me, Arc::clone(&own));
        let given = self.exchange(way, &own, &mut refusals)?;
        let opened = self.open_all(number, len, given, &mut refusals);
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
    pub(crate) fn keep(&self, stream: &Stream, len: usize) -> Result<Shared> {
        let own = agree(&self.group, self.make(Way::Handles, stream, len))?;
        Ok(Shared::alone(own.span()))
    }

    fn make(&self, way: Way, stream: &Stream, len: usize) -> Result<Arc<DeviceRegion>, CudaError> {
        let own = match way {
            Way::Handles => DeviceRegion::allocate(&self.context, len)?,
            Way::Descriptors => DeviceRegion::allocate_for_descriptor(&self.context, len)?,
        };
        stream.fill(&own.span(), 0)?;
        stream.synchronize()?;
        Ok(own)
    }

    /// Gives the region to ranks of other processes; what each of those has given, in the order of the ranks. None of
    /// ranks of this process, and of those that gave nothing, which is among the refusals.
    fn exchange(
        &self,
        way: Way,
        own: &DeviceRegion,
        refusals: &mut Vec<Refusal>,
    ) -> Result<Vec<Option<Given>>> {
        let me = self.group.rank();
        let ranks = self.group.world_size().ranks();
        let others: Vec<Rank> = ranks.filter(|peer| !self.is_neighbour(*peer)).collect();
        let mut given: Vec<Option<Given>> = Vec::new();
        given.resize_with(self.group.world_size().len(), || None);
        if way == Way::Descriptors {
            let own = agree(&self.group, own.descriptor())?;
            match exchange(&self.group, &others, &own.0, own.1)? {
                Ok(descriptors) => {
                    for (peer, (file, bytes)) in others.iter().zip(descriptors) {
                        given[peer.index()] = Some(Given::Descriptor(file, bytes));
                    }
                }
                Err(error) => {
                    let reason = format!("its descriptor did not come: {error}");
                    let lost = others.iter().map(|peer| Refusal::new(me, *peer, &reason));
                    refusals.extend(lost);
                }
            }
            return Ok(given);
        }
        let mut handle = Vec::new();
        if self.cards.has_other_processes() {
            match IpcHandle::export(own) {
                Ok(own) => handle.extend(own.bytes),
                Err(error) => {
                    let reason = format!("it is not given to other processes: {error}");
                    let without = others.iter().map(|peer| Refusal::new(*peer, me, &reason));
                    refusals.extend(without);
                }
            }
        }
        let handles = self.group.all_gather_bytes(&handle)?;
        for (given, (peer, handle)) in given.iter_mut().zip(handles.into_iter().enumerate()) {
            // A rank that gave none has reported why.
            if !handle.is_empty() && others.contains(&Rank::new(peer as u32)) {
                *given = Some(Given::Handle(handle));
            }
        }
        Ok(given)
    }

    /// The memory of all ranks, as far as this one reaches it: if any is missing, the order is not that of the ranks.
    fn open_all(
        &self,
        number: u64,
        len: usize,
        given: Vec<Option<Given>>,
        refusals: &mut Vec<Refusal>,
    ) -> Result<Vec<Span>, ShareError> {
        let mut spans = Vec::new();
        for (peer, given) in self.group.world_size().ranks().zip(given) {
            let opened = if self.is_neighbour(peer) {
                let region = self.neighbours.get(number, peer);
                let region = region.ok_or(ShareError::Absent { peer })?;
                region.open_to(&self.context).map(|()| region.span())
            } else if let Some(given) = given {
                self.open(peer, given, len)?
            } else {
                continue; // A rank has reported why.
            };
            match opened {
                Ok(span) => spans.push(span),
                Err(error) if error.is_sticky() => return Err(error.into()),
                Err(error) => refusals.push(Refusal::new(self.group.rank(), peer, error)),
            }
        }
        Ok(spans)
    }

    /// The memory of a rank of another process, or why this one does not reach it.
    fn open(
        &self,
        peer: Rank,
        given: Given,
        len: usize,
    ) -> Result<Result<Span, CudaError>, ShareError> {
        let region = match given {
            Given::Handle(handle) => {
                let bytes = handle.len();
                let handle = handle.try_into();
                let bytes = handle.map_err(|_| ShareError::Handle { peer, bytes })?;
                ImportedRegion::open(&self.context, IpcHandle { bytes }, len)
            }
            Given::Descriptor(file, bytes) => {
                ImportedRegion::open_descriptor(&self.context, bytes, file.as_fd(), len)
            }
        };
        Ok(region.map(|region| region.span()))
    }
}
