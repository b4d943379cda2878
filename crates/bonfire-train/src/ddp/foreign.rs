//! Tensors that are trained elsewhere, found in the backward pass of a [`Ddp`].
//!
//! Burn keeps a gradient for every tensor that requires one. Those of the model's parameters are averaged; the others
//! would be lost silently, and their tensors would not train. Burn does not list the gradients of a pass, but it
//! notifies a listener of each one that is registered. The first operation of the pass, on the loss, puts the listener
//! there.
//!
//! Tensors made inside the forward pass belong to the program, such as inputs whose gradient is part of a penalty:
//! only older ones count.

use std::collections::HashSet;
use std::sync::Arc;

use bonfire_collective::Mutex;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::{DistributedRegistration, GradID, Gradients};
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::container::TensorContainer;

use crate::TrainError;
use crate::reducer::operation::{behind, node, on_backend_of};
use crate::reducer::readback::Readback;

#[derive(Clone, Debug)]
pub(super) struct Watch {
    /// Older tensors were there before the forward pass.
    start: NodeId,
    /// The older ones that got a gradient, one entry for each time.
    found: Arc<Mutex<Vec<NodeId>>>,
}

impl Watch {
    pub(super) fn start() -> Self {
        Self { start: NodeId::new(), found: Arc::default() }
    }

    /// The same loss, with a listener to its backward pass.
    pub(super) fn on(&self, loss: Tensor<1>) -> Result<Tensor<1>, TrainError> {
        let watch = self.clone();
        on_backend_of!(loss, "the loss".to_owned(), behind(loss, First(watch)))
    }

    /// Checks that only parameters of the model got a gradient, each from one place.
    pub(super) fn check<M: Module>(&self, model: &M) -> Result<(), TrainError> {
        let mut own = Own::default();
        model.visit(&mut own);
        let found = self.found.lock();
        match found.iter().filter(|id| !own.ids.remove(id)).count() {
            0 => Ok(()),
            gradients => Err(TrainError::ForeignGradients { gradients }),
        }
    }
}

impl DistributedRegistration for Watch {
    fn on_register(&mut self, node: &NodeId, _container: &mut TensorContainer<GradID>) {
        if *node < self.start {
            let mut found = self.found.lock();
            found.push(*node);
        }
    }
}

#[derive(Default)]
struct Own {
    ids: HashSet<NodeId>,
}

impl ModuleVisitor for Own {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if !tensor.is_require_grad() {
            return;
        }
        // The hooks have found every parameter on a known backend.
        if let Ok(node) = on_backend_of!(tensor, "a parameter".to_owned(), node(tensor)) {
            self.ids.insert(node.id());
        }
    }
}

#[derive(Debug)]
struct First(Watch);

impl<B: Readback> Backward<B, 1> for First {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let one = gradients.consume::<B>(&ops.node);
        if let [Some(loss)] = ops.parents {
            // The pass starts again at the loss, with a one as before, and has a listener.
            *gradients = Gradients::new_distributed::<B>(loss, one, Box::new(self.0));
        }
    }
}
