//! Anchors in the graph of a training pass, at which parameters are brought.
//!
//! Burn runs backward steps by their distance from the leaves, the farthest first. A step next to a parameter would run
//! at the very end, and all gradients would be there until then. So each has a second input, an anchor that needs
//! no gradient and is about as far from the leaves as what uses the parameter: the k-th use has an anchor k times as
//! far as the first. Too far does no harm.

use bonfire_collective::Mutex;
use burn::backend::DispatchKindConversion;
use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::{Device, DispatchTensor, Tensor};

/// The distance between anchors: more than most layers are deep.
const DISTANCE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Anchors(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The parameter whose use begins a pass.
    first: Option<usize>,
    uses: usize,
    anchors: Vec<Tensor<1>>,
}

impl Anchors {
    /// The anchor of a parameter's use; `device` is host memory with the graph of the pass.
    pub(super) fn next<C>(&self, parameter: usize, device: &Device) -> Tensor<1>
    where
        C: CheckpointStrategy,
        DispatchTensor: DispatchKindConversion<Autodiff<Flex, C>>,
    {
        let mut state = self.0.lock();
        if *state.first.get_or_insert(parameter) == parameter {
            state.uses = 0;
        }
        let strategy = |tensor: &Tensor<1>| tensor.gradient_checkpointing_strategy();
        let fresh = Tensor::zeros([1], device);
        if state.anchors.first().is_some_and(|anchor| strategy(anchor) != strategy(&fresh)) {
            state.anchors.clear();
        }
        let uses = state.uses;
        state.uses += 1;
        while state.anchors.len() <= uses {
            let mut anchor = state.anchors.last().cloned().unwrap_or_else(|| fresh.clone());
            for _ in 0..DISTANCE {
                anchor = further::<C>(anchor);
            }
            state.anchors.push(anchor);
        }
        state.anchors[uses].clone()
    }
}

fn further<C>(anchor: Tensor<1>) -> Tensor<1>
where
    C: CheckpointStrategy,
    DispatchTensor: DispatchKindConversion<Autodiff<Flex, C>>,
{
    let anchor = anchor.try_into_primitive::<Autodiff<Flex, C>>();
    let (values, node) = anchor.expect("it was made there").into_parts();
    let prepared = Further.prepare::<C>([node]).compute_bound();
    Tensor::from_primitive::<Autodiff<Flex, C>>(prepared.stateless(values))
}

/// The same values. It needs no gradient, so none comes back.
#[derive(Debug)]
struct Further;

impl Backward<Flex, 1> for Further {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            gradients.register::<Flex>(parent.id, gradient);
        }
    }
}
