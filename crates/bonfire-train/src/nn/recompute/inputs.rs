//! The types of a segment's inputs.

use burn::module::{Module, Param, ParamId};
use burn::tensor::Tensor;

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
