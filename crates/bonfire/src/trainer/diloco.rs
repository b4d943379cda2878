//! Training over slow links: workers that take steps alone between two exchanges of parameters.

use std::num::{NonZeroU64, NonZeroUsize};

use bonfire_config::{Config, OuterGradients as Wire};
use bonfire_plan::Axis;
use bonfire_train::World;
use bonfire_train::diloco::{Diloco, DilocoConfig, OuterGradients};
use burn::module::Module;

use super::mesh::Place;
use crate::error::Result;

/// The options of DiLoCo, if the configuration has it.
pub(super) fn options(config: &Config) -> Option<DilocoConfig> {
    let section = &config.diloco;
    let local_steps = section.local_steps.and_then(NonZeroU64::new)?;
    let fragments = NonZeroUsize::new(section.fragments).unwrap_or(NonZeroUsize::MIN);
    let options = DilocoConfig::default().with_local_steps(local_steps).with_fragments(fragments);
    Some(options.with_outer_gradients(match section.outer_gradients {
        Wire::F32 => OuterGradients::F32,
        Wire::Bf16 => OuterGradients::Bf16,
        Wire::Int8 => OuterGradients::Int8,
    }))
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
