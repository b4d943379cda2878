//! All-reduces of a group without NCCL, by every algorithm: their order is known, and so every bit.

use std::ops::Range;

use anyhow::Context as _;
use bonfire_collective::ReduceOp;
use bonfire_gpu::{CudaAlgorithm, CudaGroup, Elements};

use super::super::value::{Sample, samples};
use super::cases::{Cases, shard_of};
use crate::gpu::collectives::Task;

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max];

/// Element counts for `ranks`: edges, tails, and one that is far beyond a one-shot.
fn counts(ranks: usize, quick: bool) -> Vec<usize> {
    let mut counts = vec![1, ranks - 1, ranks, ranks + 1, 1003, 65_537];
    if !quick {
        counts.extend([17, 4096, 1_000_003]);
    }
    counts.retain(|count| *count > 0);
    counts
}

impl Cases<'_, CudaGroup> {
    /// Every reduction of every count, direct, one-shot and two-shot, aligned and not.
    pub(super) fn folds<T: Sample>(&mut self, quick: bool) -> anyhow::Result<()> {
        use CudaAlgorithm::{Direct, OneShot, TwoShot};
        for reduce in OPS {
            for count in counts(self.ranks(), quick) {
                for start in [0, 3] {
                    for algorithm in [Direct, OneShot, TwoShot] {
                        self.fold::<T>(algorithm, reduce, start..start + count)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The chain, which adds in the order of the ranks: through one piece, and through several.
    pub(super) fn chain<T: Sample>(&mut self) -> anyhow::Result<()> {
        for reduce in OPS {
            for count in [1, self.ranks(), 65_537, 700_001] {
                self.fold::<T>(CudaAlgorithm::Chain, reduce, 3..3 + count)?;
            }
        }
        Ok(())
    }

    fn fold<T: Sample>(
        &mut self,
        algorithm: CudaAlgorithm,
        reduce: ReduceOp,
        range: Range<usize>,
    ) -> anyhow::Result<()> {
        let own: Vec<T> = self.fill(&range, samples)?;
        let what = format!("{algorithm:?} {reduce} of {} {range:?}", T::DTYPE);
        self.all_reduce_with::<T>(algorithm, reduce, &range).with_context(|| what.clone())?;
        let expected = self.expected(Some(Task::AllReduce(reduce)), own)?;
        self.compare(&what, &range, &expected)
    }

    /// The ring, whose order is that of the ring on the CPU.
    pub(super) fn ring<T: Sample>(&mut self) -> anyhow::Result<()> {
        for reduce in [ReduceOp::Sum, ReduceOp::Max] {
            for count in [1, self.ranks() + 1, 100_003] {
                let range = 2..2 + count;
                let own: Vec<T> = self.fill(&range, samples)?;
                let what = format!("ring {reduce} of {} x {count}", T::DTYPE);
                self.all_reduce_with::<T>(CudaAlgorithm::Ring, reduce, &range)
                    .with_context(|| what.clone())?;
                let expected = self.ring_reference(&own, reduce)?;
                self.compare(&what, &range, &expected)?;
            }
        }
        Ok(())
    }

    fn all_reduce_with<T: Sample>(
        &self,
        algorithm: CudaAlgorithm,
        reduce: ReduceOp,
        range: &Range<usize>,
    ) -> anyhow::Result<()> {
        let elements = Elements::at::<T>(range.start, range.len());
        Ok(self.group.all_reduce_with(algorithm, &self.buffer, &elements, reduce)?)
    }

    /// The fold of shard j starts with rank j + 1 and ends with rank j.
    fn ring_reference<T: Sample>(&self, own: &[T], reduce: ReduceOp) -> anyhow::Result<Vec<T>> {
        let group = self.group.process_group();
        let ranks = group.world_size().len();
        let all = group.all_gather(own)?;
        let mut expected = own.to_vec();
        for shard in 0..ranks {
            let range = shard_of(own.len(), ranks, shard);
            for index in range {
                let values: Vec<T> =
                    (1..=ranks).map(|hop| all[(shard + hop) % ranks * own.len() + index]).collect();
                expected[index] = T::left_fold(&values, reduce)
                    .context("the ring is tested with reductions that the oracle has")?;
            }
        }
        Ok(expected)
    }
}
