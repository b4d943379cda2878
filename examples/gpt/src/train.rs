//! The training loop. Every rank runs it with the same settings and the same corpus.

mod pipeline;

use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use bonfire::collective::WorldSize;
use bonfire::data::{DistributedSampler, Order, Remainder, SamplerConfig};
use bonfire::ddp::Digest;
use bonfire::optim::{Clip, GlobalBatch, Offload, RateRule};
use bonfire::parallel::divided_parameters;
use bonfire::report::{Activity, Journal, JournalConfig, Report, WeightedMean};
use bonfire::world::{Axis, Mesh, StopRequest};
use bonfire::{Ddp, DdpConfig, World};
use burn::module::Module;
use burn::tensor::Device;

use crate::batch::{self, Sampler};
use crate::data::Corpus;
use crate::model::Gpt;
use crate::optimizer;
use crate::options::{OffloadKind, OptimizerKind, Settings};
use crate::text::TextWindows;

/// A trained model and the account of its training.
#[derive(Debug)]
pub struct Trained {
    /// The model, without autodiff: the same bits on every rank.
    pub model: Gpt,
    /// What the training came to, as this rank saw it.
    pub report: Report,
}

/// Trains a model on all ranks of `world`.
pub fn train(world: &World, settings: &Settings, corpus: &Corpus) -> Result<Trained> {
    let mesh = world.mesh(settings.mesh)?;
    if mesh.sub(Axis::Pp).world_size() > WorldSize::ONE {
        return pipeline::train(world, &mesh, settings, corpus);
    }
    check(&mesh, settings)?;
    let device = world.device().autodiff();
    // Ranks of `data` have the same part of the model and other windows; those of `tp` are the other way round.
    let (data, tp) = (mesh.data(), mesh.sub(Axis::Tp));
    let context = settings.model.context;
    let schedule = settings.schedule;
    let model = untrained(settings, corpus, &device);
    let parameters = model.num_params();
    let model = model.divided(tp).context("--mesh does not fit the model")?;
    let divided = divided_parameters(&model);
    let config = DdpConfig::default()
        .with_route(settings.gradient_route)
        .with_placement(mesh.placement(settings.placement));
    let offload = match &settings.offload_folder {
        Some(folder) => {
            let device = world.device_name();
            ensure!(
                device == "cpu",
                "--offload is for the CPU, not for {device}"
            );
            let files = Offload::to_files(folder).context("--offload-folder cannot be used")?;
            Some(match settings.offload {
                OffloadKind::Parameters => files.with_parameters(),
                OffloadKind::None | OffloadKind::Optimizer => files,
            })
        }
        None => None,
    };
    let mut ddp = Ddp::with_offload(model, data, config, offload.clone())?;
    let mut optimizer = optimizer::build(settings.optimizer, offload.as_ref());
    let sampler = Sampler {
        seed: settings.seed,
        windows: corpus.training.len(),
        batch: settings.batch,
    };
    let global_batch = global_batch(data, settings);
    let title = format!("A character transformer on {}", corpus.text.name());
    let config = JournalConfig::new(title, settings.steps)
        .samples_per_step(global_batch.samples() * context, "tokens")
        .folder(&settings.reporting.report_dir);
    let mut journal = Journal::new(world, config)?;
    journal.note(&headline(data, settings, corpus, parameters));

    let loss = evaluate(&mut journal, &ddp.whole()?, data, settings, corpus)?;
    journal.value("validation_loss", loss)?;
    let request = StopRequest::watch();
    for step in 0..settings.steps {
        if let Some(rank) = request.agreed(world)? {
            journal.note(&format!(
                "stopped after {step} steps: rank {rank} was asked to"
            ));
            break;
        }
        let batch = journal.time(Activity::Data, || {
            let windows = sampler.windows(step, data.rank(), data.world_size());
            corpus.training.batch(&windows, &device)
        });
        let done = ddp.backward(|model| model.loss(batch.tokens, batch.targets))?;
        journal.step(&done);
        journal.time(Activity::Optimizer, || {
            let gradients = done.gradients;
            let gradients = gradients.divided_over(tp, |parameter| divided.contains(&parameter));
            let gradients = match settings.optimizer.clip {
                Some(norm_max) => gradients.clip(Clip::Norm(norm_max))?,
                None => gradients,
            };
            ddp.step(&mut optimizer, schedule.rate(step), gradients)
        })?;

        let done = step + 1;
        let last = done == settings.steps;
        if done % settings.reporting.log_interval == 0 || last {
            journal.figures(Some(schedule.rate(step)))?;
        }
        if done % settings.reporting.eval_interval == 0 || last {
            let loss = evaluate(&mut journal, &ddp.whole()?, data, settings, corpus)?;
            journal.value("validation_loss", loss)?;
        }
    }

    ddp.digest()
        .context("ranks with the same part of the model differ")?;
    let model = ddp.whole()?.whole()?;
    let digest = Digest::of(&model)?;
    let report = journal
        .close()?
        .with_fact("text", corpus.text.name())
        .with_fact("model", format!("{parameters} parameters"))
        .with_fact("device", world.device_name())
        .with_fact("mesh", &mesh)
        .with_fact("windows per step", global_batch)
        .with_fact("optimizer", format!("{:?}", settings.optimizer))
        .with_fact("schedule", format!("{:?}", settings.schedule))
        .with_fact("parameters", digest);
    Ok(Trained { model, report })
}

/// The model before its first step.
pub(crate) fn untrained(settings: &Settings, corpus: &Corpus, device: &Device) -> Gpt {
    let config = settings.model.config(corpus.text.vocabulary().len());
    let model = config.init(settings.seed, device);
    match settings.checkpoint_blocks {
        true => model.with_recomputed_blocks(),
        false => model,
    }
}

/// That the settings go with a model that is divided among ranks, if it is.
fn check(mesh: &Mesh, settings: &Settings) -> Result<()> {
    let grid = mesh.grid();
    ensure!(
        grid.size(Axis::Cp) == 1,
        "this example has no context parallelism, and this is {mesh}; divide the ranks among pp, dp and tp"
    );
    ensure!(
        grid.size(Axis::Tp) == 1 || settings.optimizer.kind != OptimizerKind::Muon,
        "--optimizer muon needs whole matrices, and {mesh} divides them; choose another optimizer"
    );
    Ok(())
}

fn evaluate(
    journal: &mut Journal,
    model: &Gpt,
    data: &World,
    settings: &Settings,
    corpus: &Corpus,
) -> Result<f64> {
    journal.time(Activity::Evaluation, || {
        validation_loss(model, data, settings, &corpus.validation)
    })
}

/// The mean loss over the same windows for every world size, each scored by exactly one rank of `data`.
fn validation_loss(
    model: &Gpt,
    data: &World,
    settings: &Settings,
    text: &TextWindows,
) -> Result<f64> {
    let windows = batch::spread(text.len(), settings.reporting.eval_windows);
    let sampler = DistributedSampler::new(
        data,
        SamplerConfig::new(windows.len(), Order::Sequential).remainder(Remainder::Exact),
    );
    let own: Vec<usize> = sampler
        .indices(0)
        .into_iter()
        .map(|window| windows[window])
        .collect();
    let mut mean = WeightedMean::new();
    for windows in own.chunks(settings.batch) {
        let batch = text.batch(windows, &data.device());
        let loss = model.loss(batch.tokens, batch.targets);
        mean.add(loss.into_scalar::<f64>(), windows.len());
    }
    mean.over_ranks(data)?
        .context("there is no validation window")
}

/// How the windows of a step come about.
fn global_batch(data: &World, settings: &Settings) -> GlobalBatch {
    GlobalBatch {
        world_size: data.world_size(),
        batch_size: NonZeroUsize::new(settings.batch).unwrap_or(NonZeroUsize::MIN),
        accumulation: NonZeroUsize::MIN,
    }
}

/// The decisions of a training. An epoch is as many windows as hold the text once; the rate is the
/// one that was asked for, whatever the number of ranks.
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
