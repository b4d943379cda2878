//! Gives every rank the tensors of rank 0, bit for bit: parameters, frozen ones and running state.

use bonfire_collective::{ProcessGroup, Rank};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};

use crate::TrainError;

/// The rank whose model everybody gets.
const SOURCE: Rank = Rank::new(0);

/// Broadcasts the model of rank 0. All ranks have the same shapes: their fingerprints agree.
pub(crate) fn replicate<M: Module>(model: M, group: &ProcessGroup) -> Result<M, TrainError> {
    let mut replicator = Replicator {
        group,
        path: Vec::new(),
        result: Ok(()),
    };
    let model = model.map(&mut replicator);
    replicator.result.map(|()| model)
}

struct Replicator<'a> {
    group: &'a ProcessGroup,
    path: Vec<String>,
    result: Result<(), TrainError>,
}

impl Replicator<'_> {
    /// The data of rank 0, unless this is rank 0 or something failed.
    fn received(&mut self, data: Result<TensorData, impl std::fmt::Display>) -> Option<TensorData> {
        if self.result.is_err() {
            return None;
        }
        match self.receive(data) {
            Ok(data) => data,
            Err(error) => {
                self.result = Err(error);
                None
            }
        }
    }

    fn receive(
        &self,
        data: Result<TensorData, impl std::fmt::Display>,
    ) -> Result<Option<TensorData>, TrainError> {
        let data = data.map_err(|cause| TrainError::UnreadableTensor {
            what: format!("parameter {}", self.path.join(".")),
            cause: cause.to_string(),
        })?;
        let (mut bytes, shape, dtype) = data.into_parts();
        self.group.broadcast::<u8>(&mut bytes, SOURCE)?;
        let received = self.group.rank() != SOURCE;
        Ok(received.then(|| TensorData::from_bytes(bytes, shape, dtype)))
    }
}

impl ModuleMapper for Replicator<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let trainable = tensor.is_require_grad();
        let replica = match self.received(tensor.clone().without_autodiff().try_into_data()) {
            None => tensor,
            Some(data) if matches!(dtype, DType::QFloat(_)) => Tensor::from_data(data, &device),
            Some(data) => Tensor::from_data(data, (&device, dtype)).set_require_grad(trainable),
        };
        Param::from_mapped_value(id, replica, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, tensor, mapper) = param.consume();
        let options = (tensor.device(), tensor.dtype());
        let replica = match self.received(tensor.clone().try_into_data()) {
            None => tensor,
            Some(data) => Tensor::from_data(data, (&options.0, options.1)),
        };
        Param::from_mapped_value(id, replica, mapper)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let (id, tensor, mapper) = param.consume();
        let device = tensor.device();
        let replica = match self.received(tensor.clone().try_into_data()) {
            None => tensor,
            Some(data) => Tensor::from_data(data, &device),
        };
        Param::from_mapped_value(id, replica, mapper)
    }
}
