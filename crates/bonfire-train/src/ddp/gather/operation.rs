//! The operation that gathers a parameter.

use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::tensor::{DispatchTensor, Tensor};

use super::Gatherer;
use crate::TrainError;
use crate::reducer::hooks::tell;
use crate::reducer::operation::{Graph, node, primitive};
use crate::reducer::readback::Readback;

/// Gathers a parameter forwards, and gives its gradient away backwards.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) parameter: usize,
    pub(super) gatherer: Arc<Gatherer>,
}

/// The whole parameter, for this rank's rows of it, which may be on another backend. The leaf stands for them in the
/// graph of the device that computes; it gets no gradient.
pub(super) fn gathered<B: Readback, C: CheckpointStrategy, const D: usize>(
    rows: DispatchTensor,
    (leaf, anchor): (Tensor<1>, Tensor<1>),
    gather: Gather,
) -> Result<Tensor<D>, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let leaf = primitive::<B, C, 1>(leaf)?;
    let anchor = node::<B, C, 1>(anchor)?;
    let device = leaf.primitive().device();
    let whole = gather
        .gatherer
        .whole::<B>(gather.parameter, rows.clone(), &device)?;
    let again = GatherAgain::<B> {
        rows,
        leaf: leaf.id(),
        parameter: gather.parameter,
        gatherer: Arc::clone(&gather.gatherer),
        backend: PhantomData,
    };
    // Whatever the strategy of the device: this is the operation that is recomputed.
    let prepared = gather
        .prepare::<BalancedCheckpointing>([leaf.node(), anchor])
        .memory_bound()
        .retro_forward(again)
        .parents([&leaf]);
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(
        prepared.stateless(whole),
    ))
}

impl<B: Readback> Backward<B, 2> for Gather {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let Self {
            parameter,
            gatherer,
        } = self;
        if let Some((listener, gradient)) = gatherer.add::<B>(parameter, gradient) {
            tell::<B>(&listener, &gatherer.table, parameter, gradient);
        }
    }
}

/// Gathers a parameter again, for a backward step that needs it.
#[derive(Debug)]
struct GatherAgain<B> {
    rows: DispatchTensor,
    leaf: NodeId,
    parameter: usize,
    gatherer: Arc<Gatherer>,
    backend: PhantomData<B>,
}

impl<B: Readback> RetroForward for GatherAgain<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let leaf = states.get_state::<B::FloatTensorPrimitive>(&self.leaf);
        let device = leaf.device();
        let rows = self.rows.clone();
        let whole = self.gatherer.whole::<B>(self.parameter, rows, &device);
        let whole = whole.unwrap_or_else(|error| {
            self.gatherer.fail(error);
            // Nobody sees what is computed with it: the step ends with the failure.
            let shape = self.gatherer.table.get(self.parameter).shape.clone();
            let dtype = self.gatherer.table.get(self.parameter).tensor_dtype;
            B::float_zeros(shape.into(), &device, dtype.into())
        });
        states.save(out_node, whole);
    }
}
