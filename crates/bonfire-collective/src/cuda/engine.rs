//! What a rank queues for each collective: the direct and the one-shot engine.

use std::ops::ControlFlow;

use bonfire_plan::{ElemRange, Rank, ReduceOp, shard_range};
use bonfire_sys::cuda::{CudaError, FoldKernel, FoldKey, FoldLaunch, OneShotLaunch, Span};
use smallvec::SmallVec;

use super::buffer::{CudaBuffer, Elements};
use super::group::State;
use super::kernels::{copy_key, divisor, key};
use super::options::{CudaAlgorithm, CudaSync};

/// A buffer's part on each of some ranks; no allocation for up to 8.
pub(super) type Spans = SmallVec<[Span; 8]>;

/// What is done between two barriers: each rank folds one range of some ranks' buffers, in this order, and
/// writes it to the same range of others. It is the `ReduceDirect` of the zero-copy plans.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) key: FoldKey,
    pub(super) divisor: u32,
    pub(super) range: ElemRange,
    pub(super) sources: SmallVec<[Rank; 8]>,
    pub(super) targets: SmallVec<[Rank; 8]>,
}

/// Everything that one collective is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) buffer: &'a CudaBuffer,
    pub(super) elements: &'a Elements,
}

impl State {
    /// The algorithm for an all-reduce of that many bytes.
    pub(super) fn choose(&self, bytes: usize) -> CudaAlgorithm {
        let one_shot = self.flags.sync() == CudaSync::Kernel
            && bytes <= self.options.one_shot_bytes_max
            && bytes > 0;
        match self.options.algorithm {
            Some(CudaAlgorithm::OneShot) | None if one_shot => CudaAlgorithm::OneShot,
            Some(CudaAlgorithm::Ring) => CudaAlgorithm::Ring,
            Some(_) | None => CudaAlgorithm::Direct,
        }
    }

    /// Each rank folds its shard of all buffers and writes it to all of them.
    pub(super) fn direct_all_reduce(&self, job: Job<'_>, reduce: ReduceOp) -> Direct {
        let (world, dtype) = (self.world_size, job.elements.dtype);
        Direct {
            key: key(dtype, reduce, world.len()),
            divisor: divisor(reduce, world.len()),
            range: shard_range(job.elements.count(), world, self.me),
            sources: world.ranks().collect(),
            targets: world.ranks().collect(),
        }
    }

    /// Each rank folds its shard of all buffers into its own.
    pub(super) fn direct_reduce_scatter(&self, job: Job<'_>, reduce: ReduceOp) -> Direct {
        Direct {
            targets: [self.me].into_iter().collect(),
            ..self.direct_all_reduce(job, reduce)
        }
    }

    /// Each rank folds its shard of all buffers and writes it to the root's.
    pub(super) fn direct_reduce(&self, job: Job<'_>, reduce: ReduceOp, root: Rank) -> Direct {
        Direct {
            targets: [root].into_iter().collect(),
            ..self.direct_all_reduce(job, reduce)
        }
    }

    /// Each rank writes its shard to all others.
    pub(super) fn direct_all_gather(&self, job: Job<'_>) -> Direct {
        self.direct_copy(job, self.me)
    }

    /// Each rank copies its shard of the root's buffer to all others, so that every link carries a part.
    pub(super) fn direct_broadcast(&self, job: Job<'_>, root: Rank) -> Direct {
        self.direct_copy(job, root)
    }

    fn direct_copy(&self, job: Job<'_>, from: Rank) -> Direct {
        let world = self.world_size;
        Direct {
            key: copy_key(job.elements.dtype),
            divisor: 1,
            range: shard_range(job.elements.count(), world, self.me),
            sources: [from].into_iter().collect(),
            targets: world.ranks().filter(|rank| *rank != from).collect(),
        }
    }

    /// Queues a barrier, the kernel and a barrier: nobody reads before all are ready, and nobody's stream
    /// goes on before all have written.
    pub(super) fn run_direct(&mut self, job: Job<'_>, direct: &Direct) -> Result<(), CudaError> {
        self.flags.barrier(&self.stream)?;
        if !direct.range.is_empty() && !direct.targets.is_empty() {
            let part = |rank: &Rank| job.buffer.part(rank.index(), job.elements, direct.range);
            let sources: Spans = direct.sources.iter().map(part).collect();
            let targets: Spans = direct.targets.iter().map(part).collect();
            let launch = FoldLaunch {
                sources: &sources,
                targets: &targets,
                divisor: direct.divisor,
                blocks_max: self.blocks_max,
            };
            self.kernel(direct.key).launch(&self.stream, &launch)?;
        }
        self.flags.barrier(&self.stream)
    }

    /// Queues the one-shot kernel.
    pub(super) fn run_one_shot(&mut self, job: Job<'_>, reduce: ReduceOp) -> Result<(), CudaError> {
        let world = self.world_size.len();
        let bytes = job.elements.bytes();
        let seq = self.flags.next_one_shot();
        let all = ElemRange::up_to(job.elements.count());
        let data = job.buffer.part(self.me.index(), job.elements, all);
        let launch = OneShotLaunch {
            data: &data,
            staging: &self.staging[seq as usize % 2],
            pages: self.flags.pages(),
            me: self.me.index(),
            seq,
            divisor: divisor(reduce, world),
            blocks: FoldKernel::one_shot_blocks(bytes).min(self.waiting_blocks_max),
        };
        let kernel = self.kernel(key(job.elements.dtype, reduce, world));
        kernel.launch_one_shot(&self.stream, &launch)
    }

    pub(super) fn kernel(&self, key: FoldKey) -> &FoldKernel {
        self.kernels.get(key).expect("loaded before the operation")
    }
}

/// Whether there is anything to do: a world of one rank has its result already.
pub(super) fn alone(world_size: usize, count: usize) -> ControlFlow<()> {
    if world_size == 1 || count == 0 {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
