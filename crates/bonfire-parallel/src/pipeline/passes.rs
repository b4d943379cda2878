//! The passes of one step, and what all ranks hear of them.

use std::time::Duration;

use bonfire_plan::pipeline::Schedule;
use bonfire_train::{Loss, World};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};

use super::channels::Channels;
use super::error::PipelineError;
use super::output::IntoOutput;
use super::pass::Pass;
use super::run::{Run, State};
use super::tied::Tie;
use super::timing::PipelineTiming;

/// What the passes of a step need, besides the stages.
pub(super) struct Passes<'a, M> {
    pub(super) schedule: &'a Schedule,
    pub(super) world: &'a World,
    pub(super) devices: &'a [Device],
    pub(super) channels: &'a mut Channels,
    pub(super) tie: Option<&'a Tie<M>>,
    pub(super) numbers: &'a [u32],
}

impl<M: Module> Passes<'_, M> {
    /// Runs them all, and tells all ranks the loss, and how long each of them computed. `reduce` takes the gradients of
    /// a stage, by its place on this rank.
    #[track_caller]
    pub(super) fn run<B, R: IntoOutput>(
        &mut self,
        stages: &[M],
        (micro_batches, forward): (&[B], impl Fn(&M, &mut Pass<'_, B>) -> R),
        reduce: impl FnMut(usize, GradientsParams),
    ) -> Result<(Loss, PipelineTiming), PipelineError> {
        let run = Run {
            schedule: self.schedule,
            me: self.world.rank(),
            stages,
            devices: self.devices,
            micro_batches,
            forward,
            channels: self.channels,
            tie: self.tie,
            reduce,
            state: State::new(self.numbers.to_vec()),
        };
        let mut state = run.run()?;
        let (busy_s, end_s) = state.watch.totals_s();
        let own = [state.loss()?, busy_s, end_s];
        let all = self.world.group().all_gather(&own)?;
        let last = self.schedule.owner(self.schedule.stages() - 1);
        let mut makespan_s = 0.0_f64;
        let mut busy = Vec::new();
        for rank in all.chunks_exact(own.len()) {
            busy.push(Duration::from_secs_f64(rank[1]));
            makespan_s = makespan_s.max(rank[2]);
        }
        let timing = PipelineTiming {
            passes: std::mem::take(&mut state.watch.passes),
            busy,
            makespan: Duration::from_secs_f64(makespan_s),
        };
        let loss = all[last.index() * own.len()];
        let options = (&self.world.device(), DType::F64);
        Ok((Loss::from(Tensor::from_data([loss], options)), timing))
    }
}
