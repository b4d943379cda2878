//! What operations of several steps, or of several callers, do in the turn of the caller.
//!
//! Operations that need lengths from other ranks exchange them first, within the same turn, so that
//! nothing of this rank comes in between.

use std::ops::Range;

use bonfire_plan::{Collective, Partition, Rank, ReduceOp, shard_range};
use bytemuck::Pod;

use super::Core;
use crate::Element;
use crate::exec::executor::{Caller, Memory, Request};
use crate::group::blocks::Blocks;
use crate::rendezvous::group_error::Result;

impl Caller {
    pub(super) fn request(self, collective: Collective, count: usize) -> Request {
        Request { collective, reduce: None, count, partition: Partition::Balanced, caller: self }
    }

    pub(super) fn reduction(
        self,
        collective: Collective,
        reduce: ReduceOp,
        count: usize,
    ) -> Request {
        Request { reduce: Some(reduce), ..self.request(collective, count) }
    }
}

impl Core {
    pub(super) fn all_reduce<T: Element>(
        &self,
        caller: Caller,
        data: &mut [T],
        reduce: ReduceOp,
    ) -> Result<()> {
        let request = caller.reduction(Collective::AllReduce, reduce, data.len());
        self.run(&request, Memory::InPlace(data))
    }

    /// One operation for all tensors: packs them into a buffer that is kept.
    pub(super) fn all_reduce_coalesced<T: Element + Pod>(
        &self,
        caller: Caller,
        tensors: &mut [&mut [T]],
        reduce: ReduceOp,
    ) -> Result<()> {
        let len = tensors.iter().map(|tensor| tensor.len()).sum();
        self.with_scratch(len, |packed: &mut [T]| {
            let mut rest = &mut *packed;
            for tensor in tensors.iter() {
                let (place, after) = rest.split_at_mut(tensor.len());
                place.copy_from_slice(tensor);
                rest = after;
            }
            self.all_reduce(caller, packed, reduce)?;
            let mut rest = &*packed;
            for tensor in tensors.iter_mut() {
                let (place, after) = rest.split_at(tensor.len());
                tensor.copy_from_slice(place);
                rest = after;
            }
            Ok(())
        })
    }

    pub(super) fn broadcast<T: Element>(
        &self,
        caller: Caller,
        data: &mut [T],
        root: Rank,
    ) -> Result<()> {
        let request = caller.request(Collective::Broadcast { root }, data.len());
        self.run(&request, Memory::InPlace(data))
    }

    /// Leaves this rank's block at its place in `data`; the rest is unspecified.
    pub(super) fn reduce_scatter<T: Element>(
        &self,
        caller: Caller,
        data: &mut [T],
        reduce: ReduceOp,
        partition: Partition,
    ) -> Result<()> {
        let request = Request {
            partition,
            ..caller.reduction(Collective::ReduceScatter, reduce, data.len())
        };
        self.run(&request, Memory::InPlace(data))
    }

    /// This rank's block of the reduction of `data`, which stays as it is.
    pub(super) fn reduced_block<T: Element>(
        &self,
        caller: Caller,
        data: &[T],
        reduce: ReduceOp,
        partition: Partition,
    ) -> Result<Vec<T>> {
        let mut data = data.to_vec();
        self.reduce_scatter(caller, &mut data, reduce, partition.clone())?;
        let own = self.own_block(&partition, data.len());
        data.copy_within(own.clone(), 0);
        data.truncate(own.len());
        Ok(data)
    }

    /// Takes this rank's block from its place in `data`, and fills in the others.
    pub(super) fn all_gather<T: Element>(
        &self,
        caller: Caller,
        data: &mut [T],
        partition: Partition,
    ) -> Result<()> {
        let request = Request { partition, ..caller.request(Collective::AllGather, data.len()) };
        self.run(&request, Memory::InPlace(data))
    }

    /// The blocks of all ranks, whatever their lengths.
    pub(super) fn all_gather_v<T: Element>(
        &self,
        caller: Caller,
        block: &[T],
    ) -> Result<Blocks<T>> {
        let mut blocks = Blocks::zeroed(self.lengths(caller, block.len())?);
        blocks.of_mut(self.me).copy_from_slice(block);
        let partition = blocks.partition();
        self.all_gather(caller, blocks.all_mut(), partition)?;
        Ok(blocks)
    }

    /// This number of every rank, in rank order.
    fn lengths(&self, caller: Caller, mine: usize) -> Result<Vec<usize>> {
        let mut lengths = vec![0_u64; self.world_size.len()];
        lengths[self.me.index()] = mine as u64;
        self.all_gather(caller, &mut lengths, Partition::Balanced)?;
        Ok(lengths.into_iter().map(|len| len as usize).collect())
    }

    /// `output` is the root's, for all blocks; elsewhere it is empty.
    pub(super) fn gather<T: Element>(
        &self,
        caller: Caller,
        root: Rank,
        block: &[T],
        output: &mut [T],
        partition: Partition,
    ) -> Result<()> {
        let count = self.count(&partition, block.len());
        let needed = if self.me == root { count } else { 0 };
        self.require_len("gather", "an output", output.len(), needed)?;
        if self.me == root {
            output[self.own_block(&partition, count)].copy_from_slice(block);
        }
        let request = Request { partition, ..caller.request(Collective::Gather { root }, count) };
        let input = block;
        self.run(&request, Memory::Apart { input, output })
    }

    pub(super) fn gather_v<T: Element>(
        &self,
        caller: Caller,
        root: Rank,
        block: &[T],
    ) -> Result<Option<Blocks<T>>> {
        let lengths = self.lengths(caller, block.len())?;
        let partition = Partition::Ragged(lengths.as_slice().into());
        let mut blocks = (self.me == root).then(|| Blocks::zeroed(lengths));
        let output = blocks.as_mut().map_or(&mut [][..], Blocks::all_mut);
        self.gather(caller, root, block, output, partition)?;
        Ok(blocks)
    }

    /// `input` is the root's, with all blocks; elsewhere it is empty.
    pub(super) fn scatter<T: Element>(
        &self,
        caller: Caller,
        root: Rank,
        input: &[T],
        output: &mut [T],
        partition: Partition,
    ) -> Result<()> {
        let count = self.count(&partition, output.len());
        let needed = if self.me == root { count } else { 0 };
        self.require_len("scatter", "an input", input.len(), needed)?;
        if self.me == root {
            output.copy_from_slice(&input[self.own_block(&partition, count)]);
        }
        let request = Request { partition, ..caller.request(Collective::Scatter { root }, count) };
        self.run(&request, Memory::Apart { input, output })
    }

    pub(super) fn scatter_v<T: Element>(
        &self,
        caller: Caller,
        root: Rank,
        blocks: Option<(&[T], &[usize])>,
    ) -> Result<Vec<T>> {
        let mut lengths = vec![0_u64; self.world_size.len()];
        let (input, given) = match blocks {
            Some(blocks) if self.me == root => blocks,
            _ => Default::default(),
        };
        if self.me == root {
            let ranks = self.world_size.len();
            self.require_len("scatter_v", "block lengths", given.len(), ranks)?;
            self.require_len("scatter_v", "an input", input.len(), given.iter().sum())?;
            lengths = given.iter().map(|&len| len as u64).collect();
        }
        self.broadcast(caller, &mut lengths, root)?;
        let lengths: Vec<usize> = lengths.into_iter().map(|len| len as usize).collect();
        let mut output = vec![T::zeroed(); lengths[self.me.index()]];
        let partition = Partition::Ragged(lengths.into());
        self.scatter(caller, root, input, &mut output, partition)?;
        Ok(output)
    }

    pub(super) fn all_to_all_v<T: Element>(
        &self,
        caller: Caller,
        input: &[T],
        lengths: &[usize],
    ) -> Result<Blocks<T>> {
        let (ranks, me) = (self.world_size.len(), self.me.index());
        self.require_len("all_to_all_v", "block lengths", lengths.len(), ranks)?;
        let total = lengths.iter().sum();
        self.require_len("all_to_all_v", "an input", input.len(), total)?;
        let mut matrix = vec![0_u64; ranks * ranks];
        let row = &mut matrix[me * ranks..(me + 1) * ranks];
        for (to, &len) in row.iter_mut().zip(lengths) {
            *to = len as u64;
        }
        self.all_gather(caller, &mut matrix, Partition::Balanced)?;
        let matrix: Vec<usize> = matrix.into_iter().map(|len| len as usize).collect();
        let column = (0..ranks).map(|source| matrix[source * ranks + me]).collect();
        let mut blocks = Blocks::zeroed(column);
        let start: usize = lengths[..me].iter().sum();
        let own = &input[start..start + lengths[me]];
        blocks.of_mut(self.me).copy_from_slice(own);
        let request = Request {
            partition: Partition::Matrix(matrix.as_slice().into()),
            ..caller.request(Collective::AllToAll, matrix.iter().sum())
        };
        let output = blocks.all_mut();
        self.run(&request, Memory::Apart { input, output })?;
        Ok(blocks)
    }

    /// Elements in all blocks, of which this rank's has `own`.
    fn count(&self, partition: &Partition, own: usize) -> usize {
        match partition {
            Partition::Ragged(lengths) => lengths.iter().sum(),
            _ => own * self.world_size.len(),
        }
    }

    /// Where this rank's block lies among `count` elements.
    pub(super) fn own_block(&self, partition: &Partition, count: usize) -> Range<usize> {
        match partition {
            Partition::Ragged(lengths) => {
                let start = lengths[..self.me.index()].iter().sum();
                start..start + lengths[self.me.index()]
            }
            _ => shard_range(count, self.world_size, self.me).as_range(),
        }
    }

    pub(super) fn require_len(
        &self,
        operation: &str,
        what: &str,
        found: usize,
        needed: usize,
    ) -> Result<()> {
        if found == needed {
            return Ok(());
        }
        Err(self.refuse(format!(
            "{operation} was given {what} of {found} elements where {needed} are needed"
        )))
    }

    pub(super) fn require_blocks(&self, operation: &str, len: usize) -> Result<()> {
        let ranks = self.world_size.len();
        if len.is_multiple_of(ranks) {
            return Ok(());
        }
        Err(self.refuse(format!(
            "{operation} was given {len} elements, which are not {ranks} equal blocks"
        )))
    }
}
