//! Running state, which a second run must not change.
//!
//! Burn's `RunningState` is shared by all clones of a module, and keeps its last update apart until a
//! mode changes; so it cannot be copied, only put back.

use std::collections::VecDeque;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DispatchTensor, Tensor};

/// All float tensors of a module as they are, in its order.
#[derive(Default)]
pub(crate) struct Running(VecDeque<DispatchTensor>);

impl Running {
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let mut running = Self::default();
        settle(module);
        module.visit(&mut running);
        running
    }

    /// Restores the earlier values of running state. Parameters of the module do not change: the mapped ones are
    /// dropped.
    pub(crate) fn put_back<M: Module>(mut self, module: M) {
        settle(&module);
        module.map(&mut self);
    }
}

/// Makes running state apply its last update.
fn settle<M: Module>(module: &M) {
    drop(module.valid());
}

impl ModuleVisitor for Running {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push_back(param.base().into_dispatch());
    }
}

impl ModuleMapper for Running {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.0.pop_front().expect("a module has the same tensors");
        Param::initialized(param.id, Tensor::from_dispatch(value))
    }
}
