//! A training pass that gathers parameters.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DispatchTensor, Tensor};

use super::Gatherer;
use crate::{Precision, TrainError};

/// A forward pass of a training, and the backward pass after it.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) precision: Precision,
    /// This rank's rows of each parameter, for the gathers ahead; no optimizer writes to them meanwhile.
    pub(super) rows: HashMap<usize, DispatchTensor>,
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
        let mut rows = Rows {
            gatherer: self,
            found: HashMap::new(),
        };
        model.visit(&mut rows);
        self.lock().pass = Some(Pass {
            rows: rows.found,
            precision,
        });
    }

    pub(crate) fn end(&self) -> Result<(), TrainError> {
        let mut state = self.lock();
        // One that was not used after all.
        let arrived = self.arrived(&mut state).map(drop);
        state.order.end();
        state.pass = None;
        state.failure.take().map_or(arrived, Err)
    }
}
