//! The one-shot kernel: the whole of a one-shot schedule in one launch.
//!
//! What the schedule does with frames, to put one's buffer to every peer, wait for every peer's and fold
//! them in rank order, the kernel does with staging buffers and words, block by block and without going
//! back to the stream in between: for small buffers that is most of the time. It waits for its peers
//! inside of a kernel with loads and stores ordered at the scope of the system, for which CubeCL has no
//! words, so it is written in CUDA C++.

use bonfire_cuda::{CudaError, OneShotKernel, OneShotKey, OneShotLaunch};
use bonfire_plan::ReduceOp;

use super::engine::Job;
use super::kernels::{divisor, one_shot_key};
use super::state::State;

impl State {
    /// The kernel that it takes.
    pub(super) fn one_shot_key(&self, job: Job<'_>, reduce: ReduceOp) -> OneShotKey {
        one_shot_key(job.elements.dtype, reduce, self.world_size.len())
    }

    /// Queues the kernel.
    pub(super) fn run_one_shot(&mut self, job: Job<'_>, reduce: ReduceOp) -> Result<(), CudaError> {
        let bytes = job.elements.bytes();
        let seq = self.flags.next_one_shot();
        let data = job.buffer.own_part(job.elements);
        let launch = OneShotLaunch {
            data: &data,
            staging: &self.staging[seq as usize % 2],
            pages: self.flags.pages(),
            abort: self.flags.abort(),
            me: self.me.index(),
            seq,
            divisor: divisor(reduce, self.world_size.len()),
            blocks: OneShotKernel::blocks(bytes).min(self.waiting_blocks_max),
        };
        let kernel = self.kernels.one_shot(self.one_shot_key(job, reduce));
        kernel.launch(&self.stream, &launch)
    }
}
