//! Parameters that are gathered when they are used.
//!
//! Where a placement shards parameters, a model holds this rank's rows of those that are cut. A reparameterization
//! gathers the complete parameter whenever the model reads its value, so models need no change. In a training pass
//! that is an operation of autodiff: forwards it gathers, backwards it passes the gradient to the parameter's stand-in
//! in the graph. The stand-in has the hook of any other parameter, which passes the sum over all uses to the reducer.
//! The operation is prepared as one that is recomputed, so its users keep no copy of the parameter for the backward
//! pass: it is gathered again there, and freed when its user's backward step has run.
//!
//! A [segment](crate::recompute) that runs again has its own graph, with its own stand-in for the parameter. Autodiff
//! holds the lock of a graph while it runs a backward pass, so nothing may be added to the graph of the pass
//! meanwhile.
//!
//! After SimpleFSDP (Zhang et al. 2024, arXiv 2411.00284), which has it as a property of a parameter, and
//! ZeRO stage 3.
//!
//! From the second training pass on, the next parameter is gathered while the model computes with the last one.
//!
//! All ranks must use their parameters in the same order, in training and in validation: gathers of two
//! parameters are different operations, however alike they are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bonfire_collective::{Mutex, ProcessGroup};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DispatchTensor, Shape, Tensor};

use crate::loss::precision::Enclosing;
use crate::parameters::ParameterTable;
use crate::parameters::shards::{Shards, trained};
use crate::reducer::device_route::transfer::lane::DeviceLane;
use crate::reducer::operation::on_backend_of;
use crate::reducer::readback::Readback;
use crate::world::PassFailures;
use crate::{Precision, TrainError};

mod attacher;
mod memory;
mod operation;
mod order;

use attacher::{Attacher, Finder};
use memory::{Collected, Memory};
use operation::{Source, gathered};
use order::Order;

#[derive(Debug)]
pub(crate) struct Gatherer {
    table: Arc<ParameterTable>,
    shards: Arc<Shards>,
    group: ProcessGroup,
    /// The same ranks for each parameter, by its name.
    groups: Vec<ProcessGroup>,
    /// A backward pass has no caller that takes its failure.
    failures: PassFailures,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pass: Option<Pass>,
    lane: Option<DeviceLane>,
    memory: Memory,
    order: Order,
    /// Parameters that keep their type in mixed precision.
    stay: HashSet<usize>,
    /// The tensors from which stand-ins of parameters are made.
    zeros: HashMap<usize, Tensor<1>>,
}

impl Gatherer {
    /// For the parameters of a model that all ranks of a group have; without a lane, they are gathered in host memory.
    pub(crate) fn new(
        table: Arc<ParameterTable>,
        shards: Arc<Shards>,
        failures: PassFailures,
        lane: Option<DeviceLane>,
    ) -> Arc<Self> {
        let group = shards.groups().shards().clone();
        let names = (0..table.len()).map(|parameter| &table.get(parameter).name);
        let groups = names.map(|name| group.compared_by(&format!("parameter {name}"))).collect();
        let state = Mutex::new(State { lane, ..State::default() });
        Arc::new(Self { groups, table, shards, group, failures, state })
    }

    /// A second gatherer of the same parameters, in separate groups of the same ranks.
    pub(crate) fn beside(&self, shards: Arc<Shards>) -> Arc<Self> {
        Self::new(Arc::clone(&self.table), shards, self.failures.clone(), None)
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The model with this rank's rows of the parameters that are cut, which gathers the rest when it is used.
    pub(crate) fn gathering<M: Module>(self: &Arc<Self>, rows: M) -> M {
        let mut finder = Finder::new(self);
        rows.visit(&mut finder);
        let mut state = self.state.lock();
        (state.stay, state.zeros) = (finder.staying, finder.zeros);
        drop(state);
        rows.apply_reparameterization(Attacher(self))
    }

    /// A leaf that represents a parameter in the graph of a pass.
    fn stand_in(&self, parameter: usize) -> Tensor<1> {
        let zero = self.state.lock().zeros[&parameter].clone();
        let checkpointing = zero.gradient_checkpointing_strategy();
        trained(zero.without_autodiff(), checkpointing)
    }

    fn value<const D: usize>(
        self: &Arc<Self>,
        parameter: usize,
        rows: Tensor<D>,
        stand_in: Option<Tensor<1>>,
    ) -> Tensor<D> {
        let precision =
            {
                let state = self.state.lock();
                let pass = state.pass.as_ref().filter(|_| stand_in.is_some());
                pass.map(|pass| {
                    if state.stay.contains(&parameter) { Precision::F32 } else { pass.precision }
                })
            };
        // The first run of a segment has no graph.
        let tracked = stand_in.filter(|stand_in| precision.is_some() && stand_in.is_tracked());
        let whole = match tracked {
            Some(stand_in) => {
                let source = Source {
                    rows: rows.without_autodiff().into_dispatch(),
                    parameter,
                    gatherer: Arc::clone(self),
                };
                let what = format!("parameter {}", self.table.get(parameter).name);
                on_backend_of!(stand_in, what, gathered(stand_in, source))
            }
            None => self.untracked(parameter, rows),
        };
        match (whole, precision) {
            (Ok(whole), Some(precision)) => precision.cast_parameter(whole, &Enclosing::default()),
            (Ok(whole), None) => whole,
            (Err(error), _) => {
                let text = format!("a parameter cannot be gathered: {error}");
                self.failures.keep(error);
                // Not a panic of this program: what runs the pass returns the failure.
                std::panic::resume_unwind(Box::new(text))
            }
        }
    }

    pub(crate) fn index_of(&self, id: ParamId) -> Option<usize> {
        let index = self.table.index_of(id);
        index.filter(|&index| self.shards.is_cut(index))
    }

    pub(crate) fn shape(&self, parameter: usize) -> &[usize] {
        &self.table.get(parameter).shape
    }

    pub(crate) fn untracked<const D: usize>(
        &self,
        parameter: usize,
        rows: Tensor<D>,
    ) -> Result<Tensor<D>, TrainError> {
        let (is_autodiff, dtype) = (rows.is_autodiff(), rows.dtype());
        let checkpointing = rows.gradient_checkpointing_strategy();
        let rows = rows.without_autodiff();
        let device = self.shards.computing(rows.device());
        let whole = match self.collect(parameter, rows.into_dispatch())? {
            Collected::Host(data) => Tensor::from_data(data, (&device, dtype)),
            Collected::Device(flat) => flat.reshape(Shape::from(self.shape(parameter).to_vec())),
        };
        Ok(match (is_autodiff, checkpointing) {
            (false, _) => whole,
            (true, None) => Tensor::from_inner(whole),
            (true, Some(strategy)) => {
                Tensor::from_inner(whole).with_gradient_checkpointing_strategy(strategy)
            }
        })
    }

    fn unreadable(&self, parameter: usize, cause: String) -> TrainError {
        TrainError::UnreadableTensor {
            what: format!("parameter {}", self.table.get(parameter).name),
            cause,
        }
    }

    fn whole<B: Readback>(
        &self,
        parameter: usize,
        rows: DispatchTensor,
        device: &B::Device,
    ) -> Result<B::FloatTensorPrimitive, TrainError> {
        match self.collect(parameter, rows)? {
            Collected::Host(values) => Ok(B::float_from_data(values, device)),
            Collected::Device(flat) => {
                let elsewhere = || "it is on another backend than its device".to_owned();
                let flat = B::primitive(flat).ok_or_else(elsewhere);
                let flat = flat.map_err(|cause| self.unreadable(parameter, cause))?;
                Ok(B::float_reshape(flat, self.shape(parameter).to_vec().into()))
            }
        }
    }

    /// Checks that all ranks have gathered the same parameters in this pass, in the same order: devices do not see
    /// that they gather different ones.
    fn compare(&self, state: &State) -> Result<(), TrainError> {
        if state.lane.is_none() {
            return Ok(());
        }
        let own = state.order.last();
        let words: Vec<u64> = own.iter().map(|&parameter| parameter as u64).collect();
        let all = self.group.all_gather_v(&words)?;
        let all: Vec<&[u64]> = all.iter().collect();
        let longest = all.iter().map(|one| one.len()).max().unwrap_or(0);
        let differs = |place: &usize| all.iter().any(|one| one.get(*place) != all[0].get(*place));
        let Some(place) = (0..longest).find(differs) else {
            return Ok(());
        };
        // The operation that would have been compared.
        let parameter = own.get(place).or(own.last()).copied().unwrap_or(0);
        let group = match own.get(place) {
            Some(&parameter) => &self.groups[parameter],
            None => &self.group,
        };
        group.barrier().map_err(|error| self.named(parameter, error))
    }

    #[cfg(test)]
    pub(super) fn has_lane(&self) -> bool {
        self.state.lock().lane.is_some()
    }

    #[cfg(test)]
    pub(super) fn ahead(&self) -> Option<usize> {
        self.state.lock().memory.ahead()
    }

    #[cfg(test)]
    pub(super) fn last_gathers(&self) -> Vec<usize> {
        self.state.lock().order.last().to_vec()
    }
}

/// A forward pass of a training, and the backward pass after it.
#[derive(Debug)]
struct Pass {
    precision: Precision,
    /// This rank's rows of each parameter, for the gathers ahead; no optimizer writes to them meanwhile.
    rows: HashMap<usize, DispatchTensor>,
}

struct Rows<'a> {
    gatherer: &'a Gatherer,
    found: HashMap<usize, DispatchTensor>,
}

impl ModuleVisitor for Rows<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(parameter) = self.gatherer.index_of(param.id) {
            let rows = param.base().without_autodiff();
            self.found.insert(parameter, rows.into_dispatch());
        }
    }
}

impl Gatherer {
    pub(crate) fn begin<M: Module>(&self, model: &M, precision: Precision) {
        let mut rows = Rows { gatherer: self, found: HashMap::new() };
        model.visit(&mut rows);
        self.state.lock().pass = Some(Pass { rows: rows.found, precision });
    }

    /// Waits for gathers that only the device waits for.
    pub(crate) fn settle(&self) -> Result<(), TrainError> {
        self.state.lock().lane.as_mut().map_or(Ok(()), DeviceLane::settle)
    }

    pub(crate) fn end(&self) -> Result<(), TrainError> {
        let mut state = self.state.lock();
        // One that was not used after all.
        let arrived = self.arrived(&mut state).map(drop);
        state.order.end();
        let arrived = arrived.and_then(|()| self.compare(&state));
        state.pass = None;
        self.failures.take().map_or(arrived, Err)
    }
}
