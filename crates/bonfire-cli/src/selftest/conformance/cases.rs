//! Cases for any group of GPUs, each compared with the process group below it.

use std::ops::Range;

use anyhow::{Context as _, bail};
use bonfire_collective::{Rank, ReduceOp};
use bonfire_gpu::Elements;

use super::super::value::{Draw, Sample, samples};
use crate::gpu::collectives::{Collectives, Task};

const BUFFER_BYTES: usize = 16 << 20;

/// One rank's part of cases that share two buffers.
pub(in super::super) struct Cases<'g, G: Collectives> {
    pub(super) group: &'g G,
    pub(super) buffer: G::Buffer,
    /// Where an all-to-all writes its result.
    output: G::Buffer,
    pub(in super::super) done: usize,
}

impl<'g, G: Collectives> Cases<'g, G> {
    pub(in super::super) fn new(group: &'g G) -> anyhow::Result<Self> {
        Ok(Self {
            group,
            buffer: group.allocate(BUFFER_BYTES)?,
            output: group.allocate(BUFFER_BYTES)?,
            done: 0,
        })
    }

    /// Operations that all ranks take part in, with a fold whose bits no order changes: of these values.
    pub(in super::super) fn all_ranks<T: Sample>(
        &mut self,
        reduce: ReduceOp,
        draw: Draw<T>,
    ) -> anyhow::Result<()> {
        let ranks = self.ranks();
        for count in [ranks, 10 * ranks + 1, 100_003] {
            let root = Rank::new(count as u32 % ranks as u32);
            for (start, task) in [
                (0, Task::AllReduce(reduce)),
                (1, Task::ReduceScatter(reduce)),
                (1, Task::Reduce(reduce, root)),
                (1, Task::AllGather),
                (1, Task::Broadcast(root)),
                (5, Task::Gather(root)),
                (5, Task::Scatter(root)),
            ] {
                self.case(Some(task), start..start + count, draw)?;
            }
            let blocks = 5..5 + count.next_multiple_of(ranks);
            self.case(Some(Task::AllToAll), blocks, draw)?;
        }
        Ok(())
    }

    /// What two ranks do alone: 0 and 1, 2 and 3, and so on, with something of all ranks between.
    pub(in super::super) fn pairs<T: Sample>(&mut self) -> anyhow::Result<()> {
        let me = self.group.process_group().rank();
        let peer = Some(Rank::new(me.get() ^ 1)).filter(|peer| peer.index() < self.ranks());
        let transfer = |peer| {
            if me < peer { Task::Send(peer) } else { Task::Recv(peer) }
        };
        for half in [1, 1003, 50_000] {
            for task in [peer.map(transfer), peer.map(Task::Exchange)] {
                self.case::<T>(task, 3..3 + 2 * half, samples)?;
                self.group.barrier()?;
            }
        }
        Ok(())
    }

    /// One operation on elements that no case has had before; without a task this rank looks on.
    fn case<T: Sample>(
        &mut self,
        task: Option<Task>,
        range: Range<usize>,
        draw: Draw<T>,
    ) -> anyhow::Result<()> {
        let what = format!("{task:?} of {} {range:?}", T::DTYPE);
        let own: Vec<T> = self.fill(&range, draw)?;
        if let Some(task) = task {
            let elements = Elements::at::<T>(range.start, range.len());
            self.group
                .perform(task, [&self.buffer, &self.output], &elements)
                .with_context(|| what.clone())?;
        }
        if task != Some(Task::AllToAll) {
            let expected = self.expected(task, own)?;
            return self.compare(&what, &range, &expected);
        }
        self.compare(&format!("the input of {what}"), &range, &own)?;
        let expected = self.expected(task, own)?;
        self.compare_in(&self.output, &what, &range, &expected)
    }

    /// What this rank ends with if it has brought `own`. All ranks ask at once.
    pub(super) fn expected<T: Sample>(
        &self,
        task: Option<Task>,
        own: Vec<T>,
    ) -> anyhow::Result<Vec<T>> {
        let process = self.group.process_group();
        let (ranks, me) = (self.ranks(), process.rank());
        let count = own.len();
        let mine = shard_of(count, ranks, me.index());
        let mut result = own.clone();
        match task {
            Some(Task::AllReduce(reduce)) => process.all_reduce(&mut result, reduce)?,
            Some(Task::AllToAll) => process.all_to_all(&mut result)?,
            Some(Task::ReduceScatter(reduce)) => {
                let mut folded = own;
                process.all_reduce(&mut folded, reduce)?;
                result[mine.clone()].copy_from_slice(&folded[mine]);
            }
            Some(Task::Reduce(reduce, root)) => {
                process.all_reduce(&mut result, reduce)?;
                if me != root {
                    result = own;
                }
            }
            // The rest only moves what the ranks have brought.
            task => {
                let all = process.all_gather(&own)?;
                let part = |rank: usize, range: Range<usize>| &all[rank * count..][range];
                for (rank, range) in sources(task, ranks, me, count) {
                    result[range.clone()].copy_from_slice(part(rank, range));
                }
            }
        }
        Ok(result)
    }

    /// Writes this rank's values for the next case; returns them.
    pub(super) fn fill<T: Sample>(
        &mut self,
        range: &Range<usize>,
        draw: Draw<T>,
    ) -> anyhow::Result<Vec<T>> {
        self.done += 1;
        let rank = self.group.process_group().rank().get();
        let values = draw(rank, self.done as u64, range.len());
        self.group.write(&self.buffer, range.start, &values)?;
        // Nobody reads the buffers of this case before all have written theirs: the collective's barrier.
        Ok(values)
    }

    pub(super) fn compare<T: Sample>(
        &self,
        what: &str,
        range: &Range<usize>,
        expected: &[T],
    ) -> anyhow::Result<()> {
        self.compare_in(&self.buffer, what, range, expected)
    }

    fn compare_in<T: Sample>(
        &self,
        buffer: &G::Buffer,
        what: &str,
        range: &Range<usize>,
        expected: &[T],
    ) -> anyhow::Result<()> {
        let mut found = vec![T::sample(0); expected.len()];
        self.group.read(buffer, range.start, &mut found)?;
        let wrong = |at: &usize| found[*at] != expected[*at];
        let wrong: Vec<usize> = (0..expected.len()).filter(wrong).collect();
        let Some(&at) = wrong.first() else {
            return Ok(());
        };
        bail!(
            "rank {}: {what}: {} of {} elements are wrong, first {at}: {:?} instead of {:?}",
            self.group.process_group().rank(),
            wrong.len(),
            expected.len(),
            found[at],
            expected[at]
        );
    }

    pub(in super::super) fn ranks(&self) -> usize {
        self.group.process_group().world_size().len()
    }
}

/// Which ranks' elements this one ends with, where they are not its own.
fn sources(task: Option<Task>, ranks: usize, me: Rank, count: usize) -> Vec<(usize, Range<usize>)> {
    let shard = |owner| shard_of(count, ranks, owner);
    let of_all = || (0..ranks).map(|rank| (rank, shard(rank))).collect();
    match task {
        Some(Task::AllGather) => of_all(),
        Some(Task::Gather(root)) if root == me => of_all(),
        Some(Task::Scatter(root)) => vec![(root.index(), shard(me.index()))],
        Some(Task::Broadcast(source) | Task::Recv(source)) => vec![(source.index(), 0..count)],
        Some(Task::Exchange(peer)) => {
            let half = count / 2;
            let theirs = if me < peer { half..count } else { 0..half };
            vec![(peer.index(), theirs)]
        }
        _ => Vec::new(),
    }
}

pub(super) fn shard_of(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (base, longer) = (count / ranks, count % ranks);
    let start = rank * base + rank.min(longer);
    start..start + base + usize::from(rank < longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_everything_once() {
        for (count, ranks) in [(10, 3), (2, 4), (0, 2), (1003, 8)] {
            let mut next = 0;
            for rank in 0..ranks {
                let shard = shard_of(count, ranks, rank);
                assert_eq!(shard.start, next);
                next = shard.end;
            }
            assert_eq!(next, count);
        }
    }
}
