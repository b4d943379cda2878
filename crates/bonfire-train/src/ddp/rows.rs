//! A step of the optimizer on this rank's rows.
//!
//! The optimizer gets the user's own module with rows in place of complete parameters, under their own identities and
//! paths: parameter groups and learning rates by path work as always, and the optimizer keeps its state for rows only.
//! Then the ranks gather the updated parameters, those first that are used first.

use std::any::Any;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{GradientCheckpointingStrategy, Tensor, TensorData};

use super::{Ddp, MODULE_PRESENT};
use crate::parameters::ParameterTable;
use crate::parameters::shards::{Shards, trained};
use crate::reducer::Reducer;
use crate::reducer::collect::{Site, unreadable};
use crate::reducer::parameter_gather::ParameterGather;
use crate::reducer::readback::{Claim, Run, Shell, claim, on_device, overwritten, read};
use crate::values::DeviceTensor;
use crate::{Gradients, TrainError};

impl<M: Module> Ddp<M> {
    pub(super) fn step_rows(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        gradients: Gradients,
    ) -> Result<(), TrainError> {
        if !self.is_optimizer_ready {
            if self.shards.are_rows() {
                self.check_rowwise(optimizer)?;
            }
            self.is_optimizer_ready = true;
            // Of a checkpoint.
            if let Some(cut) = self.cut_state(optimizer)? {
                *optimizer = cut;
            }
        }
        if self.gatherer.is_some() {
            // The model has rows already.
            let rows = self.module.take().expect(MODULE_PRESENT);
            let (module, result) = gradients.step(optimizer, lr, rows);
            self.module = Some(module);
            return result;
        }
        let mut splitter = Splitter {
            table: &self.table,
            shards: &self.shards,
            wholes: (0..self.table.len()).map(|_| None).collect(),
        };
        let rows = self.module.take().expect(MODULE_PRESENT).map(&mut splitter);
        let (rows, stepped) = gradients.step(optimizer, lr, rows);
        let mut reducer = self.reducer.lock();
        if let (Site::Device, Ok(())) = (reducer.site(), &stepped) {
            let (module, result) = joined_on_devices(&mut reducer, &self.shards, rows, splitter);
            self.module = Some(module);
            return result;
        }
        let gather = match stepped {
            // No rank gets rows of a failed step.
            Err(error) => Err(error),
            Ok(()) => reducer
                .gather_parameters()
                .and_then(|gather| sent(&rows, &self.table, &self.shards, gather)),
        };
        let mut joiner = Joiner { table: &self.table, wholes: splitter.wholes, gather };
        self.module = Some(rows.map(&mut joiner));
        joiner.gather.map(drop)
    }

    /// Checks that an optimizer treats rows like complete parameters: tested for each parameter that is cut, on two
    /// small rows, together and one by one, over two steps.
    fn check_rowwise(&self, optimizer: &ModuleOptimizer) -> Result<(), TrainError> {
        let differs = |what: String, advice| TrainError::RowsDiffer {
            what,
            placement: self.config.placement,
            advice,
        };
        if optimizer.has_gradient_clipping() {
            let what = "the optimizer's own gradient clipping".to_owned();
            return Err(differs(what, "clip with Gradients::clip instead"));
        }
        let stepped = |rows: &[usize]| {
            let mut optimizer = optimizer.clone().load_record(OptimizerRecord::default());
            let mut trial = Trial {
                table: &self.table,
                shards: &self.shards,
                rows: rows.to_vec(),
                gradients: GradientsParams::new(),
                values: Vec::new(),
            };
            let mut module = self.module().clone().map(&mut trial);
            for _ in 0..2 {
                module.visit(&mut trial);
                let gradients = std::mem::take(&mut trial.gradients);
                module = optimizer.step(0.01, module, gradients);
            }
            trial.values.clear();
            module.visit(&mut trial);
            trial.values
        };
        let together = stepped(&[0, 1]);
        let (first, second) = (stepped(&[0]), stepped(&[1]));
        for ((parameter, whole), ((_, first), (_, second))) in
            together.into_iter().zip(first.into_iter().zip(second))
        {
            if whole != [first, second].concat() {
                let name = &self.table.get(parameter).name;
                let what = format!("the optimizer of parameter {name}");
                return Err(differs(
                    what,
                    "choose Placement::zero1().of_whole_parameters(), or one that treats each element by itself",
                ));
            }
        }
        Ok(())
    }
}

/// A complete parameter, while its rows are with the optimizer.
struct Whole<const D: usize> {
    values: Tensor<D>,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

/// Replaces parameters by this rank's rows. Those of which it has none stay; they have no gradient.
struct Splitter<'a> {
    table: &'a ParameterTable,
    shards: &'a Shards,
    wholes: Vec<Option<Box<dyn Any>>>,
}

impl ModuleMapper for Splitter<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let cut = self.table.index_of(param.id);
        let Some(index) = cut.filter(|&index| self.shards.is_cut(index)) else {
            return param;
        };
        let (id, tensor, mapper) = param.consume();
        let checkpointing = tensor.gradient_checkpointing_strategy();
        let values = tensor.inner();
        let rows = self.shards.rows(index);
        let own = if rows.is_empty() { values.clone() } else { values.clone().slice_dim(0, rows) };
        self.wholes[index] = Some(Box::new(Whole { values, checkpointing }));
        Param::from_mapped_value(id, trained(own, checkpointing), mapper)
    }
}

/// The model with the parameters that the ranks' devices gather from their rows. After an error it has rows: the group
/// ends.
fn joined_on_devices<M: Module>(
    reducer: &mut Reducer,
    shards: &Shards,
    rows: M,
    splitter: Splitter<'_>,
) -> (M, Result<(), TrainError>) {
    let Splitter { table, wholes, .. } = splitter;
    let mut claimant = Claimant {
        table,
        shards,
        wholes,
        rows: Vec::new(),
        memory: Vec::new(),
        joined: (0..table.len()).map(|_| None).collect(),
        result: Ok(()),
    };
    rows.visit(&mut claimant);
    let Claimant { rows: own, memory, joined, result, .. } = claimant;
    match result.and_then(|()| reducer.gather_on_devices(own, memory)) {
        Ok(()) => (rows.map(&mut Finisher { table, joined }), Ok(())),
        Err(error) => (rows, Err(error)),
    }
}

/// Finds the memory of rows, and claims that of complete parameters.
struct Claimant<'a> {
    table: &'a ParameterTable,
    shards: &'a Shards,
    wholes: Vec<Option<Box<dyn Any>>>,
    rows: Vec<(usize, DeviceTensor)>,
    memory: Vec<(usize, DeviceTensor)>,
    joined: Vec<Option<Box<dyn Any>>>,
    result: Result<(), TrainError>,
}

/// A complete parameter, once its memory has been written.
struct Joined<const D: usize> {
    finish: Box<dyn FnOnce() -> Tensor<D> + Send>,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

impl Claimant<'_> {
    fn claim<const D: usize>(&mut self, index: usize, rows: Tensor<D>) -> Result<(), TrainError> {
        let name = &self.table.get(index).name;
        let refused = TrainError::unreadable::<String>;
        let what = || format!("parameter {name}");
        if !self.shards.rows(index).is_empty() {
            self.rows.push((index, on_device(rows).map_err(refused(what()))?));
        }
        let whole = self.wholes[index].take().expect("a cut parameter was complete");
        let whole = whole.downcast::<Whole<D>>();
        let whole = whole.expect("a parameter has the dimensions that it had");
        let Whole { values, checkpointing } = *whole;
        let shell = Shell {
            shape: values.dims().to_vec(),
            tensor_dtype: values.dtype(),
            device: values.device(),
        };
        let Claim { memory, finish } = claim(Some(values), &shell).map_err(refused(what()))?;
        self.memory.push((index, memory));
        self.joined[index] = Some(Box::new(Joined { finish, checkpointing }));
        Ok(())
    }
}

impl ModuleVisitor for Claimant<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let cut = self.table.index_of(param.id);
        if let Some(index) = cut.filter(|&index| self.shards.is_cut(index))
            && self.result.is_ok()
        {
            self.result = self.claim(index, param.val().inner());
        }
    }
}

/// Replaces rows by complete parameters.
struct Finisher<'a> {
    table: &'a ParameterTable,
    joined: Vec<Option<Box<dyn Any>>>,
}

impl ModuleMapper for Finisher<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.table.index_of(param.id);
        let Some(joined) = index.and_then(|index| self.joined[index].take()) else {
            return param;
        };
        let (id, _, mapper) = param.consume();
        let joined = joined.downcast::<Joined<D>>();
        let Joined { finish, checkpointing } =
            *joined.expect("a parameter has the dimensions that it had");
        Param::from_mapped_value(id, trained(finish(), checkpointing), mapper)
    }
}

fn sent<'a, M: Module>(
    rows: &M,
    table: &ParameterTable,
    shards: &Shards,
    gather: ParameterGather<'a>,
) -> Result<ParameterGather<'a>, TrainError> {
    let mut sender = Sender { table, shards, gather, result: Ok(()) };
    rows.visit(&mut sender);
    sender.result.map(|()| sender.gather)
}

struct Sender<'a, 'g> {
    table: &'a ParameterTable,
    shards: &'a Shards,
    gather: ParameterGather<'g>,
    result: Result<(), TrainError>,
}

impl ModuleVisitor for Sender<'_, '_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let cut = self.table.index_of(param.id);
        let Some(index) = cut.filter(|&index| self.shards.is_cut(index)) else {
            return;
        };
        let is_empty = self.shards.rows(index).is_empty();
        read(param.val().inner(), |values| match values {
            Ok(Some(values)) if is_empty => self.gather.put(index, values.slice(0..0)),
            Ok(Some(values)) => self.gather.put(index, values),
            Ok(None) => unreachable!("a parameter has the type that it had"),
            Err(cause) => self.result = Err(unreadable(self.table, index, &cause)),
        });
    }
}

/// Replaces rows by gathered parameters; after an error, by the old parameters.
struct Joiner<'a> {
    table: &'a ParameterTable,
    wholes: Vec<Option<Box<dyn Any>>>,
    gather: Result<ParameterGather<'a>, TrainError>,
}

impl ModuleMapper for Joiner<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let index = self.table.index_of(param.id);
        let whole = index.and_then(|index| Some((index, self.wholes[index].take()?)));
        let Some((index, whole)) = whole else {
            return param;
        };
        let (id, _, mapper) = param.consume();
        let whole = whole.downcast::<Whole<D>>();
        let whole = whole.expect("a parameter has the dimensions that it had");
        let Whole { values, checkpointing } = *whole;
        let values = match &mut self.gather {
            Err(_) => values,
            Ok(gather) => {
                let joined = match gather.runs(index) {
                    Ok(runs) => Ok(joined(values, &runs)),
                    Err(error) => Err((values, error)),
                };
                gather.release(index);
                joined.unwrap_or_else(|(values, error)| {
                    self.gather = Err(error);
                    values
                })
            }
        };
        Param::from_mapped_value(id, trained(values, checkpointing), mapper)
    }
}

/// A tensor of these values like another one, in the memory of that one if it is not shared.
fn joined<const D: usize>(old: Tensor<D>, runs: &[Run<'_>]) -> Tensor<D> {
    let (device, shape, dtype) = (old.device(), old.dims(), old.dtype());
    overwritten(old, runs).unwrap_or_else(|| {
        let runs = runs.iter().filter(|(_, values)| !values.is_empty());
        let parts = runs.map(|(_, values)| {
            let data = values.to_tensor_data(&[values.len()]);
            Tensor::<1>::from_data(data, (&device, dtype))
        });
        Tensor::cat(parts.collect(), 0).reshape(shape)
    })
}

/// Replaces parameters that are cut by one or two rows of a few elements, with a gradient for each.
struct Trial<'a> {
    table: &'a ParameterTable,
    shards: &'a Shards,
    rows: Vec<usize>,
    gradients: GradientsParams,
    values: Vec<(usize, Vec<u8>)>,
}

/// Elements of a row, in each of its dimensions, at most.
const TRIAL_ELEMS_MAX: usize = 8;

impl Trial<'_> {
    fn cut(&self, id: ParamId) -> Option<usize> {
        let index = self.table.index_of(id);
        index.filter(|&index| self.shards.is_cut(index))
    }

    /// Numbers between -0.5 and 0.5 that follow from the row and the index in it.
    fn numbers(&self, shape: &[usize], seed: usize) -> TensorData {
        let row_elems: usize = shape[1..].iter().product();
        let number = |row: usize, place: usize| {
            let hash = (seed + 31 * row + 7 * place) % 23;
            hash as f32 / 22.0 - 0.5
        };
        let rows = self.rows.iter();
        let numbers = rows.flat_map(|&row| (0..row_elems).map(move |place| number(row, place)));
        TensorData::new(numbers.collect::<Vec<f32>>(), shape)
    }
}

impl ModuleMapper for Trial<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.cut(param.id).is_none() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let mut shape = tensor.dims().map(|dim| dim.min(TRIAL_ELEMS_MAX));
        shape[0] = self.rows.len();
        let device = tensor.device().without_autodiff();
        let small = Tensor::from_data(self.numbers(&shape, 5), (&device, tensor.dtype()));
        let checkpointing = tensor.gradient_checkpointing_strategy();
        Param::from_mapped_value(id, trained(small, checkpointing), mapper)
    }
}

impl ModuleVisitor for Trial<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.cut(param.id) else {
            return;
        };
        let values = param.val().inner();
        let options = (&values.device(), values.dtype());
        let gradient = Tensor::<D>::from_data(self.numbers(&values.dims(), 11), options);
        self.gradients.register(param.id, gradient);
        self.values.push((index, values.into_data().as_bytes().to_vec()));
    }
}
