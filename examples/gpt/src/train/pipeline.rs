//! Training over a pipeline: the ranks of `pp` have the layers one behind the other.

use std::convert::Infallible;
use std::num::NonZeroU32;

use anyhow::{Context, Result};
use bonfire::DdpConfig;
use bonfire::collective::Rank;
use bonfire::config::Config;
use bonfire::ddp::Digest;
use bonfire::parallel::schedule::{Demand, Kind, PassTimes, Schedule, Shape, choose, partition};
use bonfire::parallel::{Axes, Pipeline, layer_seconds};
use bonfire::plan::Bytes;
use bonfire::trainer::{Stages, prepare};
use bonfire::world::Axis;

use super::{Run, Trained};
use crate::model::Gpt;

impl Run<'_> {
    /// Trains a model of which every rank has some layers, or parts of these.
    pub(super) fn stages(&self) -> Result<Trained> {
        let mut config = self.settings.config.clone();
        let weights = if self.settings.args.tries_schedules() {
            self.try_schedules(&mut config)?
        } else {
            self.model().weights()
        };
        let parts = self.parts(|model| {
            let stage = move |layers| Ok::<_, Infallible>(model.stage(&layers));
            Stages::new(weights.clone(), stage).with_tied(Gpt::head)
        })?;
        let mut trainer = prepare(self.world, &config, parts)?;
        trainer.note(&self.headline());
        trainer.fact("model", self.size());
        let initial = Digest::of(&self.joined(trainer.pipeline(), &weights)?)?;
        trainer.fact("initial parameters", initial);
        let validation = self.validation();
        let mut is_due = true;
        loop {
            if is_due {
                let loss = trainer.evaluate(&validation, Gpt::pass)?;
                trainer.value("validation_loss", loss)?;
            }
            let Some(micro_batches) = trainer.next_batch()? else { break };
            trainer.step(micro_batches, Gpt::pass)?;
            is_due = trainer.evaluation_is_due();
        }
        let model = self.joined(trainer.pipeline(), &weights)?;
        trainer.fact("parameters", Digest::of(&model)?);
        let stop_code = trainer.stop_code();
        Ok(Trained { model, report: trainer.finish()?, stop_code })
    }

    /// Gathers the complete model, on every rank.
    fn joined(&self, pipeline: &Pipeline<Gpt>, weights: &[f64]) -> Result<Gpt> {
        let schedule = pipeline.schedule();
        let all = (0..schedule.stages()).map(self.stages_of(schedule, weights)?).collect();
        Ok(Gpt::joined(pipeline.gather(all)?).context("the stages are all layers")?.whole()?)
    }

    /// Returns what makes each stage of a schedule, by its number.
    pub(crate) fn stages_of(
        &self,
        schedule: &Schedule,
        weights: &[f64],
    ) -> Result<impl Fn(u32) -> Gpt + use<>> {
        let runs = partition(weights, schedule.stages() as usize)
            .context("--layers, the embedding and the head are too few for pp in --mesh")?;
        let model = self.divided(self.model())?;
        Ok(move |stage| model.stage(&runs[stage as usize]))
    }

    /// Chooses the fastest schedule by the time of passes in a trial, which changes no parameter, and returns the
    /// seconds of each layer. All ranks use the times of rank 0. It ignores memory.
    fn try_schedules(&self, config: &mut Config) -> Result<Vec<f64>> {
        let (world, pp) = (self.world, self.mesh.sub(Axis::Pp));
        let micro_batches = self.micro_batches()?;
        let layers = self.settings.args.layers + 2;
        let model = self.divided(self.model())?;
        let single: Vec<_> = (0..layers).map(|layer| model.stage(&(layer..layer + 1))).collect();
        let seconds = layer_seconds(world, layers, |layer| single[layer].alone(&micro_batches[0]))?;
        let trial = Shape {
            // It leaves gradients of weights for later, if the model does, so all three times are seen.
            kind: Kind::ZeroBubbleH1,
            ranks: pp.world_size(),
            chunks: NonZeroU32::MIN,
            micro_batches: u32::try_from(micro_batches.len())?.try_into()?,
        };
        let schedule = Schedule::new(trial)?;
        let own = schedule.stages_on(pp.rank()).into_iter();
        let own = own.map(self.stages_of(&schedule, &seconds)?).collect();
        let axes = Axes { stages: pp, data: self.mesh.data() };
        let pipeline = Pipeline::with_config(own, schedule, axes, DdpConfig::default())?;
        let mut pipeline = pipeline.with_tied(Gpt::head)?;
        // The first step warms up.
        pipeline.backward(&micro_batches, Gpt::pass)?;
        let times = pipeline.backward(&micro_batches, Gpt::pass)?.output.times;
        let mut times = [times.forward_s, times.input_gradient_s, times.weight_gradient_s];
        world.group().broadcast(&mut times, Rank::new(0))?;
        let [forward_s, input_gradient_s, weight_gradient_s] = times;
        let has_two_each = layers >= 2 * trial.ranks.len();
        let candidates = choose(&Demand {
            ranks: trial.ranks,
            micro_batches: trial.micro_batches,
            chunks_max: trial.chunks.saturating_add(has_two_each.into()),
            times: PassTimes { forward_s, input_gradient_s, weight_gradient_s },
            message_s: 0.0,
            activations: Bytes::new(1),
            activations_max: Bytes::new(u64::MAX),
        })?;
        let fastest = candidates.first().context("no schedule goes with --micro-batches")?.shape;
        config.pipeline.schedule = fastest.kind;
        config.pipeline.stages_per_rank = Some(fastest.chunks.get());
        Ok(seconds)
    }
}
