//! Activation checkpointing: a part of a model that keeps its inputs only and is computed again in the backward pass.
//!
//! The forward pass runs the part without a graph. One operation stands for it in the graph; its backward step runs
//! the part again, with its own graph, and a backward pass through that one. Inputs and parameters reach the operation
//! through a chain of operations with two parents each, one per tensor, whose backward steps pass the tensor its
//! gradient. So a hook on a parameter sees a gradient when it is final, as in a pass without this. After Chen et al.
//! (2016), "Training deep nets with sublinear memory cost".
//!
//! Must never change a value, and never count a batch twice.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor};

use crate::nn::custom_gradient::followed;
use crate::world::exchange::mapping::{Meaning, meant};

mod draws;
mod leaves;
pub(crate) mod running;
mod segment;
#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;

use draws::Seeds;
use leaves::{Detacher, ToHost};
use segment::Segment;

/// Runs a part of a model and keeps only its inputs for the backward pass, which computes the rest
/// again: `torch.utils.checkpoint` of PyTorch, under another name because a
/// [checkpoint](crate::Checkpoints) is a saved training here.
///
/// With L such blocks, the L inputs are alive between the passes, and the activations of one block during its turn in
/// the backward pass. The price is one more forward pass. [`Recompute`] has the rules and the options.
///
/// ```
/// # use bonfire_train::recompute;
/// # use burn::{nn::Linear, tensor::{Tensor, activation}};
/// fn forward(blocks: &[Linear], mut x: Tensor<2>) -> Tensor<2> {
///     for block in blocks {
///         x = recompute(block, x, |block, x| activation::gelu(block.forward(x)));
///     }
///     x
/// }
/// ```
///
/// # Panics
/// As [`Recompute::run`].
pub fn recompute<M, I, F, const D: usize>(block: &M, inputs: I, forward: F) -> Tensor<D>
where
    M: Module + 'static,
    I: SegmentInputs,
    F: Fn(&M, I) -> Tensor<D> + Send + 'static,
{
    Recompute::default().run(block, inputs, forward)
}

/// Options of [`recompute`], and the rules for a segment.
///
/// # What stays the same
/// Output and gradients have the bits of the pass without it, on backends that compute the same twice, if each input
/// is used by the segment alone: the sum over the uses of a tensor is otherwise added in another order. Inside a
/// [`Ddp`](crate::Ddp), whose hooks order backward passes, the same may happen to a tensor of the block that goes to
/// three layers or more; it was observed not to for an attention's.
///
/// Gradients of parameters are sent while the backward pass runs. Micro-batches, precision, frozen and reparameterized
/// parameters work as always. Segments may be nested, and a block may be in several.
///
/// A parameter that `forward` reads and that its output does not depend on counts in a
/// [`Ddp`](crate::Ddp) as one with a gradient of zeros.
///
/// # Random numbers
/// Dropout drops the same elements both times: the segment draws two seeds from the device, seeds it with the first
/// for either run of the block, and with the second after the run in the backward pass.
/// [`World::seed_step`](crate::World::seed_step) therefore decides these draws, too, and they differ between segments
/// and micro-batches. On a GPU the draw waits for the device: turn it off with
/// [`with_rng_replay`](Self::with_rng_replay) where a block needs none.
///
/// All devices of a kind in one process share a generator. If another thread draws while a segment runs, as ranks that
/// are threads do, dropout cannot be repeated. On the CPU this is detected, and the backward pass panics; run each
/// rank as a process then. Blocks without random numbers are not affected.
///
/// # Batch norm
/// Running statistics are updated once per batch, those of Burn's `RunningState` too. A synchronised
/// [`BatchNorm`](crate::BatchNorm) exchanges as often as without this: the second run uses the statistics of the
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recompute {
    inputs: InputPlacement,
    draws: RngReplay,
}

/// The memory of inputs between the passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputPlacement {
    /// Inputs stay on their device.
    #[default]
    Device,
    /// In host memory: saves memory of a GPU, but waits while they are copied, each way. Of no use on the CPU.
    Host,
}

/// The treatment of the device's random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RngReplay {
    /// Both runs of the block draw the same numbers.
    #[default]
    Repeated,
    /// The block draws no numbers. If it does, its gradients are wrong.
    None,
}

impl Recompute {
    /// Sets the memory of inputs between the passes.
    pub fn with_inputs_in(mut self, memory: InputPlacement) -> Self {
        self.inputs = memory;
        self
    }

    /// Sets the treatment of the block's random numbers.
    pub fn with_rng_replay(mut self, draws: RngReplay) -> Self {
        self.draws = draws;
        self
    }

    /// Runs `forward` on `block` and `inputs`, and again in the backward pass. It must compute the same both
    /// times. Inputs and output are float tensors of any rank and type, on one device.
    ///
    /// `forward` must own all other values that it uses, such as a mask, and none of them may need a gradient. If
    /// neither inputs nor parameters need one, as in a validation, it just runs.
    ///
    /// # Panics
    /// If `forward` does; if its output is on another device than the inputs, or depends on a tensor that
    /// needs a gradient and is neither an input nor a parameter of `block`; on a backend that this crate
    /// does not know. The backward pass panics if the second run has another result, as far as that is
    /// seen: shape and type everywhere, bits on the CPU.
    pub fn run<M, I, F, const D: usize>(self, block: &M, inputs: I, forward: F) -> Tensor<D>
    where
        M: Module + 'static,
        I: SegmentInputs,
        F: Fn(&M, I) -> Tensor<D> + Send + 'static,
    {
        let mut detacher = Detacher::default();
        let whole = (inputs.into_parameters(), block.clone());
        // Running statistics that the first run changes are those of the model.
        let (inputs, block) = meant(Meaning::Record, || whole.map(&mut detacher));
        let device = detacher.device();
        // Also where nothing needs a gradient: an inner segment does as it will in the second run.
        let repeated = self.draws == RngReplay::Repeated && device.is_autodiff();
        let seeds = repeated.then(|| Seeds::draw(&device));
        let output = forward(&block, I::of(&inputs));
        check_device(&output, &device);
        let Some(found) = detacher.used() else {
            return output;
        };
        assert!(
            !output.is_tracked(),
            "the closure of a segment uses a tensor that needs a gradient and is neither an input nor a \
             parameter of the block: make it an input"
        );
        let segment = Segment {
            inputs: match self.inputs {
                InputPlacement::Device => inputs,
                InputPlacement::Host => inputs.map(&mut ToHost),
            },
            block,
            forward,
            output: output.clone(),
            places: found.places,
            has_constants: found.has_constants,
            seeds,
        };
        let again = Box::new(move |gradient| segment.again::<I>(gradient));
        followed(output, found.nodes, again)
    }
}

fn check_device<const D: usize>(output: &Tensor<D>, device: &Device) {
    assert!(
        output.device() == *device,
        "the output of a segment is on {:?}, and its inputs are on {device:?}: move it outside",
        output.device()
    );
}

/// Inputs of a segment: a float tensor of any rank, or a pair of inputs.
pub trait SegmentInputs: Send + 'static {
    /// The inputs as parameters, which can be mapped.
    #[doc(hidden)]
    type Parameters: Module + 'static;

    #[doc(hidden)]
    fn into_parameters(self) -> Self::Parameters;

    #[doc(hidden)]
    fn of(parameters: &Self::Parameters) -> Self;
}

impl<const D: usize> SegmentInputs for Tensor<D> {
    type Parameters = Param<Tensor<D>>;

    fn into_parameters(self) -> Self::Parameters {
        Param::initialized(ParamId::new(), self)
    }

    fn of(parameters: &Self::Parameters) -> Self {
        parameters.val()
    }
}

impl<A: SegmentInputs, B: SegmentInputs> SegmentInputs for (A, B) {
    type Parameters = (A::Parameters, B::Parameters);

    fn into_parameters(self) -> Self::Parameters {
        (self.0.into_parameters(), self.1.into_parameters())
    }

    fn of(parameters: &Self::Parameters) -> Self {
        (A::of(&parameters.0), B::of(&parameters.1))
    }
}
