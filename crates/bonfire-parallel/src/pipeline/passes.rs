//! The passes of one step, and the results that all ranks get.

use std::time::Duration;

use bonfire_plan::pipeline::{PassTimes, Schedule};
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

pub(super) struct Passes<'a, M> {
    pub(super) schedule: &'a Schedule,
    pub(super) world: &'a World,
    pub(super) devices: &'a [Device],
    pub(super) channels: &'a mut Channels,
    pub(super) tie: Option<&'a Tie<M>>,
    pub(super) numbers: &'a [u32],
}

impl<M: Module> Passes<'_, M> {
    /// Runs all passes, and sends all ranks the loss and each rank's computation time. `reduce` takes the gradients of
    /// a stage, by its place on this rank.
    #[track_caller]
    pub(super) fn run<B, R: IntoOutput>(
        &mut self,
        stages: &[M],
        micro_batches: &[B],
        forward: impl Fn(&M, &mut Pass<'_, B>) -> R,
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
        let [forward_s, input_s, weight_s, end_s] = state.watch.totals_s();
        let own = [state.loss()?, forward_s, input_s, weight_s, end_s];
        let all = self.world.group().all_gather(&own)?;
        let ranks: Vec<&[f64]> = all.chunks_exact(own.len()).collect();
        let micro_batches = ranks.len() * self.schedule.micro_batches() as usize;
        let mean = |which: usize| {
            let all_s: f64 = ranks.iter().map(|rank| rank[which]).sum();
            all_s / micro_batches as f64
        };
        let busy = |rank: &&[f64]| Duration::from_secs_f64(rank[1..4].iter().sum());
        let makespan_s = ranks.iter().map(|rank| rank[4]).fold(0.0, f64::max);
        let timing = PipelineTiming {
            passes: std::mem::take(&mut state.watch.passes),
            busy: ranks.iter().map(busy).collect(),
            makespan: Duration::from_secs_f64(makespan_s),
            times: PassTimes {
                forward_s: mean(1),
                input_gradient_s: mean(2),
                weight_gradient_s: mean(3),
            },
        };
        let last = self.schedule.owner(self.schedule.stages() - 1);
        let loss = ranks[last.index()][0];
        let options = (&self.world.device(), DType::F64);
        Ok((Loss::from(Tensor::from_data([loss], options)), timing))
    }
}
