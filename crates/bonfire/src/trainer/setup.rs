//! Starts or continues a training.

use std::sync::Arc;

use bonfire_config::{Config, KeptIn};
use bonfire_launch::StopRequest;
use bonfire_report::{Journal, JournalConfig};
use bonfire_train::{Checkpoints, InputPlacement, LossScaler, Recompute, World};

use super::data::{Fed, Feed};
use super::engine::{Engine, Model};
use super::resolve::{Resolved, clip, keep, micro, resolve, scaler};
use super::{Parts, Progress, Trainer, diloco, parts};
use crate::all_or_none;
use crate::error::{Error, Result};

/// Makes a training of a model, its data and a configuration, and continues from its newest checkpoint where there is
/// one. Every rank calls it, with an equal model and configuration. [`Trainer`] has an example.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for a configuration that does not fit the ranks or the data,
/// [`Error::Usage`](crate::Error::Usage) for a mesh with `tp`, `cp` or `pp` that [`Parts::with_mesh`] is not given, and
/// for one with `pp` without [`Stages`](super::Stages); those of [`Ddp::with_config`](crate::Ddp::with_config) or
/// [`Pipeline::with_config`](crate::parallel::Pipeline::with_config), and of
/// [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume). An error of one rank reaches all: see
/// [`all_or_none`](crate::all_or_none).
#[track_caller]
pub fn prepare<M: Model, B: Send + 'static>(
    world: &World,
    config: &Config,
    parts: impl Into<Parts<M, B>>,
) -> Result<Trainer<M, M::Batch<B>>> {
    let Resolved {
        config,
        mut place,
        batches,
        mut feed,
        rates,
        stop,
        part,
        calls,
        ddp,
        mut optimizer,
        deferred,
        diloco,
        units,
        display,
        flops,
        planned,
    } = all_or_none(world, resolve::<M, B>(world, config, parts.into()))?;
    all_or_none(world, alike(world, &config))?;
    place.check_parts()?;
    let (diloco, module) = match diloco {
        Some(options) => {
            let begun = diloco::begin(world, &mut place, &config, options, part.module)?;
            (Some(begun.0), begun.1)
        }
        None => (None, part.module),
    };
    let mut engine = (part.connect)(module, &place, ddp)?;
    let checkpoints = match &config.checkpoints.folder {
        Some(folder) => {
            let opened = Checkpoints::open(world, folder, keep(&config)).map_err(Error::from);
            let checkpoints = place.whole(all_or_none(world, opened)?)?;
            let with_optimizer = config.checkpoints.resume_optimizer;
            Some(if with_optimizer { checkpoints } else { checkpoints.without_optimizer() })
        }
        None => None,
    };
    let resumed = match &checkpoints {
        Some(checkpoints) if config.checkpoints.resume => {
            all_or_none(world, engine.resume::<Progress>(checkpoints, &mut optimizer))?
        }
        Some(checkpoints) => {
            checkpoints.set_aside()?;
            None
        }
        None => None,
    };
    let resumed = resumed.map(|resumed| resumed.state);
    let mut progress = progress(scaler(&config), batches.accumulation, resumed);
    let (seed, new) = (*progress.seed.get_or_insert(config.seed), config.seed);
    if seed != new {
        let cause = Error::Usage(format!(
            "the checkpoint is of a training with seed={seed}, and this one has seed={new}: set seed={seed}, or start \
             again with checkpoints.resume=false"
        ));
        return all_or_none(world, Err(cause));
    }
    if let (Feed::Epochs { loader, .. }, Some(state)) = (&mut feed, &progress.data) {
        // Known only now: a checkpoint may be of other data.
        *loader = all_or_none(world, loader.clone().resuming(state))?;
        // On other ranks an epoch may have no step left.
        let has_ended = progress.epochs < loader.epoch();
        progress.evaluation_is_due |= has_ended && config.evaluation.every.is_none();
        progress.epochs = loader.epoch();
    }
    let steps = total_steps(&config, &feed, batches.accumulation / calls.passes, &progress);
    let rates = rates.unwrap_or_else(|| parts::by_step(config.rates(steps)));
    log_notes(world, &config);
    let samples = usize::try_from(batches.train).unwrap_or(usize::MAX);
    let mut journal = JournalConfig::new(config.report.title.clone(), steps)
        .with_samples_per_step(samples.saturating_mul(units.1), units.0)
        .with_steps_done(progress.steps)
        .with_display(display);
    journal.flops = flops;
    journal = match (&config.report.folder, &config.report.run_name) {
        (Some(parent), Some(name)) => journal.with_new_folder(parent, name),
        (Some(folder), None) => journal.with_folder(folder),
        (None, _) => journal,
    };
    Ok(Trainer {
        journal: Journal::new(world, journal)?,
        clip: clip(&config),
        deferred,
        diloco,
        facts: Vec::new(),
        micro: micro(&batches).get(),
        accumulation: batches.accumulation,
        passes_per_call: calls.passes,
        stop: Arc::new(stop.unwrap_or_else(StopRequest::watch)),
        is_stopped: false,
        is_saved: true,
        world: world.clone(),
        place,
        config,
        passes: 0,
        reached: Fed::default(),
        engine,
        optimizer,
        rates,
        rate: None,
        feed,
        checkpoints,
        progress,
        planned,
    })
}

/// Returns the progress of a checkpoint, if there is one. A training may continue with another precision, or with more
/// or fewer forward passes in a step.
fn progress(scaler: Option<LossScaler>, accumulation: u64, resumed: Option<Progress>) -> Progress {
    let resumed = resumed.unwrap_or_default();
    let before = resumed.accumulation.unwrap_or(accumulation).max(1);
    Progress {
        passes: resumed.passes.saturating_mul(accumulation) / before,
        accumulation: Some(accumulation),
        scaler: match (scaler, resumed.scaler) {
            (Some(new), Some(saved)) => Some(new.or_resumed(saved)),
            (new, _) => new,
        },
        ..resumed
    }
}

/// Returns the steps of the whole training, of `calls` batches each; 0 if they are not known. Those of earlier runs are
/// as they were, because other ranks have another number in an epoch.
fn total_steps<B>(config: &Config, feed: &Feed<B>, calls: u64, progress: &Progress) -> u64 {
    let (None, Feed::Epochs { loader, .. }) = (config.steps, feed) else {
        return config.steps.unwrap_or(0);
    };
    let steps = |batches: usize| (batches as u64).div_ceil(calls);
    let (rest, whole) = (steps(loader.batches_left()), steps(loader.batches_per_epoch()));
    let epochs = config.epochs.saturating_sub(loader.epoch());
    let skipped = progress.scaler.as_ref().map_or(0, LossScaler::skipped);
    let left = whole.saturating_mul(epochs.saturating_sub(1)).saturating_add(rest * epochs.min(1));
    left.saturating_add(progress.steps + skipped)
}

/// Logs the keys of a DeepSpeed file that have no effect, or another than DeepSpeed's.
fn log_notes(world: &World, config: &Config) {
    let keys: Vec<&str> = config.notes.iter().map(|note| &note.path[..]).collect();
    if world.is_main() && !keys.is_empty() {
        tracing::info!(
            "`bonfire config check` has notes on these keys of the DeepSpeed file: {}",
            keys.join(", ")
        );
    }
}

/// Returns how blocks that are computed again in the backward pass keep their inputs: as `offload.activations` sets
/// it. A model runs its blocks by the result, in place of [`recompute`](crate::nn::recompute()).
///
/// ```
/// # use bonfire::{config::Config, trainer};
/// # use burn::{nn::Linear, tensor::{Tensor, activation::gelu}};
/// # fn forward(config: &Config, block: &Linear, x: Tensor<2>) -> Tensor<2> {
/// trainer::recompute(config).run(block, x, |block, x| gelu(block.forward(x)))
/// # }
/// ```
pub fn recompute(config: &Config) -> Recompute {
    Recompute::default().with_inputs_in(match config.offload.activations {
        KeptIn::None => InputPlacement::Device,
        KeptIn::Memory => InputPlacement::Host,
    })
}

/// Checks that this rank has the configuration of rank 0, but for what each host may have of its own.
#[track_caller]
fn alike(world: &World, config: &Config) -> Result<()> {
    let is_own = |path: &str| {
        let of_host = ["checkpoints.folder", "data.workers"].contains(&path);
        of_host || ["offload.", "report."].iter().any(|section| path.starts_with(section))
    };
    let values = config.resolved().into_iter().filter(|value| !is_own(&value.path));
    let own: Vec<String> = values.map(|value| format!("{}={}", value.path, value.value)).collect();
    let sent = if world.is_main() { own.join("\0") } else { String::new() };
    let sent = world.group().all_gather_bytes(sent.as_bytes())?;
    let first = String::from_utf8_lossy(&sent[0]);
    match first.split('\0').zip(&own).find(|(first, own)| first != own) {
        None => Ok(()),
        Some((first, own)) => Err(Error::Usage(format!(
            "rank 0 has {first}, and rank {} has {own}: start all ranks with the same configuration",
            world.rank()
        ))),
    }
}
