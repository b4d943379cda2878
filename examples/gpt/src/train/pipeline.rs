//! Training over a pipeline: the ranks of `pp` have the layers one behind the other.

use std::convert::Infallible;
use std::num::NonZeroU32;

use anyhow::{Context, Result};
use bonfire::DdpConfig;
use bonfire::collective::{Rank, WorldSize};
use bonfire::config::Config;
use bonfire::ddp::Digest;
use bonfire::parallel::schedule::{Demand, Kind, PassTimes, Schedule, Shape, choose, partition};
use bonfire::parallel::{Axes, Pipeline, layer_seconds};
use bonfire::plan::Bytes;
use bonfire::trainer::{Stages, Trainer, prepare};
use bonfire::world::Axis;

use super::{Facts, Run, Trained, untrained};
use crate::batch::passes;
use crate::model::Gpt;
use crate::text::TextBatch;

impl Run<'_> {
    /// Trains a model of which every rank has some layers, or parts of these.
    pub(super) fn stages(&self) -> Result<Trained> {
        let mut config = self.config();
        let model = untrained(self.settings, self.corpus, &self.device);
        let facts = Facts::of(&model);
        let weights = if self.settings.args.tries_schedules() {
            self.try_schedules(&mut config)?
        } else {
            model.weights()
        };
        let model = self.divided(model)?;
        let stage = move |layers| Ok::<_, Infallible>(model.stage(&layers));
        let stages = Stages::new(weights.clone(), stage).with_tied(Gpt::head);
        let parts = self.parts(stages, &config, &facts)?;
        let mut trainer = prepare(self.world, &config, parts)?;
        trainer.note(&self.headline(&facts));
        trainer.fact("model", format!("{} parameters", facts.parameters));
        let whole = |pipeline: &Pipeline<Gpt>| -> Result<Gpt> {
            let stages = partition(&weights, pipeline.schedule().stages() as usize)?;
            // A rank does not keep those of others in memory meanwhile.
            let model = self.divided(untrained(self.settings, self.corpus, &self.device))?;
            let all = stages.iter().map(|layers| model.stage(layers)).collect();
            drop(model);
            Ok(Gpt::joined(pipeline.gather(all)?).context("the stages are all layers")?.whole()?)
        };
        let initial = Digest::of(&whole(trainer.pipeline())?)?;
        trainer.fact("initial parameters", initial);

        let validation = self.validation();
        let evaluate = |trainer: &mut Trainer<Stages<Gpt>, Vec<TextBatch>>| -> Result<()> {
            let loss = trainer.evaluate(&validation, Gpt::pass)?;
            Ok(trainer.value("validation_loss", loss)?)
        };
        evaluate(&mut trainer)?;
        while let Some(micro_batches) = trainer.next_batch()? {
            trainer.step(micro_batches, Gpt::pass)?;
            if trainer.evaluation_is_due() {
                evaluate(&mut trainer)?;
            }
        }
        let model = whole(trainer.pipeline())?;
        trainer.fact("parameters", Digest::of(&model)?);
        Ok(Trained { model, report: trainer.finish()? })
    }

    fn divided(&self, model: Gpt) -> Result<Gpt> {
        model.divided(self.mesh.sub(Axis::Tp)).context("--mesh does not fit the model")
    }

    /// Chooses the fastest schedule by the time of passes in a trial, which changes no parameter, and returns the
    /// seconds of each layer. All ranks use the times of rank 0. It ignores memory.
    fn try_schedules(&self, config: &mut Config) -> Result<Vec<f64>> {
        let (world, pp, data) = (self.world, self.mesh.sub(Axis::Pp), self.mesh.data());
        let (per_step, batch) = passes(&self.corpus.training, config, data, &self.device)?;
        let micro_batches: Vec<TextBatch> = (0..per_step).map(batch).collect();
        let model = || self.divided(untrained(self.settings, self.corpus, &self.device));
        let layers = self.settings.args.layers + 2;
        let single = model()?;
        let single: Vec<_> = (0..layers).map(|layer| single.stage(&(layer..layer + 1))).collect();
        let seconds = layer_seconds(world, layers, |layer| single[layer].alone(&micro_batches[0]))?;
        // It leaves gradients of weights for later, if the model does, so all three times are seen.
        (config.pipeline.schedule, config.pipeline.stages_per_rank) = (Kind::ZeroBubbleH1, None);
        let trial = shape(config, pp.world_size(), micro_batches.len())?;
        let schedule = Schedule::new(trial)?;
        let own = owned(&model()?, &seconds, &schedule, pp.rank())?;
        let axes = Axes { stages: pp, data };
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

/// The shape of the schedule of a configuration.
pub(crate) fn shape(config: &Config, ranks: WorldSize, micro_batches: usize) -> Result<Shape> {
    let kind = config.pipeline.schedule;
    let usual = match kind {
        Kind::Interleaved | Kind::ZeroBubbleV => 2,
        _ => 1,
    };
    let chunks = config.pipeline.stages_per_rank.unwrap_or(usual);
    Ok(Shape {
        kind,
        ranks,
        chunks: NonZeroU32::new(chunks).context("a rank has a stage")?,
        micro_batches: u32::try_from(micro_batches)?.try_into()?,
    })
}

/// The stages of a rank.
pub(crate) fn owned(
    model: &Gpt,
    weights: &[f64],
    schedule: &Schedule,
    rank: Rank,
) -> Result<Vec<Gpt>> {
    let runs = partition(weights, schedule.stages() as usize)
        .context("--layers, the embedding and the head are too few for pp in --mesh")?;
    let own = schedule.stages_on(rank).into_iter();
    Ok(own.map(|stage| model.stage(&runs[stage as usize])).collect())
}
