//! The training loop. Every rank runs it with the same settings and the same corpus.

pub(crate) mod pipeline;

use std::env;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bonfire::checkpoint::TensorTable;
use bonfire::collective::WorldSize;
use bonfire::data::{DistributedSampler, Remainder};
use bonfire::ddp::{Digest, StepOptions};
use bonfire::diloco::Diloco;
use bonfire::optim::{Clip, GlobalBatch, Offload, RateRule};
use bonfire::parallel::zigzag_ranges;
use bonfire::report::{Activity, Journal, JournalConfig, Report, WeightedMean};
use bonfire::world::{Axis, DeviceKind, Mesh, StopRequest};
use bonfire::{Ddp, DdpConfig, World};
use burn::module::Module;
use burn::tensor::Device;

use crate::batch::{self, Sampler};
use crate::checkpoint::Saver;
use crate::data::Corpus;
use crate::model::Gpt;
use crate::optimizer;
use crate::options::{OffloadKind, OptimizerKind, Settings};
use crate::text::{TextBatch, TextWindows};

/// A trained model and the report of its training.
#[derive(Debug)]
pub struct Trained {
    /// The model, without autodiff: the same bits on every rank.
    pub model: Gpt,
    /// The report of the training, as this rank has it.
    pub report: Report,
}

pub fn train(world: &World, settings: &Settings, corpus: &Corpus) -> Result<Trained> {
    let mesh = world.mesh(settings.mesh)?;
    if mesh.sub(Axis::Pp).world_size() > WorldSize::ONE {
        return pipeline::train(world, &mesh, settings, corpus);
    }
    check(&mesh, settings)?;
    let device = world.device().autodiff();
    // Ranks of `data` have the same part of the model and other windows; those of `tp` are the other way round. Those of
    // `cp` have the same part and other tokens of the same windows.
    let (data, tp, cp) = (mesh.data(), mesh.sub(Axis::Tp), mesh.sub(Axis::Cp));
    let context = settings.model.context;
    let schedule = settings.schedule;
    let model = untrained(settings, corpus, &device);
    let (parameters, flops) = (model.num_params(), model.flops_per_token());
    let mut saver = Saver::open(world, &mesh, TensorTable::of(&model), settings)?;
    let model = model.divided(tp).context("--mesh does not fit the model")?.among(cp);
    let config = DdpConfig::default()
        .with_route(settings.gradient_route)
        .with_placement(mesh.placement(settings.placement));
    // Ranks that train alone average gradients with those of their own worker only.
    let (mut diloco, model, near) = match settings.diloco {
        Some(config) => {
            let (diloco, model) = Diloco::new(model, &mesh, config)?;
            (Some(diloco), model, mesh.sub(Axis::DpShard))
        }
        None => (None, model, mesh.replicas()),
    };
    let offload = offload(world, settings)?;
    let mut ddp = Ddp::with_config(model, near, config.with_offload(offload.clone()))?;
    let (mut optimizer, deferred) = optimizer::build(settings.optimizer, offload.as_ref());
    let first = saver.resume(|checkpoints| Ok(checkpoints.resume(&mut ddp, &mut optimizer)?))?;
    let sampler =
        Sampler { seed: settings.seed, windows: corpus.training.len(), batch: settings.batch };
    let global_batch = global_batch(data, settings);
    let title = format!("A character transformer on {}", corpus.text.name());
    let config = JournalConfig::new(title, settings.steps)
        .with_samples_per_step(global_batch.samples() * context, "tokens");
    let mut journal = Journal::new(world, settings.reporting.journal(config, flops))?;
    journal.note(&headline(data, settings, corpus, parameters));

    let initial = Digest::of(&ddp.whole()?.whole()?)?;
    let evaluated = |journal: &mut Journal, ddp: &mut Ddp<Gpt>| -> Result<f64> {
        let loss = evaluate(journal, &ddp.whole()?, data, settings, corpus)?;
        let mut mean = WeightedMean::new();
        mean.add(loss, 1);
        Ok(mean.over_ranks(cp)?)
    };
    let loss = evaluated(&mut journal, &mut ddp)?;
    journal.value("validation_loss", loss)?;
    let request = StopRequest::watch();
    let mut steps = first;
    for step in first..settings.steps {
        if let Some(rank) = request.agreed(world)? {
            journal.note(&format!("stopped after {step} steps: rank {rank} was asked to"));
            if let Some(diloco) = &mut diloco {
                diloco.finish_in(&mut ddp)?;
            }
            break;
        }
        let batch = journal.time(Activity::Data, || {
            let windows = sampler.windows(step, data.rank(), data.world_size());
            corpus.training.batch(&windows, &device)
        });
        let done = ddp.backward(|model| model.loss(batch.tokens, batch.targets))?;
        journal.step(&done);
        journal.time(Activity::Optimizer, || {
            let options = StepOptions::default()
                .with_clip(settings.optimizer.clip.map(Clip::Norm))
                .with_deferred_scale(deferred.as_ref());
            ddp.step_with(&mut optimizer, schedule.rate(step), done.gradients, options)
        })?;

        let done = step + 1;
        steps = done;
        let last = done == settings.steps;
        if let Some(diloco) = &mut diloco {
            diloco.step_in(&mut ddp)?;
            if last {
                diloco.finish_in(&mut ddp)?;
            }
        }
        if done % settings.reporting.log_interval == 0 || last {
            journal.figures(Some(schedule.rate(step)))?;
        }
        if saver.is_due(done) {
            saver.save(done, &mut ddp, &optimizer)?;
        }
        if done % settings.reporting.eval_interval == 0 || last {
            let loss = evaluated(&mut journal, &mut ddp)?;
            journal.value("validation_loss", loss)?;
        }
    }

    saver.save(steps, &mut ddp, &optimizer)?;
    ddp.digest().context("ranks with the same part of the model differ")?;
    let model = ddp.whole()?.whole()?;
    let digest = Digest::of(&model)?;
    let report = journal
        .close()?
        .with_fact("text", corpus.text.name())
        .with_fact("model", format!("{parameters} parameters"))
        .with_fact("mesh", &mesh)
        .with_fact("windows per step", global_batch)
        .with_fact("optimizer", settings.optimizer)
        .with_fact("schedule", settings.schedule)
        .with_fact("initial parameters", initial)
        .with_fact("parameters", digest);
    Ok(Trained { model, report })
}

pub(crate) fn untrained(settings: &Settings, corpus: &Corpus, device: &Device) -> Gpt {
    let config = settings.model.config(corpus.text.vocabulary().len());
    let model = config.init(settings.seed, device);
    if settings.checkpoint_blocks { model.with_recomputed_blocks() } else { model }
}

/// Checks that the settings fit a model that is divided among ranks, if it is.
fn check(mesh: &Mesh, settings: &Settings) -> Result<()> {
    let grid = mesh.grid();
    ensure!(
        grid.size(Axis::Pp) == 1 || grid.size(Axis::Cp) == 1,
        "this example has no stages whose sequences are divided, and this is {mesh}; leave pp or cp out of --mesh"
    );
    zigzag_ranges(settings.model.context, mesh.sub(Axis::Cp))
        .context("--context cannot be divided among the ranks of cp in --mesh")?;
    ensure!(
        grid.size(Axis::Tp) == 1 || settings.optimizer.kind != OptimizerKind::Muon,
        "--optimizer muon needs whole matrices, and {mesh} divides them; choose another optimizer"
    );
    let alone = [Axis::Pp, Axis::Cp].iter().all(|axis| grid.size(*axis) == 1)
        && settings.checkpoints.is_none()
        && settings.offload != OffloadKind::Parameters;
    ensure!(
        settings.diloco.is_none() || alone,
        "this example trains with --local-steps without --checkpoints and --offload parameters, and without pp and cp in \
         --mesh; leave them out"
    );
    Ok(())
}

/// The offload of the optimizer's state and parameters, if they are outside of the device's memory.
fn offload(world: &World, settings: &Settings) -> Result<Option<Offload>> {
    let folder = settings.offload_folder.clone();
    let files = |folder: Option<PathBuf>| {
        let folder = folder.unwrap_or_else(env::temp_dir);
        Offload::to_files(folder).context("--offload-folder cannot be used")
    };
    let place = || {
        if world.device_kind() == DeviceKind::Cpu || folder.is_some() {
            files(folder)
        } else {
            Ok(Offload::to_memory())
        }
    };
    Ok(match settings.offload {
        OffloadKind::None => None,
        OffloadKind::Optimizer => Some(place()?),
        OffloadKind::Parameters => Some(place()?.with_parameters()),
    })
}

fn evaluate(
    journal: &mut Journal,
    model: &Gpt,
    data: &World,
    settings: &Settings,
    corpus: &Corpus,
) -> Result<f64> {
    let losses = |batches: &[TextBatch]| {
        let batches = batches.iter().cloned();
        let loss = |batch: TextBatch| model.loss(batch.tokens, batch.targets).into_scalar::<f64>();
        Ok(batches.map(loss).collect())
    };
    let (windows, batch) = (settings.reporting.eval_windows, settings.batch);
    journal.time(Activity::Evaluation, || {
        validation_loss(data, windows, &corpus.validation, batch, losses)
    })
}

/// The mean loss over the same windows for every world size, each scored by exactly one rank of `data`. `losses` are
/// those of batches of at most `batch` windows.
fn validation_loss(
    data: &World,
    windows: usize,
    text: &TextWindows,
    batch: usize,
    losses: impl FnOnce(&[TextBatch]) -> Result<Vec<f64>>,
) -> Result<f64> {
    let windows = batch::spread(text.len(), windows);
    let sampler = DistributedSampler::new(data, windows.len()).with_remainder(Remainder::Exact);
    let own: Vec<usize> = sampler.indices(0).into_iter().map(|window| windows[window]).collect();
    let own = || own.chunks(batch);
    let batches: Vec<_> = own().map(|windows| text.batch(windows, &data.device())).collect();
    let mut mean = WeightedMean::new();
    for (loss, windows) in losses(&batches)?.into_iter().zip(own()) {
        mean.add(loss, windows.len());
    }
    Ok(mean.over_ranks(data)?)
}

/// The samples of a step on all ranks.
fn global_batch(data: &World, settings: &Settings) -> GlobalBatch {
    GlobalBatch {
        world_size: data.world_size(),
        batch_size: NonZeroUsize::new(settings.batch).unwrap_or(NonZeroUsize::MIN),
        accumulation: NonZeroUsize::MIN,
    }
}

/// The settings of a training. An epoch is as many windows as hold the text once; the rate is the configured one,
/// whatever the number of ranks.
fn headline(data: &World, settings: &Settings, corpus: &Corpus, parameters: usize) -> String {
    format!(
        "{} parameters on {}; {} characters of {}, {} distinct; windows of {}; {}; {} steps",
        parameters,
        data.device_name(),
        corpus.text.len(),
        corpus.text.name(),
        corpus.text.vocabulary().len(),
        settings.model.context,
        RateRule::None.headline(
            global_batch(data, settings),
            corpus.training.text().len() / settings.model.context,
            settings.schedule.peak
        ),
        settings.steps,
    )
}
