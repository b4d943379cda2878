//! The operations that stand for a segment in the graph.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops};
use burn::backend::{Backend, BackendTypes, DispatchDevice, DispatchKindConversion};
use burn::module::Module;
use burn::tensor::{DispatchTensor, GradientCheckpointingStrategy, Tensor};

use super::SegmentInputs;
use super::draws::Seeds;
use super::leaves::{Gradient, Leaves};
use super::running::Running;
use crate::TrainError;
use crate::reducer::hooks::{on_backend_of, primitive, unsupported};
use crate::reducer::readback::Readback;
use crate::world::exchange::mapping::{Meaning, meant};

/// What is kept of a segment until its turn comes in the backward pass.
pub(super) struct Segment<P, M, F, const D: usize> {
    /// Parameters that are the inputs.
    pub(super) inputs: P,
    pub(super) block: M,
    pub(super) forward: F,
    /// Of the first run. Mostly the input of what follows, so this holds no memory of its own.
    pub(super) output: Tensor<D>,
    /// Of inputs and block, which tensors need a gradient.
    pub(super) places: Vec<usize>,
    /// Whether there are others, which may be running state.
    pub(super) has_constants: bool,
    pub(super) seeds: Option<Seeds>,
}

impl<P: Module, M: Module, F, const D: usize> Segment<P, M, F, D> {
    /// Runs the segment again and a backward pass from the gradient of its output.
    pub(super) fn again<I>(self, gradient: Tensor<D>) -> Vec<Gradient>
    where
        I: SegmentInputs<Parameters = P>,
        F: Fn(&M, I) -> Tensor<D>,
    {
        let running = self.has_constants.then(|| Running::of(&self.block));
        let mut leaves = Leaves::at(self.places);
        let whole = (self.inputs, self.block);
        let (inputs, block) = meant(Meaning::Replay, || whole.map(&mut leaves));
        let run = || (self.forward)(&block, I::of(&inputs));
        let output = match self.seeds {
            Some(seeds) => seeds.repeat(run),
            None => run(),
        };
        check_same(&output, self.output);
        let gradients = output.is_tracked().then(|| {
            let what = "the output of a segment".to_owned();
            let seeded = on_backend_of!(output, what, seeded(output, gradient));
            // A backend that was known before is known now.
            seeded.unwrap_or_else(|error| panic!("{error}")).backward()
        });
        let gradients = leaves.gradients(gradients);
        if let Some(running) = running {
            running.put_back(block);
        }
        gradients
    }
}

/// That a segment has the same output again.
fn check_same<const D: usize>(again: &Tensor<D>, before: Tensor<D>) {
    let kind = |output: &Tensor<D>| (output.shape(), output.dtype());
    let (found, expected) = (kind(again), kind(&before));
    assert_eq!(
        found, expected,
        "shape and type of a segment's output in the backward and in the forward pass"
    );
    // Elsewhere waiting for the device would cost too much, and kernels may add in any order.
    #[cfg(feature = "flex")]
    if let DispatchDevice::Flex(_) = before.device().without_autodiff().as_dispatch() {
        let bytes = |output: Tensor<D>| output.into_data().into_parts().0;
        assert!(
            bytes(again.clone()) == bytes(before),
            "a segment computed something else in the backward pass than in the forward pass: it \
             depends on more than its inputs, or another thread of this process drew random numbers \
             while it did, as ranks that are threads do; ranks that are processes do not"
        );
    }
}

/// Runs a segment again and gives the gradients of its tensors for that of its output.
pub(super) type Again<const D: usize> = Box<dyn FnOnce(Tensor<D>) -> Vec<Gradient> + Send>;

/// The same output, whose backward pass goes on at the nodes of the segment's tensors.
pub(super) fn followed<const D: usize>(
    output: Tensor<D>,
    nodes: Vec<NodeGuard>,
    again: Again<D>,
) -> Result<Tensor<D>, TrainError> {
    let what = "the output of a segment".to_owned();
    on_backend_of!(output, what, followed_on(output, nodes, again))
}

fn followed_on<B, C, const D: usize>(
    output: Tensor<D>,
    nodes: Vec<NodeGuard>,
    again: Again<D>,
) -> Result<Tensor<D>, TrainError>
where
    B: Readback,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let found = Shared::default();
    // The first in the chain is attached to nothing: the output has no graph.
    let (mut values, mut chain) = primitive::<B, C, D>(output)?.into_parts();
    for (slot, node) in nodes.into_iter().enumerate() {
        let attach = Attach {
            slot,
            found: Arc::clone(&found),
        };
        let prepared = Backward::<B, 2>::prepare::<C>(attach, [chain, node]).compute_bound();
        (values, chain) = prepared.stateless(values).into_parts();
    }
    let operation = Operation { again, found };
    let prepared = operation.prepare::<C>([chain]).compute_bound();
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(
        prepared.stateless(values),
    ))
}

/// Gradients on their way from a segment to its tensors.
type Shared = Arc<Mutex<Vec<Option<Gradient>>>>;

/// The segment. The gradient of its output goes along the chain, so that there is one.
struct Operation<const D: usize> {
    again: Again<D>,
    found: Shared,
}

impl<const D: usize> std::fmt::Debug for Operation<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Operation")
    }
}

impl<B: Backend, const D: usize> Backward<B, 1> for Operation<D>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let found = (self.again)(Tensor::from_primitive::<B>(gradient.clone()));
        let mut shared = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        *shared = found.into_iter().map(Some).collect();
        if let [Some(chain)] = ops.parents {
            gradients.register::<B>(chain.id, gradient);
        }
    }
}

/// Gives a tensor its gradient.
#[derive(Debug)]
struct Attach {
    slot: usize,
    found: Shared,
}

impl<B: Backend> Backward<B, 2> for Attach
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let passing = gradients.consume::<B>(&ops.node);
        let [chain, tensor] = ops.parents;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let gradient = found[self.slot].take().expect("the segment has run");
        // An operation that the tensor comes from takes a gradient for granted.
        if let Some(tensor) = tensor
            && (gradient.depends || tensor.order > 0)
        {
            // The rank is not looked at.
            let values = Tensor::<1>::from_dispatch(gradient.values).try_into_primitive::<B>();
            let values = values.expect("a gradient is on the backend of its tensor");
            gradients.register::<B>(tensor.id, values);
        }
        if let Some(chain) = chain {
            gradients.register::<B>(chain.id, passing);
        }
    }
}

/// A number whose backward pass begins with `gradient` as that of `output`.
fn seeded<B, C, const D: usize>(
    output: Tensor<D>,
    gradient: Tensor<D>,
) -> Result<Tensor<1>, TrainError>
where
    B: Readback,
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>,
{
    let number = Tensor::<1>::zeros([1], &output.device().without_autodiff());
    let unknown = |_| unsupported("the output of a segment".to_owned(), &gradient.device());
    let number = number.try_into_primitive::<B>().map_err(unknown)?;
    let values = gradient
        .clone()
        .try_into_primitive::<B>()
        .map_err(unknown)?;
    let node = primitive::<B, C, D>(output)?.node();
    let prepared = Seeded::<B>(values).prepare::<C>([node]).compute_bound();
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(
        prepared.stateless(number),
    ))
}

#[derive(Debug)]
struct Seeded<B: BackendTypes>(B::FloatTensorPrimitive);

impl<B: Backend> Backward<B, 1> for Seeded<B> {
    type State = ();

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        if let [Some(output)] = ops.parents {
            gradients.register::<B>(output.id, self.0);
        }
    }
}
