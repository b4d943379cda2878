//! Resolves a training: decides all that a configuration, the parts of a program and a rank's place settle, without
//! communication.

use std::num::NonZeroUsize;
use std::path::Path;

use bonfire_config::{
    Batches, Best as BestMetric, Config, OffloadSection, OffloadTo, Precision as Compute, Route,
    Wire,
};
use bonfire_data::{LastBatch, Loader, Order, Prefetch, Remainder};
use bonfire_launch::StopRequest;
use bonfire_optim::{DeferredScale, Offload, ScalerConfig};
use bonfire_plan::memory::Training;
use bonfire_report::{JournalDisplay, ModelFlops};
use bonfire_train::diloco::DilocoConfig;
use bonfire_train::{
    Best, Clip, DdpConfig, DeviceKind, GradientCompression, GradientRoute, Keep, LossScaler,
    Precision, World,
};
use burn::optim::ModuleOptimizer;

use super::data::{Feed, Source};
use super::engine::{Calls, Model, Part};
use super::mesh::{Place, placed};
use super::parts::Rates;
use super::{Data, Parts, diloco, memory, optimizer};
use crate::error::{Error, Result};

/// A training before the ranks speak of it.
pub(super) struct Resolved<M: Model, B> {
    /// With the placement that follows from the mesh.
    pub(super) config: Config,
    pub(super) place: Place,
    pub(super) batches: Batches,
    pub(super) feed: Feed<B>,
    /// The program's own.
    pub(super) rates: Option<Rates>,
    pub(super) stop: Option<StopRequest>,
    pub(super) part: Part<M::Engine>,
    pub(super) calls: Calls,
    pub(super) ddp: DdpConfig,
    pub(super) optimizer: ModuleOptimizer,
    /// The optimizer's handle on factors of gradients, if it has one.
    pub(super) deferred: Option<DeferredScale>,
    pub(super) diloco: Option<DilocoConfig>,
    pub(super) units: (&'static str, usize),
    pub(super) display: JournalDisplay,
    pub(super) flops: Option<ModelFlops>,
    pub(super) planned: Option<Training>,
}

/// Resolves a training of this rank. No rank waits for another.
///
/// # Errors
/// Those of a configuration that does not fit the ranks, the model or the data.
pub(super) fn resolve<M: Model, B: Send + 'static>(
    world: &World,
    config: &Config,
    parts: Parts<M, B>,
) -> Result<Resolved<M, M::Batch<B>>> {
    let (config, grid) = placed(config, world.world_size())?;
    let mut place = Place::new(world, grid, parts.mesh)?;
    let ranks = place.data().world_size().get();
    let batches = config.batches(u64::from(ranks))?;
    let part = parts.model.part(&place, &config, &batches)?;
    place.look_at(&part.module);
    let per_unit = parts.flops_per_sample.map(|flops| flops / parts.units.1 as f64);
    let flops = model_flops(&config, per_unit)?;
    let (calls, data) = (M::calls(&batches), M::grouped(parts.data, &batches));
    let feed = feed(place.data(), &config, data, &batches, calls)?;
    let offload = Offloads::new(world.device_kind(), &config)?;
    let (optimizer, deferred) = match parts.optimizer {
        Some(optimizer) => (optimizer, None),
        None => optimizer::build(&config.optimizer, &part.module, offload.optimizer),
    };
    let planned = parts.activations.map(|activations| {
        let (replicas, accumulation) = (place.replicas(), batches.accumulation);
        memory::planned(replicas, &config, &part.module, accumulation, activations)
    });
    Ok(Resolved {
        planned: planned.transpose()?,
        ddp: ddp_config(&config).with_offload(offload.parameters),
        stop: parts.stop,
        diloco: diloco::options(&config),
        config,
        place,
        batches,
        feed,
        rates: parts.rates,
        part,
        calls,
        optimizer,
        deferred,
        units: parts.units,
        display: parts.display,
        flops,
    })
}

/// Returns the samples of a forward pass on one rank.
pub(super) fn micro(batches: &Batches) -> NonZeroUsize {
    at_least_one(batches.micro)
}

fn at_least_one(number: u64) -> NonZeroUsize {
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

fn feed<B>(
    world: &World,
    config: &Config,
    data: Data<B>,
    batches: &Batches,
    calls: Calls,
) -> Result<Feed<B>> {
    let wrong = |cause: String| Err(Error::Usage(cause));
    let (len, make) = match data.source {
        Source::Samples(len, make) => (len, make),
        Source::Passes(_) if config.steps.is_none() => {
            return wrong("data without end needs `steps` in the configuration".to_owned());
        }
        Source::Passes(make) => return Ok(Feed::Passes(make)),
    };
    let (ranks, drops) = (world.world_size(), config.data.drop_last);
    let size = micro(batches).saturating_mul(at_least_one(calls.passes));
    if !drops && calls.last == LastBatch::Drop && !len.is_multiple_of(size.get() * ranks.len()) {
        return wrong(format!(
            "{len} samples are not whole steps of {}, and all micro-batches of a pipeline have one size; leave the rest \
             out with data.drop_last=true",
            batches.train
        ));
    }
    let order =
        if config.data.shuffle { Order::Shuffled { seed: config.seed } } else { Order::Sequential };
    let (remainder, last) =
        if drops { (Remainder::Drop, LastBatch::Drop) } else { (Remainder::Pad, calls.last) };
    let loader = Loader::new(world, len, size.get())
        .with_order(order)
        .with_remainder(remainder)
        .with_last_batch(last);
    if loader.batches_per_epoch() == 0 {
        return wrong(format!(
            "{len} samples make no batch of {size} on each of {ranks} ranks; choose a smaller batch.micro, fewer \
             ranks, or data.drop_last=false"
        ));
    }
    Ok(Feed::Epochs { loader, make, prefetch: prefetch(config), epoch: None })
}

pub(super) fn prefetch(config: &Config) -> Prefetch {
    Prefetch::default().with_workers(config.data.workers)
}

/// Combines the program's operations per sample, or per unit of it, with the configured peak of the device.
fn model_flops(config: &Config, per_unit: Option<f64>) -> Result<Option<ModelFlops>> {
    match (per_unit.map(ModelFlops::per_sample), config.report.peak_flops) {
        (Some(flops), Some(peak)) => Ok(Some(flops.with_peak(peak))),
        (None, Some(_)) => Err(Error::Usage(
            "report.peak_flops is for a program that sets the operations of its model; leave it out, or call \
             Parts::with_flops_per_sample"
                .to_owned(),
        )),
        (flops, None) => Ok(flops),
    }
}

/// The state that is kept outside of device memory.
#[derive(Default)]
pub(super) struct Offloads {
    pub(super) parameters: Option<Offload>,
    pub(super) optimizer: Option<Offload>,
}

impl Offloads {
    pub(super) fn new(device: DeviceKind, config: &Config) -> Result<Self> {
        let OffloadSection { optimizer, parameters, .. } = &config.offload;
        // In memory is where everything on the CPU is anyway.
        let in_memory = || (device != DeviceKind::Cpu).then(Offload::to_memory);
        let of_optimizer = match optimizer {
            OffloadTo::Files(folder) => Some(files(folder)?),
            OffloadTo::Memory => in_memory(),
            OffloadTo::None => None,
        };
        match parameters {
            OffloadTo::Files(folder) => {
                let both = Some(files(folder)?.with_parameters());
                Ok(Self { parameters: both.clone(), optimizer: both })
            }
            OffloadTo::Memory => Ok(Self {
                parameters: in_memory().map(Offload::with_parameters),
                optimizer: of_optimizer.or_else(in_memory),
            }),
            OffloadTo::None => Ok(Self { parameters: None, optimizer: of_optimizer }),
        }
    }
}

fn files(folder: &Path) -> Result<Offload> {
    let made = std::fs::create_dir_all(folder).map_err(Error::from);
    let offload = made.and_then(|()| Ok(Offload::to_files(folder)?));
    offload.map_err(|cause| {
        Error::Usage(format!("offload: no files can be kept in {}: {cause}", folder.display()))
    })
}

pub(crate) fn ddp_config(config: &Config) -> DdpConfig {
    let own = DdpConfig::default();
    let bytes = config.gradients.bucket_bytes.unwrap_or(own.bucket_bytes_max);
    own.with_placement(config.placement)
        .with_bucket_bytes_max(bytes)
        .with_route(match config.gradients.route {
            Route::Auto => GradientRoute::Auto,
            Route::Host => GradientRoute::Host,
            Route::Device => GradientRoute::Device,
            Route::Nccl => GradientRoute::Nccl,
        })
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

pub(super) fn keep(config: &Config) -> Keep {
    let keep = Keep::last(config.checkpoints.keep);
    match config.checkpoints.best {
        Some(BestMetric::Lowest) => keep.and_best(Best::Lowest),
        Some(BestMetric::Highest) => keep.and_best(Best::Highest),
        None => keep,
    }
}

pub(super) fn clip(config: &Config) -> Option<Clip> {
    match (config.clip.norm, config.clip.value) {
        (Some(norm), _) => Some(Clip::Norm(norm as f32)),
        (None, Some(value)) => Some(Clip::Value(value as f32)),
        (None, None) => None,
    }
}

pub(super) fn scaler(config: &Config) -> Option<LossScaler> {
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
