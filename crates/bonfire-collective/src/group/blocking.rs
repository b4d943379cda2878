//! The operations that return when they are done. The errors of all are in [`CollectiveError`](crate::CollectiveError).

use std::time::Duration;

use bonfire_plan::{Collective, Partition, Rank, ReduceOp, shard_range};
use bytemuck::Pod;

use super::ProcessGroup;
use crate::Element;
use crate::exec::executor::{Caller, Memory};
use crate::group::blocks::Blocks;
use crate::health::wait::Eagerness;
use crate::rendezvous::group_error::Result;

impl ProcessGroup {
    /// The same membership, whose operations may take `timeout` each instead of
    /// [`GroupOptions::timeout`](crate::GroupOptions::timeout): for those of which it is known that some
    /// rank does something long before it comes, or that none should. Each rank counts its own wait, so
    /// the ranks should agree on it, which nothing checks; the first whose time is up ends the group.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use bonfire_collective::{GroupOptions, ProcessGroup, Rank, WorldSize};
    /// # let one = WorldSize::new(1)?;
    /// # let group = ProcessGroup::local(one, GroupOptions::default())?.remove(0);
    /// let patient = group.with_timeout(Duration::from_secs(1800));
    /// let mut vocabulary = [0_u8; 4];
    /// // Rank 0 reads the vocabulary from a slow disk; the others wait here.
    /// patient.broadcast(&mut vocabulary, Rank::new(0))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// How long an operation of this handle may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Replaces every element by its reduction over all ranks, folded in the order of the ranks.
    ///
    /// After an error the content of `data` is unspecified.
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, data: &mut [T], reduce: ReduceOp) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.all_reduce(caller, data, reduce))
    }

    /// [`all_reduce`](Self::all_reduce) of `input`, which stays as it is, to `output`, which is as long.
    /// The bits are the same, and some ranks may call one and some the other.
    ///
    /// After an error the content of `output` is unspecified.
    #[track_caller]
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduce: ReduceOp,
    ) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| {
            core.require_len("all_reduce_into", "an output", output.len(), input.len())?;
            let request = caller.reduction(Collective::AllReduce, reduce, input.len());
            core.run(&request, Memory::Apart { input, output })
        })
    }

    /// [`all_reduce`](Self::all_reduce) of many tensors as one operation: for small ones, the latency
    /// of one. The result is the same, bit for bit.
    #[track_caller]
    pub fn all_reduce_coalesced<T: Element + Pod>(
        &self,
        tensors: &mut [&mut [T]],
        reduce: ReduceOp,
    ) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.all_reduce_coalesced(caller, tensors, reduce))
    }

    /// Reduces to the root: its `data` becomes the reduction over all ranks. On the other ranks the
    /// content is unspecified afterwards.
    #[track_caller]
    pub fn reduce<T: Element>(&self, data: &mut [T], root: Rank, reduce: ReduceOp) -> Result<()> {
        let caller = self.caller();
        let request = caller.reduction(Collective::Reduce { root }, reduce, data.len());
        self.in_turn(|core| core.run(&request, Memory::InPlace(data)))
    }

    /// Gives every rank the elements of `root`.
    ///
    /// # Errors
    /// [`Usage`](crate::CollectiveError::Usage) if there is no such rank.
    #[track_caller]
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.broadcast(caller, data, root))
    }

    /// Reduces `data` over all ranks and returns this rank's shard of it: the elements
    /// [`shard_range(data.len(), world_size, rank)`](shard_range).
    #[track_caller]
    pub fn reduce_scatter<T: Element>(&self, data: &[T], reduce: ReduceOp) -> Result<Vec<T>> {
        let caller = self.caller();
        self.in_turn(|core| core.reduced_block(caller, data, reduce, Partition::Balanced))
    }

    /// [`reduce_scatter`](Self::reduce_scatter) to `output`, which has the length of this rank's shard.
    #[track_caller]
    pub fn reduce_scatter_into<T: Element + Pod>(
        &self,
        data: &[T],
        output: &mut [T],
        reduce: ReduceOp,
    ) -> Result<()> {
        let caller = self.caller();
        let own = shard_range(data.len(), self.world_size(), self.rank()).as_range();
        self.in_turn(|core| {
            core.require_len("reduce_scatter_into", "an output", output.len(), own.len())?;
            core.with_scratch(data.len(), |scratch: &mut [T]| {
                scratch.copy_from_slice(data);
                core.reduce_scatter(caller, scratch, reduce, Partition::Balanced)?;
                output.copy_from_slice(&scratch[own]);
                Ok(())
            })
        })
    }

    /// [`reduce_scatter`](Self::reduce_scatter) without a copy: this rank's shard of `data` becomes the
    /// reduction, the rest of `data` is unspecified.
    #[track_caller]
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        reduce: ReduceOp,
    ) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.reduce_scatter(caller, data, reduce, Partition::Balanced))
    }

    /// [`reduce_scatter`](Self::reduce_scatter) with blocks of given lengths, the same on all ranks;
    /// their sum is the length of `data`.
    ///
    /// # Errors
    /// [`Usage`](crate::CollectiveError::Usage) if `lengths` do not fit.
    #[track_caller]
    pub fn reduce_scatter_v<T: Element>(
        &self,
        data: &[T],
        lengths: &[usize],
        reduce: ReduceOp,
    ) -> Result<Vec<T>> {
        let caller = self.caller();
        let partition = Partition::Ragged(lengths.into());
        self.in_turn(|core| core.reduced_block(caller, data, reduce, partition))
    }

    /// The `shard` of every rank, one after the other in rank order. All must be equally long.
    #[track_caller]
    pub fn all_gather<T: Element>(&self, shard: &[T]) -> Result<Vec<T>> {
        let mut output = vec![T::zeroed(); shard.len() * self.world_size().len()];
        self.all_gather_into(shard, &mut output)?;
        Ok(output)
    }

    /// [`all_gather`](Self::all_gather) to `output`, which is `world_size` times as long as `shard`.
    #[track_caller]
    pub fn all_gather_into<T: Element>(&self, shard: &[T], output: &mut [T]) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| {
            let needed = shard.len() * core.world_size.len();
            core.require_len("all_gather_into", "an output", output.len(), needed)?;
            let own = shard_range(output.len(), core.world_size, core.me).as_range();
            output[own].copy_from_slice(shard);
            core.all_gather(caller, output, Partition::Balanced)
        })
    }

    /// Fills `data` with the shards of all ranks; each brings its own at
    /// [`shard_range(data.len(), world_size, rank)`](shard_range) of `data`.
    #[track_caller]
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.all_gather(caller, data, Partition::Balanced))
    }

    /// The block of every rank; they may differ in length.
    #[track_caller]
    pub fn all_gather_v<T: Element>(&self, block: &[T]) -> Result<Blocks<T>> {
        let caller = self.caller();
        self.in_turn(|core| core.all_gather_v(caller, block))
    }

    /// Every rank's bytes in rank order; they may differ in length. For set-up: it allocates.
    #[track_caller]
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let blocks = self.all_gather_v(bytes)?;
        Ok(blocks.iter().map(<[u8]>::to_vec).collect())
    }

    /// The blocks of all ranks, one after the other, on the root; `None` elsewhere. All must be equally long.
    #[track_caller]
    pub fn gather<T: Element>(&self, block: &[T], root: Rank) -> Result<Option<Vec<T>>> {
        let is_root = self.rank() == root;
        let blocks = if is_root { self.world_size().len() } else { 0 };
        let mut output = vec![T::zeroed(); block.len() * blocks];
        self.gather_into(block, &mut output, root)?;
        Ok(is_root.then_some(output))
    }

    /// [`gather`](Self::gather) to `output`: on the root `world_size` times as long as `block`, empty elsewhere.
    #[track_caller]
    pub fn gather_into<T: Element>(&self, block: &[T], output: &mut [T], root: Rank) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.gather(caller, root, block, output, Partition::Balanced))
    }

    /// [`gather`](Self::gather) of blocks that may differ in length.
    #[track_caller]
    pub fn gather_v<T: Element>(&self, block: &[T], root: Rank) -> Result<Option<Blocks<T>>> {
        let caller = self.caller();
        self.in_turn(|core| core.gather_v(caller, root, block))
    }

    /// Gives rank r the r-th block of the root's `input`, which is `world_size` times as long as
    /// `output`; elsewhere `input` is empty.
    #[track_caller]
    pub fn scatter_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| core.scatter(caller, root, input, output, Partition::Balanced))
    }

    /// This rank's block of what the root has. The root, and only it, brings all blocks and the length of each.
    #[track_caller]
    pub fn scatter_v<T: Element>(
        &self,
        blocks: Option<(&[T], &[usize])>,
        root: Rank,
    ) -> Result<Vec<T>> {
        let caller = self.caller();
        self.in_turn(|core| core.scatter_v(caller, root, blocks))
    }

    /// Sends the r-th block of `data` to rank r and puts the block that rank r sent in its place. All
    /// blocks are equally long.
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, data: &mut [T]) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| {
            core.require_blocks("all_to_all", data.len())?;
            let count = data.len() * core.world_size.len();
            let request = caller.request(Collective::AllToAll, count);
            core.run(&request, Memory::InPlace(data))
        })
    }

    /// [`all_to_all`](Self::all_to_all) of `input`, which stays as it is, to `output`.
    #[track_caller]
    pub fn all_to_all_into<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let caller = self.caller();
        self.in_turn(|core| {
            core.require_blocks("all_to_all_into", input.len())?;
            core.require_len("all_to_all_into", "an output", output.len(), input.len())?;
            let own = core.own_block(&Partition::Balanced, input.len());
            output[own.clone()].copy_from_slice(&input[own]);
            let count = input.len() * core.world_size.len();
            let request = caller.request(Collective::AllToAll, count);
            core.run(&request, Memory::Apart { input, output })
        })
    }

    /// [`all_to_all`](Self::all_to_all) with blocks of any lengths: `lengths[r]` elements of `input` go
    /// to rank r. What comes back says how many came from each rank.
    #[track_caller]
    pub fn all_to_all_v<T: Element>(&self, input: &[T], lengths: &[usize]) -> Result<Blocks<T>> {
        let caller = self.caller();
        self.in_turn(|core| core.all_to_all_v(caller, input, lengths))
    }

    /// Sends `data` to `target`, which must call [`recv`](Self::recv) with as many elements. May return
    /// before it has; two ranks that both send first wait for each other once the links are full, so
    /// let them [`exchange`](Self::exchange).
    ///
    /// # Errors
    /// [`Usage`](crate::CollectiveError::Usage) if `target` is this rank or none.
    #[track_caller]
    pub fn send<T: Element>(&self, data: &[T], target: Rank) -> Result<()> {
        let caller = self.caller();
        let source = self.rank();
        let request = caller.request(Collective::Transfer { source, target }, data.len());
        let (input, output) = (data, &mut [][..]);
        self.in_turn(|core| core.run(&request, Memory::Apart { input, output }))
    }

    /// Receives what `source` sends with [`send`](Self::send).
    ///
    /// # Errors
    /// [`Usage`](crate::CollectiveError::Usage) if `source` is this rank or none.
    #[track_caller]
    pub fn recv<T: Element>(&self, data: &mut [T], source: Rank) -> Result<()> {
        let caller = self.caller();
        let target = self.rank();
        let request = caller.request(Collective::Transfer { source, target }, data.len());
        let (input, output) = (&[][..], data);
        self.in_turn(|core| core.run(&request, Memory::Apart { input, output }))
    }

    /// Sends `input` to `peer` and receives as much from it, both at once. The peer must do the same.
    ///
    /// # Errors
    /// [`Usage`](crate::CollectiveError::Usage) if `peer` is this rank or none.
    #[track_caller]
    pub fn exchange<T: Element>(&self, peer: Rank, input: &[T], output: &mut [T]) -> Result<()> {
        let caller = self.caller();
        let (first, second) = (self.rank().min(peer), self.rank().max(peer));
        let request = caller.request(Collective::Exchange { first, second }, input.len());
        self.in_turn(|core| {
            core.require_len("exchange", "an output", output.len(), input.len())?;
            core.run(&request, Memory::Apart { input, output })
        })
    }

    /// Returns once every rank has called it.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let caller = self.caller();
        let request = caller.request(Collective::Barrier, 0);
        self.in_turn(|core| core.run::<u8>(&request, Memory::InPlace(&mut [])))
    }

    #[track_caller]
    pub(super) fn caller(&self) -> Caller {
        let (entered, eagerness) = match self.begun {
            // Its program computes meanwhile, and a spinning thread would take a core from it.
            Some(begun) => (begun, Eagerness::Sleep),
            None => (self.entered(), self.core.eagerness),
        };
        Caller {
            call_site: entered.call_site,
            step: entered.step,
            name: self.name,
            agreed: self.agreed,
            eagerness,
            timeout: self.timeout,
        }
    }
}
