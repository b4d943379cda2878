//! The training loop over a pipeline: the ranks of `pp` have the layers one behind the other, those of `dp` other
//! windows, those of `tp` parts of the same layers.

use std::num::NonZeroU32;

use anyhow::{Context, Result, ensure};
use bonfire::checkpoint::TensorTable;
use bonfire::collective::{Rank, WorldSize};
use bonfire::ddp::{Digest, StepOptions};
use bonfire::optim::Clip;
use bonfire::parallel::schedule::{Demand, Kind, PassTimes, Schedule, Shape, choose, partition};
use bonfire::parallel::{Axes, Pipeline, layer_seconds};
use bonfire::plan::Bytes;
use bonfire::report::{Activity, Journal, JournalConfig};
use bonfire::world::{Axis, Mesh, StopRequest};
use bonfire::{DdpConfig, World};
use burn::module::Module;

use super::{Trained, check, global_batch, offload, untrained, validation_loss};
use crate::batch::Sampler;
use crate::checkpoint::Saver;
use crate::data::Corpus;
use crate::model::{Gpt, Part};
use crate::optimizer;
use crate::options::{OffloadKind, Order, Settings};
use crate::text::TextBatch;

pub(super) fn train(
    world: &World,
    mesh: &Mesh,
    settings: &Settings,
    corpus: &Corpus,
) -> Result<Trained> {
    ensure!(
        settings.offload != OffloadKind::Parameters,
        "--offload parameters does not go with pp in --mesh; --offload optimizer does"
    );
    let offload = offload(world, settings)?;
    let device = world.device().autodiff();
    check(mesh, settings)?;
    let (pp, data, tp) = (mesh.sub(Axis::Pp), mesh.data(), mesh.sub(Axis::Tp));
    let model = untrained(settings, corpus, &device);
    let parameters = model.num_params();
    let flops = model.flops_per_token();
    let mut saver = Saver::open(world, mesh, TensorTable::of(&model), settings)?;
    let sampler =
        Sampler { seed: settings.seed, windows: corpus.training.len(), batch: settings.batch };
    let micro_batches = |step| -> Vec<TextBatch> {
        let windows = sampler.windows(step, data.rank(), data.world_size());
        let micro_batches = windows.chunks(settings.micro_batch());
        micro_batches.map(|windows| corpus.training.batch(windows, &device)).collect()
    };
    let ranks = pp.world_size();
    let (weights, shape) = match settings.pipeline.order {
        Order::Named(kind) => (model.weights(), shape(ranks, settings, kind)?),
        Order::Fastest => {
            let trial_batches = micro_batches(0);
            let weights = seconds(world, model.clone(), tp, &trial_batches[0])?;
            // It leaves gradients of weights for later, if the model does, so all three times are seen.
            let trial = shape(ranks, settings, Kind::ZeroBubbleH1)?;
            let stages = stages(model.clone(), &weights, trial, tp)?;
            let mut pipeline = pipeline(mesh, settings, stages, trial)?;
            let layers = weights.len();
            let shape = fastest(world, &mut pipeline, trial, &trial_batches, layers)?;
            (weights, shape)
        }
    };
    let own = stages(model, &weights, shape, tp)?;
    let mut pipeline = pipeline(mesh, settings, own, shape)?;
    let (mut optimizer, deferred) = optimizer::build(settings.optimizer, offload.as_ref());
    let first = saver.resume(|saved| Ok(pipeline.resume(saved, &mut optimizer)?))?;
    let tokens = global_batch(data, settings).samples() * settings.model.context;
    let title = format!("A character transformer on {}", corpus.text.name());
    let journal = JournalConfig::new(title, settings.steps).with_samples_per_step(tokens, "tokens");
    let mut journal = Journal::new(world, settings.reporting.journal(journal, flops))?;
    journal.note(&format!(
        "{parameters} parameters on {mesh}; {} stages by {}, {} micro-batches",
        pipeline.schedule().stages(),
        shape.kind,
        settings.pipeline.micro_batches,
    ));
    let whole = |pipeline: &Pipeline<Part>| -> Result<Gpt> {
        // A rank does not keep those of others in memory meanwhile.
        let all = stages(untrained(settings, corpus, &device), &weights, shape, tp)?;
        let own = Gpt::joined(pipeline.gather(all)?).context("the stages are all layers")?;
        Ok(own.whole()?)
    };
    let initial = Digest::of(&whole(&pipeline)?)?;
    let evaluate = |journal: &mut Journal, pipeline: &mut Pipeline<Part>| {
        let (windows, batch) = (settings.reporting.eval_windows, settings.micro_batch());
        journal.time(Activity::Evaluation, || {
            validation_loss(data, windows, &corpus.validation, batch, |batches| {
                Ok(pipeline.evaluate(batches, Part::forward)?)
            })
        })
    };
    let loss = evaluate(&mut journal, &mut pipeline)?;
    journal.value("validation_loss", loss)?;
    let request = StopRequest::watch();
    let mut steps = first;
    for step in first..settings.steps {
        if let Some(rank) = request.agreed(world)? {
            journal.note(&format!("stopped after {step} steps: rank {rank} was asked to"));
            break;
        }
        let micro_batches = journal.time(Activity::Data, || micro_batches(step));
        let done = pipeline.backward(&micro_batches, Part::forward)?;
        journal.step(&done);
        journal.time(Activity::Optimizer, || {
            let options = StepOptions::default()
                .with_clip(settings.optimizer.clip.map(Clip::Norm))
                .with_deferred_scale(deferred.as_ref());
            let rate = settings.schedule.rate(step);
            pipeline.step_with(&mut optimizer, rate, done.gradients, options)
        })?;
        let done = step + 1;
        steps = done;
        let last = done == settings.steps;
        if done % settings.reporting.log_interval == 0 || last {
            journal.figures(Some(settings.schedule.rate(step)))?;
        }
        if saver.is_due(done) {
            saver.save(done, pipeline.ddp(), &optimizer)?;
        }
        if done % settings.reporting.eval_interval == 0 || last {
            let loss = evaluate(&mut journal, &mut pipeline)?;
            journal.value("validation_loss", loss)?;
        }
    }
    saver.save(steps, pipeline.ddp(), &optimizer)?;
    // Its state is saved, and its memory is for the complete model.
    drop(optimizer);
    let model = whole(&pipeline)?;
    let report = journal
        .close()?
        .with_fact("text", corpus.text.name())
        .with_fact("model", format!("{parameters} parameters"))
        .with_fact("mesh", mesh)
        .with_fact("pipeline", shape.kind)
        .with_fact("initial parameters", initial)
        .with_fact("parameters", Digest::of(&model)?);
    Ok(Trained { model, report })
}

fn seconds(world: &World, model: Gpt, tp: &World, batch: &TextBatch) -> Result<Vec<f64>> {
    let layers: Vec<_> = (0..model.weights().len()).map(|layer| layer..layer + 1).collect();
    let model = model.divided(tp).context("--mesh does not fit the model")?;
    let layers = model.cut(&layers, tp);
    let forward = |layer: usize| layers[layer].alone(batch);
    Ok(layer_seconds(world, layers.len(), forward)?)
}

/// All stages of a model, cut by the weights of its layers, which are divided among the ranks of `tp`.
pub(crate) fn stages(model: Gpt, weights: &[f64], shape: Shape, tp: &World) -> Result<Vec<Part>> {
    let runs = partition(weights, shape.stages() as usize)
        .context("--layers, the embedding and the head are too few for pp in --mesh")?;
    let model = model.divided(tp).context("--mesh does not fit the model")?;
    Ok(model.cut(&runs, tp))
}

fn pipeline(
    mesh: &Mesh,
    settings: &Settings,
    all: Vec<Part>,
    shape: Shape,
) -> Result<Pipeline<Part>> {
    let (pp, data) = (mesh.sub(Axis::Pp), mesh.data());
    let schedule = schedule(shape)?;
    let own = owned(all, &schedule, pp.rank());
    let ddp = DdpConfig::default()
        .with_route(settings.gradient_route)
        .with_placement(mesh.placement(settings.placement));
    let axes = Axes { stages: pp, data };
    let pipeline = Pipeline::with_config(own, schedule, axes, ddp)?;
    Ok(pipeline.with_tied(Part::head)?)
}

pub(crate) fn schedule(shape: Shape) -> Result<Schedule> {
    let schedule = Schedule::new(shape);
    schedule.context("--schedule and --micro-batches do not go together")
}

/// The stages of a rank, from all of them.
pub(crate) fn owned(all: Vec<Part>, schedule: &Schedule, rank: Rank) -> Vec<Part> {
    let all = (0..).zip(all);
    let own = all.filter(|(stage, _)| schedule.owner(*stage) == rank);
    own.map(|(_, part)| part).collect()
}

/// The shape of one kind that the settings describe.
pub(crate) fn shape(ranks: WorldSize, settings: &Settings, kind: Kind) -> Result<Shape> {
    let micro_batches = settings.pipeline.micro_batches;
    ensure!(
        settings.batch.is_multiple_of(micro_batches.get() as usize),
        "--batch {} cannot be cut into {micro_batches} equal micro-batches; choose a multiple of --micro-batches",
        settings.batch
    );
    let chunks = match kind {
        Kind::Interleaved | Kind::ZeroBubbleV => 2,
        _ => 1,
    };
    Ok(Shape {
        kind,
        ranks,
        chunks: NonZeroU32::new(chunks).context("a rank has a stage")?,
        micro_batches,
    })
}

/// The fastest shape by the time of passes in a trial, which changes no parameter. All ranks of `world` use the times
/// of rank 0. It ignores memory.
fn fastest(
    world: &World,
    pipeline: &mut Pipeline<Part>,
    trial: Shape,
    micro_batches: &[TextBatch],
    layers: usize,
) -> Result<Shape> {
    // The first step warms up.
    pipeline.backward(micro_batches, Part::forward)?;
    let step = pipeline.backward(micro_batches, Part::forward)?;
    let times = step.output.times;
    let PassTimes { forward_s, input_gradient_s, weight_gradient_s } = times;
    let mut times = [forward_s, input_gradient_s, weight_gradient_s];
    world.group().broadcast(&mut times, Rank::new(0))?;
    let [forward_s, input_gradient_s, weight_gradient_s] = times;
    let chunks_max =
        if layers >= 2 * trial.ranks.len() { trial.chunks.saturating_add(1) } else { trial.chunks };
    let candidates = choose(&Demand {
        ranks: trial.ranks,
        micro_batches: trial.micro_batches,
        chunks_max,
        times: PassTimes { forward_s, input_gradient_s, weight_gradient_s },
        message_s: 0.0,
        activations: Bytes::new(1),
        activations_max: Bytes::new(u64::MAX),
    })?;
    let first = candidates.first();
    Ok(first.context("no schedule goes with --micro-batches")?.shape)
}
