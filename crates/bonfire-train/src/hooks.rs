//! Follows a backward pass: which parameter's gradient was just added to.
//!
//! The loss gets one more operation, whose backward step runs first of all. It exchanges the
//! gradients of the pass, still empty but for the loss's own, for ones that report every addition.
//! An operation around each parameter would not do: Burn runs backward steps by their distance from
//! the leaves, so all steps next to a parameter run at the very end.
//!
//! Must never change a value: the gradients are those that the pass computes without it.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::{DistributedRegistration, Gradients};
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::{Backend, DispatchDevice, DispatchKindConversion, TensorPrimitive};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::container::TensorContainer;
use burn::tensor::{DispatchTensor, GradientCheckpointingStrategy, Tensor};

use crate::TrainError;
use crate::harvest::checked;
use crate::parameters::ParameterTable;
use crate::readback::Readback;
use crate::reducer::{Addition, Reducer};

/// The same loss, whose backward pass tells the reducer about the gradients of the model.
pub(crate) fn follow<M: Module>(
    loss: Tensor<1>,
    model: &M,
    table: &Arc<ParameterTable>,
    reducer: &Arc<Mutex<Reducer>>,
) -> Result<Tensor<1>, TrainError> {
    let device = loss.device();
    let unsupported = || TrainError::UnsupportedBackend {
        what: "the loss".to_owned(),
        device: format!("{device:?}"),
    };
    let DispatchDevice::Autodiff(autodiff) = device.as_dispatch() else {
        return Err(unsupported());
    };
    let follower = Follower {
        model,
        table,
        reducer,
    };
    let strategy = loss.gradient_checkpointing_strategy();
    match (&**autodiff, strategy) {
        #[cfg(feature = "flex")]
        (DispatchDevice::Flex(_), Some(GradientCheckpointingStrategy::Disabled)) => {
            follower.on::<burn::backend::Flex, NoCheckpointing>(loss)
        }
        #[cfg(feature = "flex")]
        (DispatchDevice::Flex(_), Some(GradientCheckpointingStrategy::Balanced)) => {
            follower.on::<burn::backend::Flex, BalancedCheckpointing>(loss)
        }
        #[cfg(feature = "cube")]
        (DispatchDevice::Cube(_), Some(GradientCheckpointingStrategy::Disabled)) => {
            follower.on::<burn::backend::Cube, NoCheckpointing>(loss)
        }
        #[cfg(feature = "cube")]
        (DispatchDevice::Cube(_), Some(GradientCheckpointingStrategy::Balanced)) => {
            follower.on::<burn::backend::Cube, BalancedCheckpointing>(loss)
        }
        #[allow(
            unreachable_patterns,
            reason = "other packages may add backends to the build"
        )]
        _ => Err(unsupported()),
    }
}

struct Follower<'a, M> {
    model: &'a M,
    table: &'a Arc<ParameterTable>,
    reducer: &'a Arc<Mutex<Reducer>>,
}

impl<M: Module> Follower<'_, M> {
    fn on<B, C>(&self, loss: Tensor<1>) -> Result<Tensor<1>, TrainError>
    where
        B: Readback,
        C: CheckpointStrategy,
        DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
    {
        let mut leaves = Leaves::<B, C> {
            table: self.table,
            nodes: HashMap::with_capacity(self.table.len()),
            error: None,
            backend: PhantomData,
        };
        self.model.visit(&mut leaves);
        if let Some(error) = leaves.error {
            return Err(error);
        }
        let tap = Tap::<B> {
            watcher: Watcher {
                nodes: leaves.nodes,
                table: Arc::clone(self.table),
                reducer: Arc::clone(self.reducer),
                backend: PhantomData,
            },
        };
        let device = loss.device();
        let loss = loss.try_into_primitive::<Autodiff<B, C>>().map_err(|_| {
            TrainError::UnsupportedBackend {
                what: "the loss".to_owned(),
                device: format!("{device:?}"),
            }
        })?;
        let (values, node) = loss.into_parts();
        let prepared = tap.prepare::<C>([node]).compute_bound().stateful();
        let tapped = match prepared {
            OpsKind::Tracked(prepared) => prepared.finish((), values),
            OpsKind::UnTracked(prepared) => prepared.finish(values),
        };
        Ok(Tensor::from_primitive::<Autodiff<B, C>>(tapped))
    }
}

/// Finds the places of the parameters in the graph of the backward pass.
struct Leaves<'a, B, C> {
    table: &'a ParameterTable,
    nodes: HashMap<u64, usize>,
    error: Option<TrainError>,
    backend: PhantomData<fn() -> (B, C)>,
}

impl<B, C> ModuleVisitor for Leaves<'_, B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>>,
{
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.table.index_of(param.id) else {
            return;
        };
        match param.val().try_into_primitive::<Autodiff<B, C>>() {
            Ok(leaf) => {
                self.nodes.insert(leaf.id().value, index);
            }
            Err(_) => {
                self.error.get_or_insert(TrainError::UnsupportedBackend {
                    what: format!("parameter {}", self.table.get(index).name),
                    device: format!("{:?}", param.lazy_device()),
                });
            }
        }
    }
}

/// The operation on the loss.
#[derive(Debug)]
struct Tap<B: Readback> {
    watcher: Watcher<B>,
}

impl<B: Readback> Backward<B, 1> for Tap<B> {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        // All ones: the backward pass starts here. The new gradients start with ones as well.
        let ones = gradients.consume::<B>(&ops.node);
        if let [Some(loss)] = ops.parents {
            *gradients = Gradients::new_distributed::<B>(loss, ones, Box::new(self.watcher));
        }
    }
}

/// Sees every addition to a gradient.
struct Watcher<B> {
    nodes: HashMap<u64, usize>,
    table: Arc<ParameterTable>,
    reducer: Arc<Mutex<Reducer>>,
    backend: PhantomData<fn() -> B>,
}

impl<B> fmt::Debug for Watcher<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watcher({} parameters)", self.nodes.len())
    }
}

impl<B: Readback> DistributedRegistration for Watcher<B> {
    fn on_register(&mut self, node: &NodeId, gradients: &mut TensorContainer<u64>) {
        let Some(&parameter) = self.nodes.get(&node.value) else {
            return;
        };
        let mut reducer = self.reducer.lock().unwrap_or_else(PoisonError::into_inner);
        if reducer.added(parameter) == Addition::NotFinal {
            return;
        }
        let Some(TensorPrimitive::Float(gradient)) =
            gradients.get::<TensorPrimitive<B>>(&node.value)
        else {
            // Not there, or quantized: the reducer finds it missing after the pass.
            return;
        };
        B::read(gradient, |values| match values {
            Ok(values) => {
                reducer.take_early(parameter, checked(&self.table, parameter, values));
            }
            Err(cause) => {
                let error = crate::harvest::unreadable(&self.table, parameter, &cause);
                reducer.take_early(parameter, Err(error));
            }
        });
    }
}
