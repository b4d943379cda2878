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
use crate::reducer::operation::{Graph, primitive};
use crate::reducer::readback::Readback;

#[derive(Clone, Debug)]
pub(super) struct Source {
    /// This rank's rows, which may be on another backend.
    pub(super) rows: DispatchTensor,
    pub(super) parameter: usize,
    pub(super) gatherer: Arc<Gatherer>,
}

/// The complete parameter, on the device of its stand-in in the graph, which gets the gradient.
pub(super) fn gathered<B: Readback, C: CheckpointStrategy, const D: usize>(
    stand_in: Tensor<1>,
    source: Source,
) -> Result<Tensor<D>, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let stand_in = primitive::<B, C, 1>(stand_in)?;
    let device = stand_in.primitive().device();
    let (gatherer, rows) = (&source.gatherer, source.rows.clone());
    let whole = gatherer.whole::<B>(source.parameter, rows, &device)?;
    let again = GatherAgain::<B> { source, stand_in: stand_in.id(), backend: PhantomData };
    // Whatever the strategy of the device: this is the operation that is recomputed.
    let prepared = Gather
        .prepare::<BalancedCheckpointing>([stand_in.node()])
        .memory_bound()
        .retro_forward(again)
        .parents([&stand_in]);
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(prepared.stateless(whole)))
}

#[derive(Debug)]
struct Gather;

impl<B: Readback> Backward<B, 1> for Gather {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(stand_in)] = ops.parents {
            gradients.register::<B>(stand_in.id, gradient);
        }
    }
}

/// Gathers a parameter again, for a backward step that needs it.
#[derive(Debug)]
struct GatherAgain<B> {
    source: Source,
    stand_in: NodeId,
    backend: PhantomData<B>,
}

impl<B: Readback> RetroForward for GatherAgain<B> {
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        let stand_in = states.get_state::<B::FloatTensorPrimitive>(&self.stand_in);
        let device = stand_in.device();
        let Source { rows, parameter, gatherer } = &self.source;
        let whole = gatherer.whole::<B>(*parameter, rows.clone(), &device);
        let whole = whole.unwrap_or_else(|error| {
            gatherer.failures.keep(error);
            // Results computed with it are dropped: the step ends with the failure.
            let entry = gatherer.table.get(*parameter);
            B::float_zeros(entry.shape.clone().into(), &device, entry.tensor_dtype.into())
        });
        states.save(out_node, whole);
    }
}
