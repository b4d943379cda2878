//! A rank's communicator, and the operations that it queues.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::functions::{Config, IN_PROGRESS, Raw, SUCCESS, begun, checked};
use super::{Nccl, NcclOp, NcclType, UniqueId};
use crate::driver::context::Context;
use crate::driver::event::EventState;
use crate::error::Result;
use crate::memory::span::Span;
use crate::stream::Stream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclPlace {
    pub rank: u32,
    pub world_size: u32,
}

#[derive(Clone, Debug)]
pub enum Message {
    Send(u32, Span),
    Recv(u32, Span),
}

/// A rank's membership in a group of NCCL. Dropping it gives up whatever it still does, without waiting for
/// other ranks: before, all ranks must be done with what they queued.
#[derive(Debug)]
pub struct NcclRank {
    raw: Raw,
    nccl: Arc<Nccl>,
    context: Context,
    rank: u32,
    world_size: u32,
}

// SAFETY: a communicator may be used from any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for NcclRank {}

impl NcclRank {
    /// Begins to join a group. It is joined once [`state`](Self::state) is done.
    pub fn join(
        nccl: &Arc<Nccl>,
        context: &Context,
        id: UniqueId,
        place: NcclPlace,
    ) -> Result<Self> {
        assert!(place.rank < place.world_size, "{place:?}");
        context.bind()?;
        let mut config = Config::never_blocking();
        let (rank, ranks) = (place.rank.cast_signed(), place.world_size.cast_signed());
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` and `config` are live and of the types that nccl.h states, the config of the size
        // and version that it names; the call writes the one and reads the other; a context is current.
        let result = unsafe { (nccl.functions.comm_init)(&mut raw, ranks, id, rank, &mut config) };
        begun("ncclCommInitRankConfig", result)?;
        Ok(Self {
            raw,
            nccl: Arc::clone(nccl),
            context: context.clone(),
            rank: place.rank,
            world_size: place.world_size,
        })
    }

    /// Whether what was begun is queued: joining, or an operation. Nothing else may be asked of it before.
    ///
    /// # Errors
    /// What it says: some rank failed.
    pub fn state(&mut self) -> Result<EventState> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is valid until drop; `state` is a live integer that the call writes.
        let result = unsafe { (self.nccl.functions.get_async_error)(self.raw, &mut state) };
        checked("ncclCommGetAsyncError", result)?;
        if state == IN_PROGRESS {
            return Ok(EventState::Pending);
        }
        checked("ncclCommGetAsyncError", state)?;
        Ok(EventState::Done)
    }

    /// Begins to queue a reduction of all ranks' data, in place, to all ranks.
    pub fn all_reduce(
        &mut self,
        stream: &Stream,
        data: &Span,
        kind: NcclType,
        op: NcclOp,
    ) -> Result<()> {
        let (address, count) = self.prepare(stream, data, kind);
        // SAFETY: the data are device memory of that many elements that is freed only after this context
        // is idle; stream and communicator are valid and of this context (nccl.h).
        let result = unsafe {
            (self.nccl.functions.all_reduce)(
                address,
                address,
                count,
                kind as c_int,
                op as c_int,
                self.raw,
                stream.raw().cast(),
            )
        };
        begun("ncclAllReduce", result)
    }

    /// Begins to queue reductions, in place, each to one rank: element by element of `parts`, the rank's
    /// number in the list.
    pub fn reduce_parts(
        &mut self,
        stream: &Stream,
        parts: &[(u32, Span)],
        kind: NcclType,
        op: NcclOp,
    ) -> Result<()> {
        self.together(|own| {
            for (root, part) in parts {
                own.assert_root(*root);
                let (address, count) = own.prepare(stream, part, kind);
                // SAFETY: as in `all_reduce`; the root is one of the ranks (`assert_root`).
                let result = unsafe {
                    (own.nccl.functions.reduce)(
                        address,
                        address,
                        count,
                        kind as c_int,
                        op as c_int,
                        root.cast_signed(),
                        own.raw,
                        stream.raw().cast(),
                    )
                };
                begun("ncclReduce", result)?;
            }
            Ok(())
        })
    }

    /// Begins to queue broadcasts of bytes, each from one rank: the rank's number in the list.
    pub fn broadcast_parts(&mut self, stream: &Stream, parts: &[(u32, Span)]) -> Result<()> {
        self.together(|own| {
            for (root, part) in parts {
                own.assert_root(*root);
                let (address, count) = own.prepare(stream, part, NcclType::U8);
                // SAFETY: as in `reduce_parts`.
                let result = unsafe {
                    (own.nccl.functions.broadcast)(
                        address,
                        address,
                        count,
                        NcclType::U8 as c_int,
                        root.cast_signed(),
                        own.raw,
                        stream.raw().cast(),
                    )
                };
                begun("ncclBroadcast", result)?;
            }
            Ok(())
        })
    }

    /// Begins to queue messages to and from other ranks: all of them at once, but for those with the same
    /// peer, which keep their order. Each needs its counterpart, equally long, among those of its peer.
    ///
    /// # Panics
    /// If a peer is not another rank of the group.
    pub fn messages(&mut self, stream: &Stream, messages: &[Message]) -> Result<()> {
        self.together(|own| {
            for message in messages {
                let (Message::Send(peer, data) | Message::Recv(peer, data)) = message;
                own.assert_other(*peer);
                let (address, count) = own.prepare(stream, data, NcclType::U8);
                let (kind, peer) = (NcclType::U8 as c_int, peer.cast_signed());
                let stream = stream.raw().cast();
                let functions = &own.nccl.functions;
                let result = match message {
                    // SAFETY: as in `all_reduce`; the peer is one of the ranks (`assert_other`).
                    Message::Send(..) => unsafe {
                        (functions.send)(address, count, kind, peer, own.raw, stream)
                    },
                    // SAFETY: as above.
                    Message::Recv(..) => unsafe {
                        (functions.recv)(address, count, kind, peer, own.raw, stream)
                    },
                };
                begun("ncclSend or ncclRecv", result)?;
            }
            Ok(())
        })
    }

    /// Several operations as one, which begin and end together.
    fn together(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.context.bind()?;
        // SAFETY: it takes nothing; the group is ended below on this very thread (nccl.h).
        checked("ncclGroupStart", unsafe { (self.nccl.functions.group_start)() })?;
        let queued = body(self);
        // SAFETY: a group was started on this thread above.
        let ended = begun("ncclGroupEnd", unsafe { (self.nccl.functions.group_end)() });
        queued.and(ended)
    }

    /// The address and the elements of data that an operation is about.
    fn prepare(&self, stream: &Stream, data: &Span, kind: NcclType) -> (*mut c_void, usize) {
        assert!(
            stream.context().is_same(&self.context),
            "the stream and the communicator belong to different contexts"
        );
        assert!(
            data.len().is_multiple_of(kind.bytes()),
            "{} bytes are not a whole number of {kind:?}",
            data.len()
        );
        data.used_by(&self.context);
        (data.address() as *mut c_void, data.len() / kind.bytes())
    }

    #[track_caller]
    fn assert_root(&self, root: u32) {
        assert!(root < self.world_size, "rank {root} of {}", self.world_size);
    }

    #[track_caller]
    fn assert_other(&self, peer: u32) {
        self.assert_root(peer);
        assert_ne!(peer, self.rank, "a rank sends itself nothing");
    }
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: the communicator was made once and is given up once; the library is loaded.
        let _ = unsafe { (self.nccl.functions.comm_abort)(self.raw) };
    }
}
