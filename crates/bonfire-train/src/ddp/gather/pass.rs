//! A training pass, and the gradients of the parameters that it gathers.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DispatchTensor, Tensor};

use super::Gatherer;
use crate::parameters::ParameterTable;
use crate::reducer::hooks::{Listener, Uses, tell};
use crate::reducer::readback::Readback;
use crate::{Precision, TrainError};

/// A forward pass of a training, and the backward pass after it.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) precision: Precision,
    /// Where in the graph each parameter's gradient is to be had.
    pub(super) anchors: Vec<Tensor<1>>,
    /// What stands for parameters in the graph; none if there are none.
    pub(super) leaf: Option<Tensor<1>>,
    /// Which parameters were used first, for the anchors of later passes.
    pub(super) used: Uses,
    pub(super) listener: Listener,
    /// How often each parameter was used, less how often its gradient came.
    pub(super) expected: HashMap<usize, usize>,
    /// Sums of the gradients of parameters that were used several times.
    pub(super) sums: BTreeMap<usize, Box<dyn Sum>>,
    /// This rank's rows of each parameter, for the gathers ahead; no optimizer writes to them meanwhile.
    pub(super) rows: HashMap<usize, DispatchTensor>,
}

/// Finds this rank's rows.
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

/// A gradient, on any backend.
pub(super) trait Sum: Any + Send + std::fmt::Debug {
    fn into_any(self: Box<Self>) -> Box<dyn Any>;

    /// Tells a listener that it is final.
    fn tell(self: Box<Self>, listener: &Listener, table: &ParameterTable, parameter: usize);
}

#[derive(Debug)]
struct On<B: Readback>(B::FloatTensorPrimitive);

impl<B: Readback> Sum for On<B> {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn tell(self: Box<Self>, listener: &Listener, table: &ParameterTable, parameter: usize) {
        tell::<B>(listener, table, parameter, self.0);
    }
}

impl Gatherer {
    /// Begins a forward pass of a training.
    pub(crate) fn begin<M: Module>(
        &self,
        model: &M,
        precision: Precision,
        (anchors, used): (Vec<Tensor<1>>, Uses),
    ) {
        let mut rows = Rows {
            gatherer: self,
            found: HashMap::new(),
        };
        model.visit(&mut rows);
        let device = anchors.first().map(Tensor::device);
        let leaf = device.map(|device| Tensor::zeros([1], &device).require_grad());
        self.lock().pass = Some(Pass {
            rows: rows.found,
            leaf,
            precision,
            anchors,
            used,
            listener: Listener::Nobody,
            expected: HashMap::new(),
            sums: BTreeMap::new(),
        });
    }

    /// Says who is told about gradients in the backward pass.
    pub(crate) fn listen(&self, listener: Listener) {
        if let Some(pass) = &mut self.lock().pass {
            pass.listener = listener;
        }
    }

    /// Ends the pass: a use that the loss does not depend on has brought no gradient, and nobody waits for
    /// it any longer.
    pub(crate) fn end(&self) -> Result<(), TrainError> {
        let (pass, result) = {
            let mut state = self.lock();
            // One that nobody asked for after all.
            let arrived = self.arrived(&mut state).map(drop);
            state.order.end();
            let failure = state.failure.take();
            (state.pass.take(), failure.map_or(arrived, Err))
        };
        if let Some(Pass { sums, listener, .. }) = pass {
            for (parameter, sum) in sums {
                sum.tell(&listener, &self.table, parameter);
            }
        }
        result
    }

    /// Takes the gradient of one use of a parameter; gives the sum of all, once it is there.
    pub(super) fn add<B: Readback>(
        &self,
        parameter: usize,
        gradient: B::FloatTensorPrimitive,
    ) -> Option<(Listener, B::FloatTensorPrimitive)> {
        let mut state = self.lock();
        let pass = state.pass.as_mut()?;
        let sum = match pass.sums.remove(&parameter) {
            None => gradient,
            Some(sum) => {
                let sum = sum.into_any().downcast::<On<B>>();
                let On(sum) = *sum.expect("a parameter stays on its backend");
                B::float_add(sum, gradient)
            }
        };
        let expected = pass.expected.entry(parameter).or_default();
        *expected = expected.saturating_sub(1);
        if *expected == 0 {
            return Some((pass.listener.clone(), sum));
        }
        pass.sums.insert(parameter, Box::new(On::<B>(sum)));
        None
    }
}
