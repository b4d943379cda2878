//! Parameters that are gathered when they are used.
//!
//! Where a placement shards parameters, a model holds this rank's rows of those that are cut. A
//! reparameterization gathers the whole parameter whenever the model asks for its value, so models need no
//! change. In a training pass that is an operation of autodiff: forwards it gathers, backwards it hands the
//! gradient to the reducer, which sums it over the ranks and keeps this rank's rows. It is prepared as one that
//! is recomputed, so what uses the parameter keeps no copy of it for the backward pass: it is gathered again
//! there, and gone when its user's backward step has run.
//!
//! After SimpleFSDP (Zhang et al. 2024, arXiv 2411.00284), which has it as a property of a parameter, and
//! ZeRO stage 3.
//!
//! From the second training pass on, the next parameter is gathered while the model computes with the last one.
//!
//! All ranks must use their parameters in the same order, in training and in validation: gathers of two
//! parameters are different operations, however alike they are.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::ProcessGroup;
use burn::module::{Module, ParamId};
use burn::tensor::{DispatchTensor, Tensor};

use crate::loss::precision::Enclosing;
use crate::parameters::ParameterTable;
use crate::parameters::shards::Shards;
use crate::reducer::hooks::note;
use crate::reducer::operation::on_backend_of;
use crate::reducer::readback::Readback;
use crate::{Precision, TrainError};

mod attacher;
mod memory;
mod operation;
mod order;
mod pass;

use attacher::{Attacher, Staying};
use memory::Memory;
use operation::{Gather, gathered};
use order::Order;
use pass::Pass;

/// What gathers the parameters of a model.
#[derive(Debug)]
pub(crate) struct Gatherer {
    table: Arc<ParameterTable>,
    shards: Arc<Shards>,
    /// The ranks that have the rest of the rows.
    group: ProcessGroup,
    /// The same ranks for each parameter, by its name.
    groups: Vec<ProcessGroup>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The training pass under way.
    pass: Option<Pass>,
    memory: Memory,
    order: Order,
    /// Parameters whose values stay as they are in mixed precision.
    stay: HashSet<usize>,
    /// The first one: a backward pass has nobody to return it to.
    failure: Option<TrainError>,
}

impl Gatherer {
    /// For the parameters of a model that all ranks of a group have.
    pub(crate) fn new(table: Arc<ParameterTable>, shards: Arc<Shards>) -> Arc<Self> {
        let group = shards.groups().shards().clone();
        let groups = table.entries().iter();
        let groups = groups.map(|entry| group.compared_by(&format!("parameter {}", entry.name)));
        Arc::new(Self {
            groups: groups.collect(),
            table,
            shards,
            group,
            state: Mutex::default(),
        })
    }

    /// One that gathers the same parameters beside this one, in other groups of the same ranks.
    pub(crate) fn beside(&self, shards: Arc<Shards>) -> Arc<Self> {
        Self::new(Arc::clone(&self.table), shards)
    }

    /// Which rows are this rank's.
    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The same model, which has this rank's rows of the parameters that are cut and gathers the rest when it is
    /// used.
    pub(crate) fn gathering<M: Module>(self: &Arc<Self>, rows: M) -> M {
        let mut staying = Staying::new(self);
        rows.visit(&mut staying);
        self.lock().stay = staying.found;
        rows.apply_reparameterization(Attacher(self))
    }

    /// What went wrong in a forward pass.
    pub(crate) fn failure(&self) -> Option<TrainError> {
        self.lock().failure.take()
    }

    /// The whole parameter, for a tensor with this rank's rows of it.
    fn value<const D: usize>(self: &Arc<Self>, parameter: usize, rows: Tensor<D>) -> Tensor<D> {
        let training = {
            let mut state = self.lock();
            let stays = state.stay.contains(&parameter);
            match &mut state.pass {
                Some(pass) if rows.is_require_grad() => {
                    note(&pass.used, parameter);
                    *pass.expected.entry(parameter).or_default() += 1;
                    let precision = match stays {
                        true => Precision::F32,
                        false => pass.precision,
                    };
                    let leaf = pass.leaf.clone().expect("there is a parameter");
                    Some((precision, leaf, pass.anchors[parameter].clone()))
                }
                _ => None,
            }
        };
        let whole = match &training {
            Some((_, leaf, anchor)) => {
                let rows = rows.without_autodiff().into_dispatch();
                let places = (leaf.clone(), anchor.clone());
                let gather = Gather {
                    parameter,
                    gatherer: Arc::clone(self),
                };
                let what = format!("parameter {}", self.table.get(parameter).name);
                on_backend_of!(anchor, what, gathered(rows, places, gather))
            }
            None => self.untracked(parameter, rows),
        };
        match (whole, training) {
            (Ok(whole), Some((precision, ..))) => {
                precision.cast_parameter(whole, &Enclosing::default())
            }
            (Ok(whole), None) => whole,
            (Err(error), _) => {
                let text = error.to_string();
                self.fail(error);
                panic!("a parameter cannot be gathered: {text}")
            }
        }
    }

    /// Which parameter has this identity, if it is cut.
    pub(crate) fn index_of(&self, id: ParamId) -> Option<usize> {
        let index = self.table.index_of(id);
        index.filter(|&index| self.shards.is_cut(index))
    }

    /// The shape of a whole parameter.
    pub(crate) fn shape(&self, parameter: usize) -> &[usize] {
        &self.table.get(parameter).shape
    }

    /// The same without a graph.
    pub(crate) fn untracked<const D: usize>(
        &self,
        parameter: usize,
        rows: Tensor<D>,
    ) -> Result<Tensor<D>, TrainError> {
        let (is_autodiff, dtype) = (rows.is_autodiff(), rows.dtype());
        let checkpointing = rows.gradient_checkpointing_strategy();
        let rows = rows.without_autodiff();
        let device = self.shards.computing(rows.device());
        let data = self.collect(parameter, rows.into_dispatch())?;
        let whole = Tensor::from_data(data, (&device, dtype));
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

    /// The whole parameter as its backend has it.
    fn whole<B: Readback>(
        &self,
        parameter: usize,
        rows: DispatchTensor,
        device: &B::Device,
    ) -> Result<B::FloatTensorPrimitive, TrainError> {
        let values = self.collect(parameter, rows)?;
        Ok(B::float_from_data(values, device))
    }

    /// Which parameter is gathered before it is used.
    #[cfg(test)]
    pub(super) fn ahead(&self) -> Option<usize> {
        self.lock().memory.ahead()
    }

    /// Keeps a failure, unless there is one, and tells the other ranks.
    fn fail(&self, error: TrainError) {
        self.group.abort(&error.to_string());
        self.lock().failure.get_or_insert(error);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
