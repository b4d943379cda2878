//! The operation that represents a segment in the graph.

use burn::backend::DispatchDevice;
use burn::module::Module;
use burn::tensor::Tensor;

use super::SegmentInputs;
use super::draws::Seeds;
use super::leaves::Leaves;
use super::running::Running;
use crate::nn::custom_gradient::{Gradient, backward_from};
use crate::world::exchange::mapping::{Meaning, meant};

/// The values of a segment that are kept until its turn in the backward pass.
pub(super) struct Segment<P, M, F, const D: usize> {
    pub(super) inputs: P,
    pub(super) block: M,
    pub(super) forward: F,
    /// The output of the first run. Mostly the input of the next layer, so this holds no memory of its own.
    pub(super) output: Tensor<D>,
    /// The indices of inputs and block tensors that need a gradient.
    pub(super) places: Vec<usize>,
    /// True if there are others, which may be running state.
    pub(super) has_constants: bool,
    pub(super) seeds: Option<Seeds>,
}

impl<P: Module, M: Module, F, const D: usize> Segment<P, M, F, D> {
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
        let tracked = output.is_tracked();
        let gradients = tracked.then(|| backward_from(output, gradient));
        let gradients = leaves.gradients(gradients);
        if let Some(running) = running {
            running.put_back(block);
        }
        gradients
    }
}

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
