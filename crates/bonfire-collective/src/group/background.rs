//! The operations that run in the background and give their buffer back.
//!
//! They run one after the other in the order of the calls, on one thread of the group.

use std::panic::Location;

use bonfire_plan::{Partition, Rank, ReduceOp};
use bytemuck::Zeroable;

use super::operations::Caller;
use super::{Core, Job, ProcessGroup};
use crate::blocks::Blocks;
use crate::buffer::Buffer;
use crate::patience::Eagerness;
use crate::work::{Completion, Work};
use crate::{CollectiveError, Element};

impl ProcessGroup {
    /// [`all_reduce`](Self::all_reduce) in the background; the buffer comes back with the result.
    #[track_caller]
    pub fn all_reduce_async<B: Buffer>(&self, mut data: B, reduce: ReduceOp) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.all_reduce(caller, data.elements(), reduce)?;
            Ok(data)
        })
    }

    /// [`reduce`](Self::reduce) in the background.
    #[track_caller]
    pub fn reduce_async<B: Buffer>(&self, mut data: B, root: Rank, reduce: ReduceOp) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.reduce(caller, data.elements(), root, reduce)?;
            Ok(data)
        })
    }

    /// [`broadcast`](Self::broadcast) in the background.
    #[track_caller]
    pub fn broadcast_async<B: Buffer>(&self, mut data: B, root: Rank) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.broadcast(caller, data.elements(), root)?;
            Ok(data)
        })
    }

    /// [`reduce_scatter`](Self::reduce_scatter) in the background.
    #[track_caller]
    pub fn reduce_scatter_async<T: Element>(
        &self,
        mut data: Vec<T>,
        reduce: ReduceOp,
    ) -> Work<Vec<T>> {
        let caller = self.background_caller();
        let group = (self.world_size(), self.rank());
        self.start(move |core| {
            core.reduce_scatter(caller, &mut data, reduce, Partition::Balanced)?;
            Ok(super::own_shard(data, group.0, group.1))
        })
    }

    /// [`reduce_scatter_in_place`](Self::reduce_scatter_in_place) in the background.
    #[track_caller]
    pub fn reduce_scatter_in_place_async<B: Buffer>(
        &self,
        mut data: B,
        reduce: ReduceOp,
    ) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.reduce_scatter(caller, data.elements(), reduce, Partition::Balanced)?;
            Ok(data)
        })
    }

    /// [`all_gather`](Self::all_gather) in the background.
    #[track_caller]
    pub fn all_gather_async<T: Element>(&self, shard: &[T]) -> Work<Vec<T>> {
        self.all_gather_in_place_async(self.gather_buffer(shard))
    }

    /// [`all_gather_in_place`](Self::all_gather_in_place) in the background.
    #[track_caller]
    pub fn all_gather_in_place_async<B: Buffer>(&self, mut data: B) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.all_gather(caller, data.elements(), Partition::Balanced)?;
            Ok(data)
        })
    }

    /// [`all_gather_v`](Self::all_gather_v) in the background.
    #[track_caller]
    pub fn all_gather_v_async<B: Buffer>(&self, mut block: B) -> Work<Blocks<B::Element>> {
        let caller = self.background_caller();
        self.start(move |core| core.all_gather_v(caller, block.elements()))
    }

    /// [`gather`](Self::gather) in the background.
    #[track_caller]
    pub fn gather_async<B: Buffer>(
        &self,
        mut block: B,
        root: Rank,
    ) -> Work<Option<Vec<B::Element>>> {
        let caller = self.background_caller();
        self.start(move |core| {
            let block = block.elements();
            let is_root = core.me == root;
            let len = if is_root {
                block.len() * core.world_size.len()
            } else {
                0
            };
            let mut output = vec![B::Element::zeroed(); len];
            core.gather(caller, root, block, &mut output)?;
            Ok(is_root.then_some(output))
        })
    }

    /// [`scatter_into`](Self::scatter_into) in the background, to `output`.
    #[track_caller]
    pub fn scatter_async<B: Buffer>(
        &self,
        mut input: Vec<B::Element>,
        mut output: B,
        root: Rank,
    ) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.scatter(caller, root, input.elements(), output.elements())?;
            Ok(output)
        })
    }

    /// [`all_to_all`](Self::all_to_all) in the background.
    #[track_caller]
    pub fn all_to_all_async<B: Buffer>(&self, mut data: B) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.all_to_all(caller, data.elements())?;
            Ok(data)
        })
    }

    /// [`all_to_all_v`](Self::all_to_all_v) in the background.
    #[track_caller]
    pub fn all_to_all_v_async<B: Buffer>(
        &self,
        mut input: B,
        lengths: Vec<usize>,
    ) -> Work<Blocks<B::Element>> {
        let caller = self.background_caller();
        self.start(move |core| core.all_to_all_v(caller, input.elements(), &lengths))
    }

    /// [`send`](Self::send) in the background.
    #[track_caller]
    pub fn send_async<B: Buffer>(&self, mut data: B, target: Rank) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.send(caller, data.elements(), target)?;
            Ok(data)
        })
    }

    /// [`recv`](Self::recv) in the background.
    #[track_caller]
    pub fn recv_async<B: Buffer>(&self, mut data: B, source: Rank) -> Work<B> {
        let caller = self.background_caller();
        self.start(move |core| {
            core.recv(caller, data.elements(), source)?;
            Ok(data)
        })
    }

    /// [`exchange`](Self::exchange) in the background: what `peer` sent comes back in the buffer of
    /// what was sent to it.
    #[track_caller]
    pub fn exchange_async<T: Element>(&self, data: Vec<T>, peer: Rank) -> Work<Vec<T>> {
        let caller = self.background_caller();
        self.start(move |core| {
            let mut output = vec![T::zeroed(); data.len()];
            core.exchange(caller, peer, &data, &mut output)?;
            Ok(output)
        })
    }

    /// [`barrier`](Self::barrier) in the background: done once every rank has called it and all
    /// earlier operations of this rank are done.
    #[track_caller]
    pub fn barrier_async(&self) -> Work<()> {
        let caller = self.background_caller();
        self.start(move |core| core.barrier(caller))
    }

    /// Queues `body` behind all operations issued so far.
    fn start<R: Send + 'static>(
        &self,
        body: impl FnOnce(&Core) -> Result<R, CollectiveError> + Send + 'static,
    ) -> Work<R> {
        let (work, completion): (Work<R>, Completion<R>) = Work::new(self.rank());
        let run = Box::new(move |core: &Core| completion.complete(body(core)));
        let jobs = self.member.jobs();
        let jobs = jobs.as_ref().expect("jobs end with the last clone");
        // Under the lock, so that jobs are passed on in the order of their tickets.
        let core = &self.member.core;
        let (ticket, enqueued) = (core.turnstile.issue(), core.recorder.enqueue());
        // A communication thread that is gone drops the job, which completes the work with an error.
        let _ = jobs.send(Job {
            ticket,
            enqueued,
            run,
        });
        work
    }

    /// The caller computes meanwhile, and a spinning thread would take a core from it.
    #[track_caller]
    fn background_caller(&self) -> Caller {
        Caller {
            call_site: Location::caller(),
            name: self.name,
            eagerness: Eagerness::Sleep,
            timeout: self.timeout,
        }
    }
}
