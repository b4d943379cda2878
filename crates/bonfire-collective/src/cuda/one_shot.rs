//! The one-shot kernel: the whole of a one-shot schedule in one launch.
//!
//! What the schedule does with frames, to put one's buffer to every peer, wait for every peer's and fold
//! them in rank order, the kernel does with staging buffers and words, block by block and without going
//! back to the stream in between: for small buffers that is most of the time. It waits for its peers
//! inside of a kernel with loads and stores ordered at the scope of the system, for which CubeCL has no
//! words, so it is written in CUDA C++.

use bonfire_plan::{ElemRange, ReduceOp};
use bonfire_sys::cuda::{CudaError, FoldKernel, FoldKey, OneShotLaunch};

use super::engine::Job;
use super::kernels::{divisor, key};
use super::state::State;

impl State {
    /// The kernel that it takes.
    pub(super) fn one_shot_key(&self, job: Job<'_>, reduce: ReduceOp) -> FoldKey {
        key(job.elements.dtype, reduce, self.world_size.len())
    }

    /// Queues the kernel.
    pub(super) fn run_one_shot(&mut self, job: Job<'_>, reduce: ReduceOp) -> Result<(), CudaError> {
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
            divisor: divisor(reduce, self.world_size.len()),
            blocks: FoldKernel::one_shot_blocks(bytes).min(self.waiting_blocks_max),
        };
        let kernel = self.kernel(self.one_shot_key(job, reduce));
        kernel.launch_one_shot(&self.stream, &launch)
    }
}
