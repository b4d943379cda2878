//! Starts or continues a training.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use bonfire_config::{
    Best as BestMetric, Compute, Config, Decay as DecayKind, KeptIn, OffloadSection, OffloadTo,
    Wire,
};
use bonfire_data::{LastBatch, Loader, Order, Prefetch, Remainder};
use bonfire_launch::StopRequest;
use bonfire_optim::{Decay, Offload, ScalerConfig, Schedule};
use bonfire_report::{Journal, JournalConfig, ModelFlops};
use bonfire_train::{
    Best, Checkpoints, Clip, Ddp, DdpConfig, DeviceKind, GradientCompression, InputPlacement, Keep,
    LossScaler, Precision, Recompute, World,
};
use burn::module::Module;

use super::data::{Fed, Feed, Source};
use super::mesh::{Place, placed};
use super::parts::Rates;
use super::{Data, Parts, Progress, Trainer, memory, optimizer};
use crate::all_or_none;
use crate::error::{Error, Result};

/// Makes a training of a model, its data and a configuration, and continues from its newest checkpoint where there is
/// one. Every rank calls it, with an equal model and configuration.
///
/// ```no_run
/// # use bonfire::{World, Error, config::Config, trainer::{Data, Parts, prepare}};
/// # use burn::nn::Linear;
/// # use burn::tensor::Tensor;
/// # fn train(world: World, model: Linear, data: Data<Tensor<2>>) -> Result<(), Error> {
/// let config = Config::load(Some("train.toml".as_ref()), ["optimizer.lr=3e-4"])?;
/// let mut trainer = prepare(&world, &config, (model, data))?;
/// while let Some(batch) = trainer.next_batch()? {
///     trainer.step(batch, |model, batch| model.forward(batch).powi_scalar(2).mean())?;
/// }
/// println!("{}", trainer.finish()?);
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Config`] for a configuration that does not fit the ranks or the data, [`Error::Usage`] for a mesh with
/// `pp`, and for one with `tp` or `cp` that [`Parts::with_mesh`] is not given; those of
/// [`Ddp::with_config`](crate::Ddp::with_config) and of
/// [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume). An error of one rank reaches all: see
/// [`all_or_none`](crate::all_or_none).
#[track_caller]
pub fn prepare<M: Module, B: Send + 'static>(
    world: &World,
    config: &Config,
    parts: impl Into<Parts<M, B>>,
) -> Result<Trainer<M, B>> {
    let Parts {
        model,
        data,
        optimizer,
        rates,
        stop,
        activations,
        flops_per_sample,
        mesh,
    } = parts.into();
    let (config, grid) = &all_or_none(world, placed(config, world.world_size()))?;
    let place = all_or_none(world, Place::new(world, *grid, mesh, &model))?;
    let ranks = place.data().world_size().get();
    let batches = all_or_none(world, config.batches(u64::from(ranks)))?;
    let flops = all_or_none(world, model_flops(config, flops_per_sample))?;
    let micro = NonZeroUsize::new(usize::try_from(batches.micro).unwrap_or(usize::MAX))
        .unwrap_or(NonZeroUsize::MIN);
    let mut feed = all_or_none(world, feed(place.data(), config, data, micro))?;
    let steps = total_steps(config, &feed, batches.accumulation);
    let rates = rates.unwrap_or_else(|| configured_rates(config, steps));
    let offload = all_or_none(world, Offloads::new(world, config))?;
    let (mut optimizer, deferred) = match optimizer {
        Some(optimizer) => (optimizer, None),
        None => {
            let offload = offload.optimizer;
            all_or_none(world, place.check_optimizer(config.optimizer.kind))?;
            all_or_none(world, optimizer::build(&config.optimizer, &model, offload))?
        }
    };
    let accumulation = batches.accumulation;
    let planned = activations.map(|activations| {
        memory::planned(place.replicas(), config, &model, accumulation, activations)
    });
    let planned = all_or_none(world, planned.transpose())?;
    let ddp_config = ddp_config(config).with_offload(offload.parameters);
    let mut ddp = Ddp::with_config(model, place.replicas(), ddp_config)?;
    let checkpoints = match &config.checkpoints.folder {
        Some(folder) => {
            let keep = keep(config);
            Some(place.whole(Checkpoints::open(world, folder, keep)?)?)
        }
        None => None,
    };
    let resumed = match &checkpoints {
        Some(checkpoints) if config.checkpoints.resume => {
            checkpoints.resume::<_, Progress>(&mut ddp, &mut optimizer)?
        }
        Some(checkpoints) => {
            checkpoints.set_aside()?;
            None
        }
        None => None,
    };
    let mut progress = Progress {
        scaler: scaler(config),
        ..Progress::default()
    };
    if let Some(resumed) = resumed {
        progress = Progress {
            // A training may continue with another precision.
            scaler: match (progress.scaler, resumed.state.scaler) {
                (Some(new), Some(saved)) => Some(new.or_resumed(saved)),
                (new, _) => new,
            },
            ..resumed.state
        };
    }
    if let (Feed::Dealt { loader, .. }, Some(state)) = (&mut feed, &progress.data) {
        *loader = all_or_none(world, loader.clone().resuming(state))?;
    }
    log_notes(world, config);
    let samples = usize::try_from(batches.train).unwrap_or(usize::MAX);
    let mut journal = JournalConfig::new(config.report.title.clone(), steps)
        .with_samples_per_step(samples, "samples")
        .with_steps_done(progress.steps);
    journal.flops = flops;
    if let Some(folder) = &config.report.folder {
        journal = journal.with_folder(folder);
    }
    Ok(Trainer {
        journal: Journal::new(world, journal)?,
        clip: clip(config),
        deferred,
        micro: micro.get(),
        accumulation: batches.accumulation,
        stop: stop.unwrap_or_else(StopRequest::watch),
        saved: progress.steps,
        world: world.clone(),
        place,
        config: config.clone(),
        passes: 0,
        reached: Fed::default(),
        ddp,
        optimizer,
        rates,
        feed,
        checkpoints,
        progress,
        planned,
    })
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

fn feed<B>(world: &World, config: &Config, data: Data<B>, micro: NonZeroUsize) -> Result<Feed<B>> {
    let wrong = |cause: String| Err(Error::Usage(cause));
    let (len, make) = match data.source {
        Source::Samples(len, make) => (len, make),
        Source::Passes(_) if config.steps.is_none() => {
            return wrong("data without end needs `steps` in the configuration".to_owned());
        }
        Source::Passes(make) => return Ok(Feed::Passes(make)),
    };
    let order = if config.data.shuffle {
        Order::Shuffled { seed: config.seed }
    } else {
        Order::Sequential
    };
    let (remainder, last) = if config.data.drop_last {
        (Remainder::Drop, LastBatch::Drop)
    } else {
        (Remainder::Pad, LastBatch::Keep)
    };
    let loader = Loader::new(world, len, micro.get())
        .with_order(order)
        .with_remainder(remainder)
        .with_last_batch(last);
    if loader.batches_per_epoch() == 0 {
        let ranks = world.world_size();
        return wrong(format!(
            "{len} samples make no batch of {micro} on each of {ranks} ranks; choose a smaller batch.micro, fewer \
             ranks, or data.drop_last=false"
        ));
    }
    Ok(Feed::Dealt {
        loader,
        make,
        prefetch: Prefetch::default().with_workers(config.data.workers),
        epoch: None,
    })
}

/// Combines the program's operations per sample with the configured peak of the device.
fn model_flops(config: &Config, per_sample: Option<f64>) -> Result<Option<ModelFlops>> {
    match (per_sample.map(ModelFlops::per_sample), config.report.peak_flops) {
        (Some(flops), Some(peak)) => Ok(Some(flops.with_peak(peak))),
        (None, Some(_)) => Err(Error::Usage(
            "report.peak_flops is for a program that sets the operations of its model; leave it out, or call \
             Parts::with_flops_per_sample"
                .to_owned(),
        )),
        (flops, None) => Ok(flops),
    }
}

fn total_steps<B>(config: &Config, feed: &Feed<B>, accumulation: u64) -> u64 {
    match (config.steps, feed) {
        (Some(steps), _) => steps,
        (None, Feed::Dealt { loader, .. }) => {
            config.epochs * (loader.batches_per_epoch() as u64).div_ceil(accumulation)
        }
        (None, Feed::Passes(_)) => 0,
    }
}

fn configured_rates(config: &Config, steps: u64) -> Rates {
    if let Some(schedule) = config.deepspeed_schedule {
        return Arc::new(move |step| schedule.rate(step));
    }
    let warmup = config.schedule.warmup_steps;
    let (steps, final_factor) = (steps.saturating_sub(warmup), config.schedule.final_factor);
    let schedule = Schedule::constant(config.optimizer.lr).with_warmup(warmup);
    let schedule = schedule.with_decay(match config.schedule.decay {
        DecayKind::Constant => Decay::Constant,
        DecayKind::Linear => Decay::Linear {
            steps,
            final_factor,
        },
        DecayKind::Cosine => Decay::Cosine {
            steps,
            final_factor,
        },
    });
    Arc::new(move |step| schedule.rate(step))
}

/// The state that is kept outside of device memory.
#[derive(Default)]
pub(super) struct Offloads {
    pub(super) parameters: Option<Offload>,
    pub(super) optimizer: Option<Offload>,
}

impl Offloads {
    pub(super) fn new(world: &World, config: &Config) -> Result<Self> {
        let OffloadSection {
            optimizer,
            parameters,
            ..
        } = &config.offload;
        // In memory is where everything on the CPU is anyway.
        let in_memory = || (world.device_kind() != DeviceKind::Cpu).then(Offload::to_memory);
        let of_optimizer = match optimizer {
            OffloadTo::Files(folder) => Some(files(folder)?),
            OffloadTo::Memory => in_memory(),
            OffloadTo::None => None,
        };
        match parameters {
            OffloadTo::Files(folder) => {
                if matches!(optimizer, OffloadTo::Files(other) if folder != other) {
                    let cause =
                        "offload.optimizer and offload.parameters are two folders; choose one";
                    return Err(Error::Usage(cause.to_owned()));
                }
                let both = Some(files(folder)?.with_parameters());
                Ok(Self {
                    parameters: both.clone(),
                    optimizer: both,
                })
            }
            OffloadTo::Memory => Ok(Self {
                parameters: in_memory().map(Offload::with_parameters),
                optimizer: of_optimizer.or_else(in_memory),
            }),
            OffloadTo::None => Ok(Self {
                parameters: None,
                optimizer: of_optimizer,
            }),
        }
    }
}

fn files(folder: &Path) -> Result<Offload> {
    std::fs::create_dir_all(folder)?;
    Ok(Offload::to_files(folder)?)
}

pub(crate) fn ddp_config(config: &Config) -> DdpConfig {
    let own = DdpConfig::default();
    let bytes = config
        .gradients
        .bucket_bytes
        .unwrap_or(own.bucket_bytes_max);
    own.with_placement(config.placement)
        .with_bucket_bytes_max(bytes)
        .with_precision(match config.precision.compute {
            Compute::F32 => Precision::F32,
            Compute::Bf16 => Precision::Bf16,
            Compute::F16 => Precision::F16,
        })
        .with_compression(match config.gradients.wire {
            Wire::Own => GradientCompression::None,
            Wire::Bf16 => GradientCompression::Bf16,
            Wire::F16 => GradientCompression::Fp16,
        })
}

fn keep(config: &Config) -> Keep {
    let keep = Keep::last(config.checkpoints.keep);
    match config.checkpoints.best {
        Some(BestMetric::Lowest) => keep.and_best(Best::Lowest),
        Some(BestMetric::Highest) => keep.and_best(Best::Highest),
        None => keep,
    }
}

fn clip(config: &Config) -> Option<Clip> {
    match (config.clip.norm, config.clip.value) {
        (Some(norm), _) => Some(Clip::Norm(norm as f32)),
        (None, Some(value)) => Some(Clip::Value(value as f32)),
        (None, None) => None,
    }
}

fn scaler(config: &Config) -> Option<LossScaler> {
    let precision = &config.precision;
    let own = ScalerConfig::default();
    // It has too much patience ever to change.
    let fixed = |scale| {
        let fixed = own.with_initial(scale).with_min(scale);
        fixed.with_window(u32::MAX).with_hysteresis(u32::MAX)
    };
    let scaler = match (precision.compute, precision.loss_scale) {
        (Compute::F32 | Compute::Bf16, _) if !precision.skip_overflow => return None,
        (Compute::F32 | Compute::Bf16, _) => fixed(1.0),
        (Compute::F16, Some(scale)) => fixed(scale),
        (Compute::F16, None) => own
            .with_initial(precision.initial_scale)
            .with_min(precision.min_scale)
            .with_window(precision.scale_window)
            .with_hysteresis(precision.hysteresis)
            .with_consecutive_hysteresis(precision.consecutive_hysteresis),
    };
    Some(LossScaler::new(scaler))
}
