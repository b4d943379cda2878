//! Gathers the stages of all ranks on every rank.

use bonfire_collective::{ProcessGroup, Rank};
use bonfire_train::TrainError;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};

use super::error::PipelineError;
use super::output::read;

/// Copies the owner's float parameters into `module`. Every rank of the group calls it, with a module of the same
/// shape.
#[track_caller]
pub(super) fn broadcast<M: Module>(
    module: M,
    group: &ProcessGroup,
    owner: Rank,
) -> Result<M, PipelineError> {
    let mut broadcast = Broadcast { group, owner, result: Ok(()) };
    let module = module.map(&mut broadcast);
    broadcast.result.map(|()| module)
}

struct Broadcast<'a> {
    group: &'a ProcessGroup,
    owner: Rank,
    result: Result<(), PipelineError>,
}

impl Broadcast<'_> {
    fn values(&self, data: Result<TensorData, TrainError>) -> Result<TensorData, PipelineError> {
        let (mut bytes, shape, dtype) = data?.into_parts();
        self.group.broadcast(&mut bytes[..], self.owner)?;
        Ok(TensorData::from_bytes(bytes, shape, dtype))
    }
}

impl ModuleMapper for Broadcast<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.result.is_err() {
            return param;
        }
        let tensor = param.val();
        let is_trained = tensor.is_require_grad();
        let (device, dtype) = (tensor.device(), tensor.dtype());
        match self.values(read(tensor.without_autodiff(), "a parameter of a stage")) {
            Ok(data) => param.map(|_| {
                let tensor = Tensor::from_data(data, (&device, dtype));
                tensor.set_require_grad(is_trained)
            }),
            Err(error) => {
                self.result = Err(error);
                param
            }
        }
    }
}
