//! The training loop over a pipeline: the ranks of `pp` have the layers one behind the other, those of `dp` other
//! windows, those of `tp` parts of the same layers.

use std::num::NonZeroU32;

use anyhow::{Context, Result, ensure};
use bonfire::checkpoint::Whole;
use bonfire::collective::Rank;
use bonfire::ddp::Digest;
use bonfire::optim::Clip;
use bonfire::parallel::schedule::{Demand, Kind, PassTimes, Schedule, Shape, choose, partition};
use bonfire::parallel::{Axes, Pipeline, divided_parameters};
use bonfire::plan::Bytes;
use bonfire::report::{Activity, Journal, JournalConfig};
use bonfire::world::{Axis, Mesh, StopRequest};
use bonfire::{DdpConfig, World};
use burn::module::Module;

use super::{Trained, check, global_batch, untrained, validation_loss};
use crate::batch::Sampler;
use crate::checkpoint::Saver;
use crate::data::Corpus;
use crate::model::{Gpt, Part};
use crate::optimizer;
use crate::options::{Order, Settings};
use crate::text::TextBatch;

/// Trains a model whose stages are on the ranks of `pp`.
pub(super) fn train(
    world: &World,
    mesh: &Mesh,
    settings: &Settings,
    corpus: &Corpus,
) -> Result<Trained> {
    ensure!(
        settings.offload_folder.is_none(),
        "--offload does not go with pp in --mesh"
    );
    let device = world.device().autodiff();
    check(mesh, settings)?;
    let (pp, data, tp) = (mesh.sub(Axis::Pp), mesh.data(), mesh.sub(Axis::Tp));
    let model = untrained(settings, corpus, &device);
    let (parameters, weights) = (model.num_params(), model.weights());
    let flops = model.flops_per_token();
    let mut saver = Saver::open(world, mesh, Whole::of(&model), settings)?;
    let model = model.divided(tp).context("--mesh does not fit the model")?;
    let divided = divided_parameters(&model);
    let sampler = Sampler {
        seed: settings.seed,
        windows: corpus.training.len(),
        batch: settings.batch,
    };
    let micro_batches = |step| -> Vec<TextBatch> {
        let windows = sampler.windows(step, data.rank(), data.world_size());
        let micro_batches = windows.chunks(settings.micro_batch());
        micro_batches
            .map(|windows| corpus.training.batch(windows, &device))
            .collect()
    };
    let shape = match settings.pipeline.order {
        Order::Named(kind) => shape(pp, settings, kind)?,
        Order::Fastest => {
            // It leaves gradients of weights for later, if the model does, so all three times are seen.
            let trial = shape(pp, settings, Kind::ZeroBubbleH1)?;
            let (mut pipeline, _) = stages(mesh, settings, (&model, &weights), trial)?;
            fastest(
                world,
                &mut pipeline,
                trial,
                &micro_batches(0),
                weights.len(),
            )?
        }
    };
    let (mut pipeline, all) = stages(mesh, settings, (&model, &weights), shape)?;
    let mut optimizer = optimizer::build(settings.optimizer, None);
    let first = saver.resume(|saved| Ok(pipeline.resume(saved, &mut optimizer)?))?;
    let tokens = global_batch(data, settings).samples() * settings.model.context;
    let title = format!("A character transformer on {}", corpus.text.name());
    let journal = JournalConfig::new(title, settings.steps).samples_per_step(tokens, "tokens");
    let mut journal = Journal::new(world, settings.reporting.journal(journal, flops))?;
    journal.note(&format!(
        "{parameters} parameters on {mesh}; {} stages by {}, {} micro-batches",
        pipeline.schedule().stages(),
        shape.kind,
        settings.pipeline.micro_batches,
    ));
    let whole = |pipeline: &Pipeline<Part>| -> Result<Gpt> {
        let own =
            Gpt::joined(pipeline.gather(all.clone())?).context("the stages are all layers")?;
        Ok(own.whole()?)
    };
    let initial = Digest::of(&whole(&pipeline)?)?;
    let evaluate = |journal: &mut Journal, pipeline: &mut Pipeline<Part>| {
        let sizes = (settings.reporting.eval_windows, settings.micro_batch());
        journal.time(Activity::Evaluation, || {
            validation_loss(data, sizes, &corpus.validation, |batches| {
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
            journal.note(&format!(
                "stopped after {step} steps: rank {rank} was asked to"
            ));
            break;
        }
        let micro_batches = journal.time(Activity::Data, || micro_batches(step));
        let done = pipeline.backward(&micro_batches, Part::forward)?;
        journal.step(&done);
        journal.time(Activity::Optimizer, || -> Result<()> {
            let gradients = done.gradients;
            let gradients = gradients.divided_over(tp, |parameter| divided.contains(&parameter));
            let gradients = match settings.optimizer.clip {
                Some(norm_max) => gradients.clip(Clip::Norm(norm_max))?,
                None => gradients,
            };
            let rate = settings.schedule.rate(step);
            Ok(pipeline.step(&mut optimizer, rate, gradients)?)
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

/// The pipeline of a shape, and the stages of all ranks, of a model that is divided among the ranks of `tp`.
fn stages(
    mesh: &Mesh,
    settings: &Settings,
    (model, weights): (&Gpt, &[f64]),
    shape: Shape,
) -> Result<(Pipeline<Part>, Vec<Part>)> {
    let (pp, data, tp) = (mesh.sub(Axis::Pp), mesh.data(), mesh.sub(Axis::Tp));
    let schedule = Schedule::new(shape);
    let schedule = schedule.context("--schedule and --micro-batches do not go together")?;
    let runs = partition(weights, schedule.stages() as usize)
        .context("--layers, the embedding and the head are too few for pp in --mesh")?;
    let all = model.clone().cut(&runs, tp);
    let own = schedule.stages_on(pp.rank()).into_iter();
    let own = own.map(|stage| all[stage as usize].clone()).collect();
    let ddp = DdpConfig::default()
        .with_route(settings.gradient_route)
        .with_placement(mesh.placement(settings.placement));
    let axes = Axes { stages: pp, data };
    let pipeline = Pipeline::with_config(own, schedule, axes, ddp)?;
    Ok((pipeline.with_tied(Part::head)?, all))
}

/// The shape that the settings ask for, of one kind.
fn shape(pp: &World, settings: &Settings, kind: Kind) -> Result<Shape> {
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
        ranks: pp.world_size(),
        chunks: NonZeroU32::new(chunks).context("a rank has a stage")?,
        micro_batches,
    })
}

/// The fastest shape by what passes take in a trial, which changes no parameter. All ranks of `world` take that which rank
/// 0 measures. It does not look at memory.
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
    let PassTimes {
        forward_s,
        input_gradient_s,
        weight_gradient_s,
    } = times;
    let mut times = [forward_s, input_gradient_s, weight_gradient_s];
    world.group().broadcast(&mut times, Rank::new(0))?;
    let [forward_s, input_gradient_s, weight_gradient_s] = times;
    let chunks_max = match layers >= 2 * trial.ranks.len() {
        true => trial.chunks.saturating_add(1),
        false => trial.chunks,
    };
    let candidates = choose(&Demand {
        ranks: trial.ranks,
        micro_batches: trial.micro_batches,
        chunks_max,
        times: PassTimes {
            forward_s,
            input_gradient_s,
            weight_gradient_s,
        },
        message_s: 0.0,
        activations: Bytes::new(1),
        activations_max: Bytes::new(u64::MAX),
    })?;
    let first = candidates.first();
    Ok(first
        .context("no schedule goes with --micro-batches")?
        .shape)
}
