//! Converts the batch norms of a model to normalise the batches of all ranks together.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;

use crate::nn::norm::statistic::JOINING;
use crate::parameters::ModulePath;
use crate::world::exchange::group::NormGroup;
use crate::world::exchange::mapping::{Meaning, meant};
use crate::{TrainError, World};

/// The container and the field that identify a batch norm, of this crate or of Burn.
const CONTAINER: &str = "Struct:BatchNorm";
const FIELD: &str = "running_mean";

/// Converts all [`BatchNorm`](crate::BatchNorm) layers of a model, so that they normalise the batches of all ranks of
/// a world together, in training: n ranks with batches of b are then the same as one rank with a batch of n b. Call it
/// on every rank, before [`Ddp::new`](crate::Ddp::new); nothing else of the model changes. Each layer then costs two
/// small exchanges per step.
///
/// # Errors
/// [`TrainError::NotConvertible`] if the model has a `burn::nn::BatchNorm`, whose statistics only Burn
/// can change; [`TrainError::Collective`] if the ranks cannot form the group of the exchanges.
#[track_caller]
pub fn convert_sync_batch_norm<M: Module>(model: M, world: &World) -> Result<M, TrainError> {
    let group = NormGroup::of_world(world)?;
    convert_sync_batch_norm_in(model, &group)
}

/// Converts a model by [`convert_sync_batch_norm`] for the ranks of a group, such as those of a host.
///
/// # Errors
/// [`TrainError::NotConvertible`].
pub fn convert_sync_batch_norm_in<M: Module>(model: M, group: &NormGroup) -> Result<M, TrainError> {
    let mut converter = Converter { path: ModulePath::default(), layers: 0, result: Ok(()) };
    let model = meant(Meaning::Join(group.clone()), || model.map(&mut converter));
    converter.result?;
    if converter.layers == 0 {
        tracing::warn!(
            rank = group.group().rank().get(),
            "the model has no bonfire::nn::BatchNorm to synchronise"
        );
    }
    Ok(model)
}

struct Converter {
    path: ModulePath,
    layers: usize,
    result: Result<(), TrainError>,
}

impl Converter {
    /// Returns true if this is the field that identifies a batch norm, `inside` modules below it.
    fn is_batch_norm(&self, inside: usize) -> bool {
        let field = self.path.0.iter().rev().nth(inside);
        field.is_some_and(|(name, container)| name == FIELD && container == CONTAINER)
    }

    /// The path of the layer that the current field is in.
    fn layer(&self) -> String {
        let mut layer = self.path.clone();
        layer.exit();
        layer.to_string()
    }
}

impl ModuleMapper for Converter {
    crate::parameters::follow_path!(path);

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.path.0.last().is_some_and(|(name, _)| name == JOINING) {
            self.layers += usize::from(self.is_batch_norm(1));
        } else if self.is_batch_norm(0) && self.result.is_ok() {
            self.result = Err(TrainError::NotConvertible { layer: self.layer() });
        }
        param
    }
}
