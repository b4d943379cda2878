//! Shared code of operations that are added to a graph of autodiff.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::{Backward, NodeGuard};
use burn::backend::{BackendTypes, DispatchKindConversion};
use burn::tensor::{Device, DispatchTensor, Tensor};

use crate::TrainError;
use crate::reducer::readback::Readback;

/// Tensors of a backend, with and without a graph.
pub(crate) trait Graph<B: Readback, C: CheckpointStrategy>:
    DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>
{
}

impl<B: Readback, C: CheckpointStrategy> Graph<B, C> for DispatchTensor where
    Self: DispatchKindConversion<Autodiff<B, C>> + DispatchKindConversion<B>
{
}

/// Runs `$call` with the backend and the strategy of a tensor.
macro_rules! on_backend_of {
    ($tensor:expr, $what:expr, $function:ident($($argument:expr),*)) => {{
        use burn::backend::DispatchDevice;
        #[allow(unused_imports, reason = "a build may have no backend of these")]
        use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
        #[allow(unused_imports, reason = "a build may have no backend of these")]
        use burn::tensor::GradientCheckpointingStrategy::{Balanced, Disabled};
        let device = $tensor.device();
        let strategy = $tensor.gradient_checkpointing_strategy();
        let backend = match device.as_dispatch() {
            DispatchDevice::Autodiff(device) => Some(&**device),
            #[allow(unreachable_patterns, reason = "other packages may add backends")]
            _ => None,
        };
        match (backend, strategy) {
            #[cfg(feature = "flex")]
            (Some(DispatchDevice::Flex(_)), Some(Disabled)) => {
                $function::<burn::backend::Flex, NoCheckpointing, _>($($argument),*)
            }
            #[cfg(feature = "flex")]
            (Some(DispatchDevice::Flex(_)), Some(Balanced)) => {
                $function::<burn::backend::Flex, BalancedCheckpointing, _>($($argument),*)
            }
            #[cfg(feature = "cube")]
            (Some(DispatchDevice::Cube(_)), Some(Disabled)) => {
                $function::<burn::backend::Cube, NoCheckpointing, _>($($argument),*)
            }
            #[cfg(feature = "cube")]
            (Some(DispatchDevice::Cube(_)), Some(Balanced)) => {
                $function::<burn::backend::Cube, BalancedCheckpointing, _>($($argument),*)
            }
            #[allow(unreachable_patterns, reason = "other packages may add backends")]
            _ => Err($crate::reducer::operation::unsupported($what, &device)),
        }
    }};
}
pub(crate) use on_backend_of;

pub(crate) fn unsupported(what: String, device: &Device) -> TrainError {
    TrainError::UnsupportedBackend { what, device: format!("{device:?}") }
}

pub(crate) fn primitive<B: Readback, C: CheckpointStrategy, const D: usize>(
    tensor: Tensor<D>,
) -> Result<<Autodiff<B, C> as BackendTypes>::FloatTensorPrimitive, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let device = tensor.device();
    tensor
        .try_into_primitive::<Autodiff<B, C>>()
        .map_err(|_| unsupported("a part of the model".to_owned(), &device))
}

pub(crate) fn node<B: Readback, C: CheckpointStrategy, const D: usize>(
    tensor: Tensor<D>,
) -> Result<NodeGuard, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    Ok(primitive::<B, C, D>(tensor)?.node())
}

/// The same values behind an operation that leaves them as they are.
pub(crate) fn behind<B: Readback, C: CheckpointStrategy, const D: usize>(
    tensor: Tensor<D>,
    operation: impl Backward<B, 1, State = ()>,
) -> Result<Tensor<D>, TrainError>
where
    DispatchTensor: Graph<B, C>,
{
    let (values, node) = primitive::<B, C, D>(tensor)?.into_parts();
    let prepared = operation.prepare::<C>([node]).compute_bound();
    Ok(Tensor::from_primitive::<Autodiff<B, C>>(prepared.stateless(values)))
}
