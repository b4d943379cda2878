//! Training over slow links: workers that take steps alone between two exchanges of parameters.

use std::num::{NonZeroU64, NonZeroUsize};

use bonfire_config::{Config, OffloadTo, OuterGradients as Wire, Precision};
use bonfire_plan::{Axis, Grid, Sharding};
use bonfire_train::World;
use bonfire_train::diloco::{Diloco, DilocoConfig, OuterGradients};
use burn::module::Module;

use super::mesh::Place;
use crate::error::{Error, Result};

/// The options of DiLoCo, if the configuration has it.
///
/// # Errors
/// [`Error::Usage`] for settings that it does not go with.
pub(super) fn options(config: &Config, grid: &Grid) -> Result<Option<DilocoConfig>> {
    let section = &config.diloco;
    let Some(local_steps) = section.local_steps.and_then(NonZeroU64::new) else {
        return Ok(None);
    };
    let (precision, has) = (&config.precision, |axis| grid.size(axis) > 1);
    let causes = [
        (
            has(Axis::Pp) || has(Axis::Cp),
            "workers have all layers and whole sequences; leave pp and cp out of mesh",
        ),
        (
            !has(Axis::DpReplicate) && has(Axis::DpShard),
            "the workers are the ranks along dp_replicate; set mesh=dp_replicate=-1, or more ranks of it",
        ),
        (
            config.placement.parameters == Sharding::Sharded,
            "workers exchange whole parameters; choose placement zero1 or zero2",
        ),
        (
            config.offload.parameters != OffloadTo::None,
            "workers keep their parameters on the device; use offload.optimizer",
        ),
        (
            precision.compute == Precision::F16 || precision.skip_overflow,
            "a worker that skips a step falls behind the others; use bf16 or f32, without precision.skip_overflow",
        ),
        (
            config.checkpoints.folder.is_some(),
            "checkpoints lack the outer optimizer; leave checkpoints.folder out, or write a loop with Diloco",
        ),
    ];
    if let Some((_, cause)) = causes.into_iter().find(|(is_so, _)| *is_so) {
        return Err(Error::Usage(format!("diloco.local_steps: {cause}")));
    }
    let fragments = NonZeroUsize::new(section.fragments).unwrap_or(NonZeroUsize::MIN);
    let options = DilocoConfig::default().with_local_steps(local_steps).with_fragments(fragments);
    Ok(Some(options.with_outer_gradients(match section.outer_gradients {
        Wire::F32 => OuterGradients::F32,
        Wire::Bf16 => OuterGradients::Bf16,
        Wire::Int8 => OuterGradients::Int8,
    })))
}

/// Begins the workers' training, from the model of the first one. Every rank calls it.
#[track_caller]
pub(super) fn begin<M: Module>(
    world: &World,
    place: &mut Place,
    config: &Config,
    options: DilocoConfig,
    module: M,
) -> Result<(Diloco, M)> {
    let mesh = match place.mesh() {
        Some(mesh) => mesh.clone(),
        None => world.mesh(config.mesh)?,
    };
    place.train_apart(mesh.sub(Axis::DpShard).clone());
    Ok(Diloco::new(module, &mesh, options)?)
}
