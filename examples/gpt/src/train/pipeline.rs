//! The training loop over a pipeline: the ranks of `pp` have the layers one behind the other, those of `dp` other
//! windows, those of `tp` parts of the same layers.

use std::num::NonZeroU32;

use anyhow::{Context, Result, ensure};
use bonfire::checkpoint::Whole;
use bonfire::ddp::Digest;
use bonfire::optim::Clip;
use bonfire::parallel::schedule::{Kind, Schedule, Shape, partition};
use bonfire::parallel::{Axes, Pipeline, divided_parameters};
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
use crate::options::Settings;
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
    let mut saver = Saver::open(world, mesh, Whole::of(&model), settings)?;
    let schedule = schedule(pp, settings)?;
    let runs = partition(&weights, schedule.stages() as usize)
        .context("--layers, the embedding and the head are too few for pp in --mesh")?;
    let model = model.divided(tp).context("--mesh does not fit the model")?;
    let divided = divided_parameters(&model);
    let all = model.cut(&runs, tp);
    let own = schedule.stages_on(pp.rank()).into_iter();
    let own = own.map(|stage| all[stage as usize].clone()).collect();
    let ddp = DdpConfig::default()
        .with_route(settings.gradient_route)
        .with_placement(mesh.placement(settings.placement));
    let axes = Axes { stages: pp, data };
    let pipeline = Pipeline::with_config(own, schedule, axes, ddp)?;
    let mut pipeline = pipeline.with_tied(Part::head)?;
    let mut optimizer = optimizer::build(settings.optimizer, None);
    let first = saver.resume(|saved| Ok(pipeline.resume(saved, &mut optimizer)?))?;
    let sampler = Sampler {
        seed: settings.seed,
        windows: corpus.training.len(),
        batch: settings.batch,
    };

    let tokens = global_batch(data, settings).samples() * settings.model.context;
    let title = format!("A character transformer on {}", corpus.text.name());
    let journal = JournalConfig::new(title, settings.steps).samples_per_step(tokens, "tokens");
    let mut journal = Journal::new(world, settings.reporting.journal(journal))?;
    journal.note(&format!(
        "{parameters} parameters on {mesh}; {} stages by {}, {} micro-batches",
        pipeline.schedule().stages(),
        settings.pipeline.kind,
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
        let micro_batches: Vec<TextBatch> = journal.time(Activity::Data, || {
            let windows = sampler.windows(step, data.rank(), data.world_size());
            let micro_batches = windows.chunks(settings.micro_batch());
            micro_batches
                .map(|windows| corpus.training.batch(windows, &device))
                .collect()
        });
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
        .with_fact("pipeline", settings.pipeline.kind)
        .with_fact("initial parameters", initial)
        .with_fact("parameters", Digest::of(&model)?);
    Ok(Trained { model, report })
}

/// The schedule that the settings ask for.
fn schedule(pp: &World, settings: &Settings) -> Result<Schedule> {
    let kind = settings.pipeline.kind;
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
    let shape = Shape {
        kind,
        ranks: pp.world_size(),
        chunks: NonZeroU32::new(chunks).context("a rank has a stage")?,
        micro_batches,
    };
    Schedule::new(shape).context("--schedule and --micro-batches do not go together")
}
