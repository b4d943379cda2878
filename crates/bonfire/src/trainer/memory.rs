//! Plans the memory of a trainer's training.

use bonfire_config::{Config, OffloadTo};
use bonfire_plan::memory::{Activations, Start, Training};
use bonfire_plan::{Bytes, WorldSize};
use bonfire_train::{Resident, World, outline};
use burn::module::Module;

use super::optimizer::matrices;
use super::resolve::ddp_config;
use crate::error::Result;

/// Plans a training that is about to begin on the ranks that have the same parameters, with the memory of its passes.
pub(super) fn planned<M: Module>(
    world: &World,
    config: &Config,
    model: &M,
    accumulation: u64,
    activations: Activations,
) -> Result<Training> {
    let mut training = configured(model, accumulation, config, world.world_size());
    let ranks_per_host = WorldSize::new(world.local_world_size());
    training.ranks_per_host = ranks_per_host.unwrap_or(world.world_size());
    training.program = around(&training)?;
    training.activations = activations;
    Ok(training)
}

/// Plans a training of a model with a configuration, on `ranks` ranks of one host that have the same parameters,
/// without its activations; with `micro_batches` micro-batches in a step.
pub(crate) fn configured<M: Module>(
    model: &M,
    micro_batches: u64,
    config: &Config,
    ranks: WorldSize,
) -> Training {
    let section = &config.optimizer;
    let apart = section.kind.matrix_moments().map(|moments| (matrices(model), moments));
    let offload = [&config.offload.optimizer, &config.offload.parameters];
    let in_memory = !offload.iter().any(|to| matches!(to, OffloadTo::Files(_)));
    let (parameters, start) = outline(model, |id| match &apart {
        _ if !in_memory => 0,
        Some((matrices, moments)) if matrices.contains(&id) => *moments,
        _ => section.kind.moments(section.momentum),
    });
    let mut training = Training::new(parameters, ranks);
    training.start = start;
    training.caps = ddp_config(config).caps();
    training.micro_batches = micro_batches;
    training
}

/// Memory of this process besides a model that it has made.
pub(crate) fn around(training: &Training) -> Result<Bytes> {
    let now = Resident::of_this_process()?.now_bytes;
    let made = match training.start {
        Start::Whole => training.parameter_bytes(),
        Start::OneByOne => Bytes::default(),
    };
    Ok(Bytes::new(now.saturating_sub(made.get())))
}
