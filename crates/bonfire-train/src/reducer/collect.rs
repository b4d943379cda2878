//! Moving gradients between a model's parameters and host memory, after a backward pass.

use std::sync::Arc;

use bonfire_plan::DType;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};

use crate::TrainError;
use crate::optim::gradients::Gradients as Averages;
use crate::parameters::ParameterTable;
use crate::reducer::Reducer;
use crate::reducer::buckets::{Buckets, Home};
use crate::reducer::readback::{Shell, claim, on_device};
use crate::reducer::step::Step;
use crate::reducer::timing::Stopwatch;
use crate::values::DeviceTensor;
use crate::values::HostSlice;

#[derive(Debug)]
pub(crate) enum Gradient<'a> {
    Host(HostSlice<'a>),
    /// On a device, but wanted in host memory.
    Unread(DType, Box<Tensor<1>>),
    Device(DeviceTensor),
}

/// The memory in which gradients are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    Host,
    Device,
}

impl Gradient<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Unread(_, tensor) => tensor.dims()[0],
            Self::Device(tensor) => tensor.elems,
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Self::Host(values) => values.dtype(),
            Self::Unread(dtype, _) => *dtype,
            Self::Device(tensor) => tensor.dtype,
        }
    }
}

/// Passes the gradients to a reducer that it did not take while the backward pass ran. Without `gradients`, no
/// parameter has any.
pub(crate) fn collect<M: Module>(
    model: &M,
    table: &ParameterTable,
    gradients: Option<&Gradients>,
    reducer: &mut Reducer,
) -> Result<(), TrainError> {
    let mut collector = Collector { table, gradients, reducer, result: Ok(()) };
    model.visit(&mut collector);
    collector.result
}

struct Collector<'a> {
    table: &'a ParameterTable,
    gradients: Option<&'a Gradients>,
    reducer: &'a mut Reducer,
    result: Result<(), TrainError>,
}

impl Collector<'_> {
    fn read<const D: usize>(
        &mut self,
        index: usize,
        param: &Param<Tensor<D>>,
    ) -> Result<(), TrainError> {
        let gradient = self.gradients.and_then(|gradients| param.val().grad(gradients));
        let Some(gradient) = gradient else {
            return self.reducer.put(index, None);
        };
        if self.reducer.site() == Site::Device {
            let tensor = on_device(gradient)
                .map_err(|cause| unreadable(self.table, index, &cause))
                .map(Gradient::Device)?;
            let tensor = checked(self.table, index, Some(tensor))?;
            return self.reducer.put(index, Some(tensor));
        }
        let data =
            gradient.try_into_data().map_err(|cause| unreadable(self.table, index, &cause))?;
        let values = HostSlice::of(&data).map(Gradient::Host);
        let values = checked(self.table, index, values)?;
        self.reducer.put(index, Some(values))
    }
}

impl ModuleVisitor for Collector<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.table.index_of(param.id) else {
            return;
        };
        if self.result.is_ok() && self.reducer.wants(index) {
            self.result = self.read(index, param);
        }
    }
}

pub(crate) fn unreadable(
    table: &ParameterTable,
    index: usize,
    cause: &impl std::fmt::Debug,
) -> TrainError {
    let what = format!("the gradient of parameter {}", table.get(index).name);
    TrainError::unreadable(what)(cause)
}

/// A gradient has the type and size of its parameter.
pub(crate) fn checked<'a>(
    table: &ParameterTable,
    index: usize,
    gradient: Option<Gradient<'a>>,
) -> Result<Gradient<'a>, TrainError> {
    let parameter = table.get(index);
    let Some(gradient) = gradient else {
        return Err(TrainError::UnsupportedDtype {
            parameter: parameter.name.clone(),
            dtype: "none that gradients have".to_owned(),
        });
    };
    if gradient.dtype() == parameter.extent.dtype && gradient.len() == parameter.extent.elems {
        return Ok(gradient);
    }
    Err(TrainError::UnexpectedGradient {
        parameter: parameter.name.clone(),
        found: gradient.len(),
        found_dtype: gradient.dtype(),
        expected: parameter.extent.elems,
        dtype: parameter.extent.dtype,
    })
}

impl Reducer {
    /// The averages of a step that has settled. Those on a device take the memory of `own`, the gradients of this rank's
    /// backward pass, where they can.
    pub(crate) fn averages<M: Module>(
        &mut self,
        module: &M,
        none: Averages,
        own: Option<Gradients>,
        watch: &mut Stopwatch,
    ) -> Result<Averages, TrainError> {
        let (homes, parameters) = (&self.homes, &self.parameters);
        let is_present = |parameter: usize| parameters[parameter].present;
        match &mut self.buckets {
            Buckets::Host(buckets) => {
                let average = |parameter, shape: &[usize]| {
                    let Home { bucket, slot } = homes[parameter];
                    is_present(parameter).then(|| buckets[bucket].view(slot, shape))
                };
                Ok(averaged(module, none, average))
            }
            Buckets::Device(buckets) => {
                if own.is_some() {
                    buckets.release();
                }
                let claims = claimed(module, &none, own, is_present)?;
                let targets = claims.memory.into_iter().map(|(parameter, tensor)| {
                    let Home { bucket, slot } = homes[parameter];
                    (bucket, slot, tensor)
                });
                let Step { scale, computed, .. } = &mut self.step;
                buckets.deliver(*scale, targets.collect(), computed, watch)?;
                let mut averages = none;
                let finish = claims.finish.into_iter();
                finish.for_each(|finish| finish(&mut averages));
                Ok(averages)
            }
        }
    }
}

/// The averages as gradients for an optimizer, under the identities of the model's parameters; of a parameter that is
/// cut, those of this rank's rows. A parameter without an average has no gradient. `average` returns that of a
/// parameter as the content of a tensor of a shape, which tensors in host memory have without a copy.
pub(crate) fn averaged<M: Module>(
    model: &M,
    none: Averages,
    average: impl FnMut(usize, &[usize]) -> Option<TensorData>,
) -> Averages {
    let table = Arc::clone(none.table());
    let mut writer = Writer { table: &table, average, averages: none };
    model.visit(&mut writer);
    writer.averages
}

struct Writer<'a, F> {
    table: &'a ParameterTable,
    average: F,
    averages: Averages,
}

impl<F: FnMut(usize, &[usize]) -> Option<TensorData>> ModuleVisitor for Writer<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.table.index_of(param.id) else {
            return;
        };
        let parameter = self.table.get(index);
        let mut shape = parameter.shape.clone();
        if let Some(rows) = self.averages.rows(index) {
            shape[0] = rows.len();
        }
        let Some(average) = (self.average)(index, &shape) else {
            return;
        };
        let device = param.lazy_device().without_autodiff();
        let gradient = Tensor::<D>::from_data(average, (&device, parameter.tensor_dtype));
        self.averages.push(index, param.id, gradient);
    }
}

/// A rank's own gradients as they are, for an optimizer, under the identities of the model's parameters.
pub(crate) fn own<M: Module>(
    model: &M,
    table: &Arc<ParameterTable>,
    gradients: Option<Gradients>,
) -> Averages {
    let kept = Averages::new(Arc::clone(table));
    let Some(gradients) = gradients else {
        return kept;
    };
    let mut keeper = Keeper { table, gradients, kept };
    model.visit(&mut keeper);
    keeper.kept
}

struct Keeper<'a> {
    table: &'a ParameterTable,
    gradients: Gradients,
    kept: Averages,
}

impl ModuleVisitor for Keeper<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.table.index_of(param.id) else {
            return;
        };
        if let Some(gradient) = param.val().grad_remove(&mut self.gradients) {
            self.kept.push(index, param.id, gradient);
        }
    }
}

/// Tensors for the averages of the gradients that any rank has, still empty.
struct Claims {
    memory: Vec<(usize, DeviceTensor)>,
    finish: Vec<Finish>,
}

type Finish = Box<dyn FnOnce(&mut Averages)>;

/// Claims memory for the averages of the parameters for which `present` is true. The gradients of this rank's own pass
/// are used up: the averages take their memory where they can.
fn claimed<M: Module>(
    model: &M,
    none: &Averages,
    own: Option<Gradients>,
    present: impl Fn(usize) -> bool,
) -> Result<Claims, TrainError> {
    let mut claimant = Claimant {
        table: none.table(),
        none,
        own,
        present,
        claims: Claims { memory: Vec::new(), finish: Vec::new() },
        result: Ok(()),
    };
    model.visit(&mut claimant);
    claimant.result.map(|()| claimant.claims)
}

struct Claimant<'a, F> {
    table: &'a ParameterTable,
    /// Averages of the same parameters.
    none: &'a Averages,
    own: Option<Gradients>,
    present: F,
    claims: Claims,
    result: Result<(), TrainError>,
}

impl<F: Fn(usize) -> bool> Claimant<'_, F> {
    fn claim<const D: usize>(
        &mut self,
        index: usize,
        param: &Param<Tensor<D>>,
    ) -> Result<(), TrainError> {
        let rows = self.none.rows(index);
        // A parameter with rows may be one that is gathered when it is read.
        let own = self.own.as_mut().filter(|_| rows.is_none());
        let own = own.and_then(|gradients| param.val().grad_remove(gradients));
        if !(self.present)(index) {
            return Ok(());
        }
        let parameter = self.table.get(index);
        let mut shape = parameter.shape.clone();
        if let Some(rows) = rows {
            shape[0] = rows.len();
        }
        let (device, tensor_dtype) =
            (param.lazy_device().without_autodiff(), parameter.tensor_dtype);
        if shape.contains(&0) {
            let id = param.id;
            self.claims.finish.push(Box::new(move |averages| {
                let data = TensorData::new(Vec::<f32>::new(), shape);
                let none = Tensor::<D>::from_data(data, (&device, tensor_dtype));
                averages.push(index, id, none);
            }));
            return Ok(());
        }
        let shell = Shell { shape, tensor_dtype, device };
        let claim = claim(own, &shell).map_err(|cause| unreadable(self.table, index, &cause))?;
        let (id, finish) = (param.id, claim.finish);
        self.claims.memory.push((index, claim.memory));
        let finish = move |averages: &mut Averages| averages.push(index, id, finish());
        self.claims.finish.push(Box::new(finish));
        Ok(())
    }
}

impl<F: Fn(usize) -> bool> ModuleVisitor for Claimant<'_, F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.table.index_of(param.id) else {
            return;
        };
        if self.result.is_ok() {
            self.result = self.claim(index, param);
        }
    }
}
