//! The GPUs against the process group on the CPU, bit for bit.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bonfire_collective::cuda::{
    CudaAlgorithm, CudaBuffer, CudaGroup, CudaOptions, CudaPath, CudaSync, Elements, Neighbours,
};
use bonfire_collective::{
    AgentOptions, Algorithm, GroupOptions, ProcessGroup, Rank, RankEnv, ReduceOp,
};
use half::{bf16, f16};

use super::inventory::context_of;
use super::ranks::on_threads as on_rank_threads;
use super::value::{Sample, samples};
use super::{SelftestArgs, part::Part};

const OPS: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max];

/// Bytes of the buffer that all cases use.
const BUFFER_BYTES: usize = 16 << 20;

/// Long for a case, short for a hang.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Element counts for `ranks`: edges, tails, and one that is far beyond a one-shot.
fn counts(ranks: usize, quick: bool) -> Vec<usize> {
    let mut counts = vec![1, ranks - 1, ranks, ranks + 1, 1003, 65_537];
    if !quick {
        counts.extend([17, 4096, 1_000_003]);
    }
    counts.retain(|count| *count > 0);
    counts
}

pub(super) fn on_threads(args: &SelftestArgs) -> anyhow::Result<()> {
    let mut ranks = vec![1];
    ranks.extend(&args.ranks);
    for sync in [CudaSync::Kernel, CudaSync::Stream] {
        for &ranks in &ranks {
            let options = CudaOptions {
                timeout: TIMEOUT,
                sync: Some(sync),
                ..CudaOptions::default()
            };
            let cases = on_rank_threads(ranks, &options, |group| {
                conformance(&group, args.quick, sync)
            })?;
            println!(
                "{ranks} ranks as threads, waiting in {sync:?}: {} cases, all bits as on the CPU",
                cases[0]
            );
        }
    }
    for &ranks in &args.ranks {
        let options = CudaOptions {
            timeout: TIMEOUT,
            path: Some(CudaPath::Host),
            ..CudaOptions::default()
        };
        let cases = on_rank_threads(ranks, &options, |group| {
            conformance(&group, args.quick, CudaSync::Stream)
        })?;
        println!(
            "{ranks} ranks as threads, through host memory: {} cases, all bits as on the CPU",
            cases[0]
        );
    }
    Ok(())
}

/// Starts this program again, once per rank, for each number of ranks.
pub(super) fn on_processes(args: &SelftestArgs) -> anyhow::Result<()> {
    if let Some(env) = RankEnv::detect()? {
        return as_rank(&env);
    }
    for &ranks in args.ranks.iter().filter(|ranks| (2..=4).contains(*ranks)) {
        launch(
            ranks,
            &["selftest", "--cuda", "--part", Part::Processes.name()],
        )?;
        println!("{ranks} ranks as processes: all bits as on the CPU");
    }
    Ok(())
}

/// Runs this program once per rank with `arguments`.
pub(super) fn launch(ranks: u32, arguments: &[&str]) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let ranks = NonZeroU32::new(ranks).context("a job has at least one rank")?;
    let options = AgentOptions {
        args: arguments.iter().map(Into::into).collect(),
        nproc_per_node: ranks,
        ..AgentOptions::new(program)
    };
    Ok(options.run()?)
}

/// Joins the group of processes on the GPUs.
pub(super) fn join(env: &RankEnv, timeout: Duration) -> anyhow::Result<CudaGroup> {
    let group_options = GroupOptions {
        algorithm: Some(Algorithm::OneShot),
        timeout,
        ..GroupOptions::default()
    };
    let group = ProcessGroup::connect(env, group_options)?;
    let options = CudaOptions {
        timeout,
        ..CudaOptions::default()
    };
    let context = context_of(env.local_rank)?;
    Ok(CudaGroup::new(
        group,
        &context,
        &Neighbours::new(),
        options,
    )?)
}

fn as_rank(env: &RankEnv) -> anyhow::Result<()> {
    let group = join(env, TIMEOUT)?;
    let cases = conformance(&group, true, CudaSync::Stream)?;
    if env.rank == Rank::new(0) {
        println!("rank 0: {cases} cases");
    }
    Ok(())
}

/// One rank's part of all cases; how many there were.
fn conformance(group: &CudaGroup, quick: bool, sync: CudaSync) -> anyhow::Result<usize> {
    let (buffer, output) = (group.allocate(BUFFER_BYTES)?, group.allocate(BUFFER_BYTES)?);
    let mut cases = Cases {
        group,
        buffer: &buffer,
        output: &output,
        done: 0,
    };
    let few = quick || sync == CudaSync::Stream;
    cases.of::<f32>(few)?;
    if group.path() == CudaPath::Peer {
        cases.chain::<f32>()?;
        cases.chain::<i32>()?;
    }
    cases.of::<bf16>(few)?;
    if sync == CudaSync::Kernel {
        cases.of::<f16>(true)?;
        cases.of::<f64>(true)?;
        cases.of::<i32>(true)?;
    }
    // The host has an order of its own.
    if group.path() == CudaPath::Peer {
        cases.ring::<f32>()?;
    }
    cases.movers::<f32>()?;
    cases.movers::<u8>()?;
    cases.blocks::<f32>()?;
    cases.blocks::<u8>()?;
    cases.pairs::<f64>()?;
    Ok(cases.done)
}

/// The cases that one buffer is used for.
struct Cases<'a> {
    group: &'a CudaGroup,
    buffer: &'a CudaBuffer,
    /// Where an all-to-all goes.
    output: &'a CudaBuffer,
    done: usize,
}

impl Cases<'_> {
    /// Every reduction of every count, direct and one-shot, aligned and not.
    fn of<T: Sample>(&mut self, quick: bool) -> anyhow::Result<()> {
        let ranks = self.group.world_size().len();
        for reduce in OPS {
            for count in counts(ranks, quick) {
                for start in [0, 3] {
                    for algorithm in [CudaAlgorithm::Direct, CudaAlgorithm::OneShot] {
                        self.all_reduce::<T>(algorithm, reduce, start..start + count)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn all_reduce<T: Sample>(
        &mut self,
        algorithm: CudaAlgorithm,
        reduce: ReduceOp,
        range: std::ops::Range<usize>,
    ) -> anyhow::Result<()> {
        let what = format!("{algorithm:?} {reduce} of {} {range:?}", T::DTYPE);
        let mut expected: Vec<T> = self.fill(&range)?;
        let elements = Elements {
            dtype: T::DTYPE,
            range: range.clone(),
        };
        self.group
            .all_reduce_with(algorithm, self.buffer, &elements, reduce)
            .with_context(|| what.clone())?;
        self.group
            .process_group()
            .all_reduce(&mut expected, reduce)?;
        self.compare(&what, &range, &expected)
    }

    /// The chain, which adds in the order of the ranks: through one piece, and through several.
    fn chain<T: Sample>(&mut self) -> anyhow::Result<()> {
        let ranks = self.group.world_size().len();
        for reduce in OPS {
            for count in [1, ranks, 65_537, 700_001] {
                self.all_reduce::<T>(CudaAlgorithm::Chain, reduce, 3..3 + count)?;
            }
        }
        Ok(())
    }

    /// The ring, whose order is that of the ring on the CPU.
    fn ring<T: Sample>(&mut self) -> anyhow::Result<()> {
        let ranks = self.group.world_size().len();
        for reduce in [ReduceOp::Sum, ReduceOp::Max] {
            for count in [1, ranks + 1, 100_003] {
                let what = format!("ring {reduce} of {} x {count}", T::DTYPE);
                let range = 2..2 + count;
                let own: Vec<T> = self.fill(&range)?;
                let elements = Elements {
                    dtype: T::DTYPE,
                    range: range.clone(),
                };
                self.group
                    .all_reduce_with(CudaAlgorithm::Ring, self.buffer, &elements, reduce)
                    .with_context(|| what.clone())?;
                let expected = self.ring_reference(&own, reduce)?;
                self.compare(&what, &range, &expected)?;
            }
        }
        Ok(())
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
                let values: Vec<T> = (1..=ranks)
                    .map(|hop| all[(shard + hop) % ranks * own.len() + index])
                    .collect();
                expected[index] = fold(&values, reduce)?;
            }
        }
        Ok(expected)
    }

    /// What moves data without folding, and the folds that not every rank gets.
    fn movers<T: Sample>(&mut self) -> anyhow::Result<()> {
        let ranks = self.group.world_size().len();
        let process = self.group.process_group();
        for count in [ranks, 10 * ranks + 1, 100_003] {
            let range = 1..1 + count;
            let elements = Elements {
                dtype: T::DTYPE,
                range: range.clone(),
            };
            let root = Rank::new(count as u32 % ranks as u32);
            let mut expected: Vec<T> = self.fill(&range)?;
            self.group.broadcast(self.buffer, &elements, root)?;
            process.broadcast(&mut expected, root)?;
            self.compare("broadcast", &range, &expected)?;

            let own: Vec<T> = self.fill(&range)?;
            let all = process.all_gather(&own)?;
            self.group.all_gather(self.buffer, &elements)?;
            let gathered: Vec<T> = (0..ranks)
                .flat_map(|rank| {
                    let shard = shard_of(count, ranks, rank);
                    all[rank * count..][shard].to_vec()
                })
                .collect();
            self.compare("all_gather", &range, &gathered)?;

            let mut expected: Vec<T> = self.fill(&range)?;
            let own = expected.clone();
            self.group
                .reduce_scatter(self.buffer, &elements, ReduceOp::Max)?;
            process.all_reduce(&mut expected, ReduceOp::Max)?;
            let mine = shard_of(count, ranks, process.rank().index());
            let mut scattered = own;
            scattered[mine.clone()].copy_from_slice(&expected[mine]);
            self.compare("reduce_scatter", &range, &scattered)?;

            let own: Vec<T> = self.fill(&range)?;
            self.group
                .reduce(self.buffer, &elements, (ReduceOp::Max, root))?;
            let mut expected = own.clone();
            process.all_reduce(&mut expected, ReduceOp::Max)?;
            let expected = if process.rank() == root {
                expected
            } else {
                own
            };
            self.compare("reduce", &range, &expected)?;
        }
        Ok(())
    }

    /// What moves the blocks of some ranks to others.
    fn blocks<T: Sample>(&mut self) -> anyhow::Result<()> {
        let process = self.group.process_group();
        let (ranks, me) = (process.world_size().len(), process.rank());
        for count in [ranks, 10 * ranks + 1, 100_003] {
            let range = 5..5 + count;
            let elements = Elements {
                dtype: T::DTYPE,
                range: range.clone(),
            };
            let root = Rank::new(count as u32 % ranks as u32);
            let own: Vec<T> = self.fill(&range)?;
            let all = process.all_gather(&own)?;
            let shard_from = |rank: usize, owner: usize| {
                all[rank * count..][shard_of(count, ranks, owner)].to_vec()
            };
            self.group.gather(self.buffer, &elements, root)?;
            let gathered: Vec<T> = (0..ranks).flat_map(|rank| shard_from(rank, rank)).collect();
            let expected = if me == root { &gathered } else { &own };
            self.compare("gather", &range, expected)?;

            let own: Vec<T> = self.fill(&range)?;
            let all = process.all_gather(&own)?;
            self.group.scatter(self.buffer, &elements, root)?;
            let mut expected = own;
            let mine = shard_of(count, ranks, me.index());
            expected[mine.clone()].copy_from_slice(&all[root.index() * count..][mine]);
            self.compare("scatter", &range, &expected)?;

            let whole = range.start..range.start + count.next_multiple_of(ranks);
            let mut expected: Vec<T> = self.fill(&whole)?;
            let elements = Elements {
                dtype: T::DTYPE,
                range: whole.clone(),
            };
            self.group.all_to_all(self.buffer, self.output, &elements)?;
            self.compare("all_to_all's input", &whole, &expected)?;
            process.all_to_all(&mut expected)?;
            self.compare_in(self.output, "all_to_all", &whole, &expected)?;
        }
        Ok(())
    }

    /// What two ranks do alone: 0 and 1, 2 and 3, and so on, with something of all ranks between.
    fn pairs<T: Sample>(&mut self) -> anyhow::Result<()> {
        let process = self.group.process_group();
        let (ranks, me) = (process.world_size().len(), process.rank());
        for half in [1, 1003, 50_000] {
            let range = 3..3 + 2 * half;
            let elements = Elements {
                dtype: T::DTYPE,
                range: range.clone(),
            };
            let peer = Some(me.index() ^ 1).filter(|peer| *peer < ranks);
            for exchanges in [false, true] {
                let own: Vec<T> = self.fill(&range)?;
                let all = process.all_gather(&own)?;
                let of = |rank: usize| &all[rank * 2 * half..][..2 * half];
                let mut expected = own.clone();
                if let Some(peer) = peer {
                    let is_first = me.index() < peer;
                    let other = Rank::new(peer as u32);
                    if exchanges {
                        self.group.exchange(self.buffer, &elements, other)?;
                        let theirs = if is_first { half..2 * half } else { 0..half };
                        expected[theirs.clone()].copy_from_slice(&of(peer)[theirs]);
                    } else if is_first {
                        self.group.send(self.buffer, &elements, other)?;
                    } else {
                        self.group.recv(self.buffer, &elements, other)?;
                        expected = of(peer).to_vec();
                    }
                }
                self.compare("send, recv or exchange", &range, &expected)?;
                self.group.barrier()?;
            }
        }
        Ok(())
    }

    /// Writes this rank's samples for the next case; returns them.
    fn fill<T: Sample>(&mut self, range: &std::ops::Range<usize>) -> anyhow::Result<Vec<T>> {
        self.done += 1;
        let rank = self.group.rank().get();
        let values: Vec<T> = samples(rank, self.done as u64, range.len());
        self.group.write(self.buffer, range.start, &values)?;
        // Nobody reads the buffers of this case before all have written theirs: the collective's barrier.
        Ok(values)
    }

    fn compare<T: Sample>(
        &self,
        what: &str,
        range: &std::ops::Range<usize>,
        expected: &[T],
    ) -> anyhow::Result<()> {
        self.compare_in(self.buffer, what, range, expected)
    }

    fn compare_in<T: Sample>(
        &self,
        buffer: &CudaBuffer,
        what: &str,
        range: &std::ops::Range<usize>,
        expected: &[T],
    ) -> anyhow::Result<()> {
        let mut found = vec![T::sample(0); expected.len()];
        self.group.read(buffer, range.start, &mut found)?;
        let wrong = found.iter().zip(expected).filter(|(a, b)| a != b).count();
        if wrong > 0 {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            let at = at.unwrap_or(0);
            bail!(
                "rank {}: {what}: {wrong} of {} elements are wrong, first {at}: {:?} instead of {:?}",
                self.group.rank(),
                expected.len(),
                found[at],
                expected[at]
            );
        }
        Ok(())
    }
}

/// The balanced shard of a rank.
fn shard_of(count: usize, ranks: usize, rank: usize) -> std::ops::Range<usize> {
    let (base, longer) = (count / ranks, count % ranks);
    let start = rank * base + rank.min(longer);
    start..start + base + usize::from(rank < longer)
}

/// One element's fold on the CPU: by a group of one rank per value, in their order.
fn fold<T: Sample>(values: &[T], reduce: ReduceOp) -> anyhow::Result<T> {
    T::left_fold(values, reduce).context("the ring is tested with reductions that the oracle has")
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
