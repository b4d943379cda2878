//! Operations whose backward step is code of the program: what PyTorch calls `autograd.Function`.
//!
//! An operation with several inputs is a chain: one operation computes all gradients, and one behind each input passes
//! it its own. So a hook on a parameter sees a gradient when it is final.

use std::sync::Arc;

use bonfire_collective::Mutex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops};
use burn::backend::{Backend, BackendTypes, DispatchKindConversion, TensorMetadata};
use burn::tensor::{DispatchTensor, GradientCheckpointingStrategy, Shape, Tensor};

use crate::TrainError;
use crate::reducer::operation::{Graph, node, on_backend_of, primitive, unsupported};
use crate::reducer::readback::Readback;

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;

const WHAT: &str = "a tensor with a gradient";

/// Runs `forward` on `input`. The backward pass takes the gradient of the input from `backward`, which gets that of
/// the output.
///
/// Neither sees a graph: both get and return tensors without autodiff, on the same device. `backward` runs once in
/// every backward pass that reaches the output, and not at all in others; it owns the values that it needs from the
/// forward pass. Where `input` is not tracked, `forward` just runs and `backward` is dropped.
///
/// ```
/// # use bonfire_train::custom_gradient;
/// # use burn::tensor::Tensor;
/// /// Rounds, and lets gradients pass as if it did not.
/// fn straight_through(x: Tensor<2>) -> Tensor<2> {
///     custom_gradient(x, |x| x.round(), |gradient| gradient)
/// }
/// ```
///
/// # Failures
/// A panic of `backward` is one of the backward pass. An operation that may fail there, because other ranks take part,
/// reports it with [`World::fail`](crate::World::fail) and returns zeros: [`Ddp`](crate::Ddp) returns the failure when
/// the pass has ended.
///
/// # Panics
/// If `forward` returns a tensor of another device; on a backend that this crate does not know. The backward pass
/// panics if `backward` returns a gradient of another shape or type than the input.
pub fn custom_gradient<const D: usize, const E: usize>(
    input: Tensor<D>,
    forward: impl FnOnce(Tensor<D>) -> Tensor<E>,
    backward: impl FnOnce(Tensor<E>) -> Tensor<D> + Send + 'static,
) -> Tensor<E> {
    let mut inputs = Inputs::default();
    inputs.add(&input);
    let input = input.without_autodiff();
    let (device, kind) = (input.device(), (input.shape(), input.dtype()));
    let output = forward(input).without_autodiff();
    assert_eq!(output.device(), device, "device of output and of input");
    inputs.lead_to(output, move |gradient| {
        let gradient = backward(gradient).without_autodiff();
        let found = (gradient.shape(), gradient.dtype());
        assert_eq!(found, kind, "shape and type of a gradient and of its input");
        vec![gradient.into_dispatch()]
    })
}

/// Runs a backward pass with `gradient` as that of `output`: `(output * gradient).sum().backward()` without the
/// product. The gradient has no autodiff, and the shape and the type of the output.
///
/// # Panics
/// On a backend that this crate does not know, or if the two are on different ones.
pub fn backward_from<const D: usize>(
    output: Tensor<D>,
    gradient: Tensor<D>,
) -> burn::tensor::Gradients {
    let found = (gradient.shape(), gradient.dtype());
    let expected = (output.shape(), output.dtype());
    assert_eq!(found, expected, "shape and type of a gradient and of its tensor");
    known::<Tensor<1>>(on_backend_of!(output, WHAT.to_owned(), seeded(output, gradient))).backward()
}

pub(crate) fn node_of<const D: usize>(tensor: Tensor<D>) -> NodeGuard {
    known(on_backend_of!(tensor, WHAT.to_owned(), node(tensor)))
}

fn known<T>(found: Result<T, TrainError>) -> T {
    found.unwrap_or_else(|error| panic!("{error}"))
}

#[derive(Default)]
pub(crate) struct Inputs {
    /// The strategy of the first input with autodiff.
    strategy: Option<GradientCheckpointingStrategy>,
    nodes: Vec<NodeGuard>,
}

impl Inputs {
    pub(crate) fn add<const D: usize>(&mut self, input: &Tensor<D>) {
        self.strategy = self.strategy.or(input.gradient_checkpointing_strategy());
        if input.is_tracked() {
            self.nodes.push(node_of(input.clone()));
        }
    }

    /// The output of the operation, without autodiff, as one whose backward pass takes the gradients of tracked inputs
    /// from `backward`, in their order.
    pub(crate) fn lead_to<const D: usize>(
        self,
        output: Tensor<D>,
        backward: impl FnOnce(Tensor<D>) -> Vec<DispatchTensor> + Send + 'static,
    ) -> Tensor<D> {
        let Some(strategy) = self.strategy else {
            return output;
        };
        let output = output.autodiff().with_gradient_checkpointing_strategy(strategy);
        if self.nodes.is_empty() {
            return output;
        }
        let depends = |values| Gradient { values, depends: true };
        let again = move |gradient| backward(gradient).into_iter().map(depends).collect();
        followed(output, self.nodes, Box::new(again))
    }
}

#[derive(Debug)]
pub(crate) struct Gradient {
    /// Zeros if the output does not depend on the input.
    pub(crate) values: DispatchTensor,
    pub(crate) depends: bool,
}

pub(crate) type Again<const D: usize> = Box<dyn FnOnce(Tensor<D>) -> Vec<Gradient> + Send>;

/// The same output, whose backward pass continues at these nodes.
pub(crate) fn followed<const D: usize>(
    output: Tensor<D>,
    nodes: Vec<NodeGuard>,
    again: Again<D>,
) -> Tensor<D> {
    known(on_backend_of!(output, WHAT.to_owned(), followed_on(output, nodes, again)))
}

fn followed_on<B: Readback, C: CheckpointStrategy, const D: usize>(
    output: Tensor<D>,
    nodes: Vec<NodeGuard>,
    again: Again<D>,
) -> Result<Tensor<D>, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let found = Shared::default();
    // The first in the chain is attached to nothing: the output has no graph.
    let (mut values, mut chain) = primitive::<B, C, D>(output)?.into_parts();
    for (slot, node) in nodes.into_iter().enumerate() {
        let attach = Attach { slot, found: Arc::clone(&found) };
        let prepared = Backward::<B, 2>::prepare::<C>(attach, [chain, node]).compute_bound();
        (values, chain) = prepared.stateless(values).into_parts();
    }
    let operation = Operation { again, found };
    let prepared = operation.prepare::<C>([chain]).compute_bound();
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(prepared.stateless(values)))
}

/// Gradients that wait between an operation and its inputs.
type Shared = Arc<Mutex<Vec<Option<Gradient>>>>;

/// The operation. A number is passed along the chain, so that there is a gradient; that of the output is the
/// operation's own, which may compute in its memory.
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
        let passing = B::float_zeros(Shape::new([1]), &gradient.device(), gradient.dtype().into());
        let found = (self.again)(Tensor::from_primitive::<B>(gradient));
        let mut shared = self.found.lock();
        *shared = found.into_iter().map(Some).collect();
        if let [Some(chain)] = ops.parents {
            gradients.register::<B>(chain.id, passing);
        }
    }
}

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
        let mut found = self.found.lock();
        let gradient = found[self.slot].take().expect("the operation before has run");
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

fn seeded<B: Readback, C: CheckpointStrategy, const D: usize>(
    output: Tensor<D>,
    gradient: Tensor<D>,
) -> Result<Tensor<1>, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let number = Tensor::<1>::zeros([1], &output.device().without_autodiff());
    let unknown = |_| unsupported(WHAT.to_owned(), &gradient.device());
    let number = number.try_into_primitive::<B>().map_err(unknown)?;
    let values = gradient.clone().try_into_primitive::<B>().map_err(unknown)?;
    let node = node::<B, C, D>(output)?;
    let prepared = Seeded::<B>(values).prepare::<C>([node]).compute_bound();
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(prepared.stateless(number)))
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
