//! Sends every rank the tensors of rank 0, bit for bit: parameters, frozen ones and running state.

use std::ops::Range;

use bonfire_collective::{ProcessGroup, Rank};
use bonfire_optim::Offload;
use bonfire_plan::Placement;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};

use crate::TrainError;
use crate::parameters::fingerprint::Entry;
use crate::parameters::shards::{filed, layout, rows_of, trained};
use crate::parameters::{Lister, ModulePath, ParameterTable};

/// The rank whose model all ranks get.
const SOURCE: Rank = Rank::new(0);

/// Broadcasts the model of rank 0. All ranks have the same shapes: their fingerprints agree.
pub(crate) fn replicate<M: Module>(model: M, group: &ProcessGroup) -> Result<M, TrainError> {
    replicated(model, group, None, Where::default()).map(|(model, _)| model)
}

/// Broadcasts the model, and leaves this rank its rows of the trainable parameters that are cut, or complete ones in
/// the placement `alone`, each at its place. Only one complete parameter is in memory at a time: one that is
/// initialised on first use is initialised, sent and placed before the next.
///
/// All ranks have the same names and shapes: their [outlines](outline) agree.
pub(crate) fn replicate_rows<M: Module>(
    model: M,
    placement: Placement,
    shards: &ProcessGroup,
    place: Where<'_>,
    group: &ProcessGroup,
) -> Result<(M, ParameterTable), TrainError> {
    let cutting = Cutting { placement, shards: shards.clone(), lister: Lister::default() };
    let (model, cutting) = replicated(model, group, Some(cutting), place)?;
    let cutting = cutting.expect("it was given");
    Ok((model, cutting.lister.table()?))
}

fn replicated<M: Module>(
    model: M,
    group: &ProcessGroup,
    cutting: Option<Cutting>,
    place: Where<'_>,
) -> Result<(M, Option<Cutting>), TrainError> {
    let mut replicator =
        Replicator { group, path: ModulePath::default(), cutting, place, result: Ok(()) };
    let model = model.map(&mut replicator);
    replicator.result.map(|()| (model, replicator.cutting))
}

/// The names and shapes of a model before its parameters are initialised.
pub(crate) fn outline<M: Module>(model: &M) -> Vec<Entry> {
    #[derive(Default)]
    struct Outline(ModulePath, Vec<Entry>);
    impl ModuleVisitor for Outline {
        crate::parameters::follow_path!(0);

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(Entry {
                name: self.0.to_string(),
                shape: param.lazy_shape().iter().copied().collect(),
                dtype: "float".to_owned(),
                trainable: true,
            });
        }
    }
    let mut outline = Outline::default();
    model.visit(&mut outline);
    outline.1
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Where<'a> {
    /// The offload, if they are outside of their device's memory.
    pub(crate) offload: Option<&'a Offload>,
    /// The device that computes, where it is not the CPU: then only rows are offloaded from it.
    pub(crate) computing: Option<&'a Device>,
}

struct Replicator<'a> {
    group: &'a ProcessGroup,
    path: ModulePath,
    cutting: Option<Cutting>,
    place: Where<'a>,
    result: Result<(), TrainError>,
}

/// The ranks and the rules by which rows are cut.
struct Cutting {
    placement: Placement,
    /// The ranks among which rows are divided.
    shards: ProcessGroup,
    lister: Lister,
}

impl Cutting {
    /// Lists a tensor; returns this rank's rows, if it is to be cut.
    fn rows<const D: usize>(
        &mut self,
        id: ParamId,
        tensor: &Tensor<D>,
        computing: Option<&Device>,
    ) -> Option<Range<usize>> {
        self.lister.float(id, tensor);
        let ranks = self.shards.world_size();
        let layout = layout([&tensor.dims()[..]], self.placement, ranks, computing);
        let is_cut = tensor.is_require_grad() && layout.is_cut(0);
        is_cut.then(|| layout.rows(0, self.shards.rank()))
    }
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
            what: format!("parameter {}", self.path),
            cause: cause.to_string(),
        })?;
        let (mut bytes, shape, dtype) = data.into_parts();
        self.group.broadcast::<u8>(&mut bytes, SOURCE)?;
        let received = self.group.rank() != SOURCE;
        Ok(received.then(|| TensorData::from_bytes(bytes, shape, dtype)))
    }
}

impl ModuleMapper for Replicator<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
        if let Some(cutting) = &mut self.cutting {
            cutting.lister.enter_module(name, container);
        }
    }

    fn exit_module(&mut self, name: &str, container: &str) {
        self.path.exit();
        if let Some(cutting) = &mut self.cutting {
            cutting.lister.exit_module(name, container);
        }
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let cutting = self.cutting.as_mut();
        let Where { offload, computing } = self.place;
        let rows = cutting.and_then(|cutting| cutting.rows(id, &tensor, computing));
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let trainable = tensor.is_require_grad();
        let replica = match self.received(tensor.clone().without_autodiff().try_into_data()) {
            None => tensor,
            Some(data) if matches!(dtype, DType::QFloat(_)) => Tensor::from_data(data, &device),
            Some(data) => Tensor::from_data(data, (&device, dtype)).set_require_grad(trainable),
        };
        let is_kept = rows.is_none() && computing.is_some();
        let replica = match rows {
            None => replica,
            Some(rows) => {
                let checkpointing = replica.gradient_checkpointing_strategy();
                let here = device.without_autodiff();
                let device = computing.and(Offload::device()).unwrap_or(here);
                trained(rows_of(replica.inner(), rows, &device), checkpointing)
            }
        };
        let offload = offload.filter(|_| !is_kept);
        let replica = filed(replica, offload, &mut self.result);
        Param::from_mapped_value(id, replica, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        if let Some(cutting) = &mut self.cutting {
            cutting.lister.visit_int(&param);
        }
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
        if let Some(cutting) = &mut self.cutting {
            cutting.lister.visit_bool(&param);
        }
        let (id, tensor, mapper) = param.consume();
        let device = tensor.device();
        let replica = match self.received(tensor.clone().try_into_data()) {
            None => tensor,
            Some(data) => Tensor::from_data(data, &device),
        };
        Param::from_mapped_value(id, replica, mapper)
    }
}
