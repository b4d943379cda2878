//! Queues the programs of a group on streams.

use bonfire_cuda::{CudaError, Span, Stream};
use bonfire_kernels::launch::one_shot::{OneShotKernel, OneShotKey, OneShotLaunch, TwoShotLaunch};
use bonfire_kernels::launch::stream::ReduceLaunch;
use bonfire_plan::{Collective, DType, ElemRange, Rank, ReduceOp, shard_range};
use smallvec::SmallVec;

use crate::device::Lanes;
use crate::device::kernels::{ReduceKey, divisor, one_shot_key};
use crate::device::sync::{MAIN, PAIRS};
use crate::program::{Action, Fold, Key, Layout, Program};
use crate::request::elements::Elements;
use crate::run::State;
use crate::setup::shared::Shared;

/// A buffer's part on each of some ranks; no allocation for up to 8.
type Spans = SmallVec<[Span; 8]>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) memory: &'a Shared,
    pub(crate) elements: &'a Elements,
    /// How values are combined, where they are.
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) moves: Moves<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Moves<'a> {
    /// By a kernel, to the same range of other buffers.
    Kernel,
    /// By a copy of the stream, to the same range of the own buffer.
    Copy,
    /// By a copy of the stream, between two buffers: the ranges are those of a matrix with a row for what
    /// each rank brings and a column for what it ends with.
    Transpose(&'a Shared),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Programs(Collective, Layout),
    OneShot,
}

/// What kernels are loaded for: the same on all ranks, though their kernels may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Need {
    shape: Shape,
    dtype: DType,
    reduce: Option<ReduceOp>,
}

impl Job<'_> {
    pub(crate) fn need(&self, shape: Shape) -> Need {
        Need { shape, dtype: self.elements.dtype, reduce: self.reduce }
    }

    pub(crate) fn key(&self, collective: Collective, layout: Layout) -> Key {
        Key { collective, layout, count: self.elements.count() }
    }

    pub(crate) fn kernel(&self, fold: &Fold) -> ReduceKey {
        ReduceKey::new(self.elements.dtype, self.reduce, fold)
    }
}

impl State {
    /// Queues programs: a single one on the main stream, several each on a lane.
    pub(crate) fn run(&mut self, programs: &[Program], job: Job<'_>) -> Result<(), CudaError> {
        let result = match programs {
            [program] => {
                let stream = self.stream.clone();
                self.run_one(program, Some(job), &stream, MAIN)
            }
            programs => {
                let lanes = self.lanes.take().expect("made before the operation");
                let result = self.run_lanes(programs, job, &lanes);
                self.lanes = Some(lanes);
                result
            }
        };
        self.flags.clear();
        result
    }

    pub(crate) fn run_barrier(&mut self, program: &Program) -> Result<(), CudaError> {
        let stream = self.stream.clone();
        let result = self.run_one(program, None, &stream, MAIN);
        self.flags.clear();
        result
    }

    fn run_lanes(
        &mut self,
        programs: &[Program],
        job: Job<'_>,
        lanes: &Lanes,
    ) -> Result<(), CudaError> {
        assert_eq!(programs.len(), lanes.lanes.len(), "one program per lane");
        // Orders the lanes behind what the main stream has done to the buffers.
        self.stream.record(&lanes.begun)?;
        for (number, (lane, program)) in lanes.lanes.iter().zip(programs).enumerate() {
            lane.stream.wait(&lanes.begun)?;
            let channel = MAIN + 1 + number as u32;
            self.run_one(program, Some(job), &lane.stream, channel)?;
            // Orders what the main stream does next behind the lane.
            lane.stream.record(&lane.done)?;
            self.stream.wait(&lane.done)?;
        }
        Ok(())
    }

    fn run_one(
        &mut self,
        program: &Program,
        job: Option<Job<'_>>,
        stream: &Stream,
        channel: u32,
    ) -> Result<(), CudaError> {
        // The others do not know the messages of two ranks.
        if channel != PAIRS {
            self.flags.expect(channel, &program.tells);
        }
        for action in &program.actions {
            match (action, job) {
                (Action::Signal(peer), _) => self.flags.signal(channel, *peer),
                (Action::Wait(peer), _) => self.flags.wait(channel, *peer),
                (Action::Fold(fold), Some(job)) => {
                    self.flags.queue(channel, stream)?;
                    self.fold(job, fold, stream)?;
                }
                (Action::Fold(fold), None) => unreachable!("a barrier folds nothing: {fold:?}"),
            }
        }
        self.flags.queue(channel, stream)
    }

    /// Queues a program that two ranks run alone.
    pub(crate) fn run_pair(&mut self, program: &Program, job: Job<'_>) -> Result<(), CudaError> {
        let stream = self.stream.clone();
        let result = self.run_one(program, Some(job), &stream, PAIRS);
        self.flags.clear();
        result
    }

    /// A step with one source: the stream reads the peer's memory.
    fn copy(&self, job: Job<'_>, fold: &Fold, stream: &Stream) -> Result<(), CudaError> {
        let (&[source], &[target]) = (&fold.sources[..], &fold.targets[..]) else {
            unreachable!("what only moves has one source and one target, got {fold:?}");
        };
        let Moves::Transpose(output) = job.moves else {
            let from = job.memory.part(source, job.elements, fold.range);
            let to = job.memory.part(target, job.elements, fold.range);
            return stream.copy(&to, &from);
        };
        let block = job.elements.count() / self.world_size.len();
        assert_eq!(fold.range.len(), block, "one step for each block");
        let block_of = |rank: Rank| {
            let start = rank.index() * block;
            ElemRange::new(start, start + block)
        };
        let from = job.memory.part(source, job.elements, block_of(target));
        let to = output.part(target, job.elements, block_of(source));
        stream.copy(&to, &from)
    }

    fn fold(&mut self, job: Job<'_>, fold: &Fold, stream: &Stream) -> Result<(), CudaError> {
        if !matches!(job.moves, Moves::Kernel) {
            return self.copy(job, fold, stream);
        }
        let key = job.kernel(fold);
        if !key.writes() {
            return Ok(());
        }
        let part = |rank: &Rank| job.memory.part(*rank, job.elements, fold.range);
        let buffers: Spans = fold.buffers().map(part).collect();
        let ranks = self.world_size.len();
        let launch = ReduceLaunch {
            buffers: &buffers,
            divisor: job.reduce.map_or(1, |reduce| divisor(reduce, ranks)),
            cubes_max: self.blocks_max,
        };
        self.kernels.reduction(&key).launch(stream, &launch)
    }
}

/// The one-shot kernel: all of a one-shot schedule in one launch.
///
/// What the schedule does with frames, to put one's buffer to every peer, wait for every peer's and fold
/// them in rank order, the kernel does with packets, thread by thread and without going back to the stream in between:
/// for small buffers that is most of the time.
impl State {
    pub(crate) fn one_shot_key(&self, job: Job<'_>, reduce: ReduceOp) -> OneShotKey {
        one_shot_key(job.elements.dtype, reduce, self.world_size.len())
    }

    pub(crate) fn run_one_shot(&mut self, job: Job<'_>, reduce: ReduceOp) -> Result<(), CudaError> {
        let bytes = job.elements.bytes();
        let seq = self.flags.numbers.one_shot();
        let data = job.memory.own_part(job.elements);
        let launch = OneShotLaunch {
            data: &data,
            inboxes: &self.inboxes[seq as usize % 2],
            waiter: self.flags.waiter(),
            seq,
            divisor: divisor(reduce, self.world_size.len()),
            blocks: OneShotKernel::blocks(bytes).min(self.waiting_blocks_max),
        };
        let kernel = self.kernels.one_shot(self.one_shot_key(job, reduce));
        kernel.launch(&self.stream, &launch)
    }

    /// Queues that this rank's inboxes are empty.
    pub(crate) fn clear_inboxes(&self) -> Result<(), CudaError> {
        let mut own = self.inboxes.iter().map(|ranks| &ranks[self.me.index()]);
        own.try_for_each(|inboxes| self.stream.fill(inboxes, 0))
    }

    /// Queues the two-shot kernel: the direct schedule with its barriers inside, block by block.
    pub(crate) fn run_two_shot(&mut self, job: Job<'_>, reduce: ReduceOp) -> Result<(), CudaError> {
        let (world_size, ranks) = (self.world_size, self.world_size.len());
        let seq = self.flags.numbers.two_shot();
        let shard = shard_range(job.elements.count(), world_size, self.me);
        let part = |rank: Rank| job.memory.part(rank, job.elements, shard);
        let shards: Spans = world_size.ranks().map(part).collect();
        // Of the same bytes on all ranks, whose shards may differ by an element.
        let shard_bytes = job.elements.bytes().div_ceil(ranks);
        let launch = TwoShotLaunch {
            shards: &shards,
            waiter: self.flags.waiter(),
            seq,
            divisor: divisor(reduce, ranks),
            blocks: OneShotKernel::two_shot_blocks(shard_bytes).min(self.waiting_blocks_max),
        };
        let kernel = self.kernels.one_shot(self.one_shot_key(job, reduce));
        kernel.launch_two_shot(&self.stream, &launch)
    }
}
