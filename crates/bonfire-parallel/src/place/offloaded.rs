//! Parameters that are brought to a device when they are used.
//!
//! In a training pass that is an operation of autodiff which is recomputed: what uses the parameter keeps no copy
//! for the backward pass, and there it is brought again. Its gradient goes to where the parameter lies, as soon as
//! it is there.

use std::any::Any;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use burn::backend::Flex;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{
    BalancedCheckpointing, CheckpointStrategy, NoCheckpointing,
};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::{Backend, DispatchDevice, DispatchKindConversion};
use burn::module::{Module, Param, ParamId, ParamMapper, Reparameterization, Reparameterizer};
use burn::tensor::{DType, Device, DispatchTensor, GradientCheckpointingStrategy, Tensor};

use super::ahead::{Pass, ReadAhead};
use super::anchors::Anchors;

/// Returns the device on which a model computes with a parameter: its own, or the one to which it is brought. A layer
/// moves its input there, in one line:
///
/// ```
/// # mod bonfire { pub mod weights { pub use bonfire_parallel::*; } }
/// use bonfire::weights::device_of;
/// use burn::nn::Linear;
/// use burn::tensor::Tensor;
///
/// fn forward(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
///     layer.forward(x.to_device(&device_of(&layer.weight)))
/// }
/// ```
pub fn device_of<const D: usize>(param: &Param<Tensor<D>>) -> Device {
    let device = param.lazy_device();
    match param.reparameterization::<Offloaded>() {
        Some(offloaded) => {
            let execution = offloaded.store.execution.clone();
            execution.with_autodiff_context_from(&device)
        }
        None => device,
    }
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) execution: Device,
    pub(super) file: ReadAhead,
    pub(super) parameters: Vec<Offload>,
    pub(super) anchors: Anchors,
}

#[derive(Debug)]
pub(super) struct Offload {
    pub(super) path: String,
    /// True if it is in the file, false if in host memory.
    pub(super) is_on_disk: bool,
    /// The model's mapping of loaded values: the [`ParamMapper`] of its rank.
    pub(super) mapper: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The value of a parameter that lies elsewhere. The base of one in host memory is there; that of one in a file has its
/// shape, and no values.
#[derive(Module, Debug)]
pub(super) struct Offloaded {
    #[module(skip)]
    index: usize,
    #[module(skip)]
    store: Arc<Store>,
}

impl Offloaded {
    pub(super) fn parameter(&self) -> &Offload {
        &self.store.parameters[self.index]
    }

    fn fail(&self, cause: &str) -> ! {
        panic!("parameter {}: {cause}", self.parameter().path)
    }

    /// The value where it is used, without autodiff.
    fn fetched<const D: usize>(&self, base: Tensor<D>, pass: Pass) -> Tensor<D> {
        let execution = &self.store.execution;
        let parameter = self.parameter();
        if !parameter.is_on_disk {
            return base.to_device(execution);
        }
        let data = self.store.file.take(self.index, pass);
        let data = data.unwrap_or_else(|error| self.fail(&format!("its file: {error}")));
        let dtype: DType = data.dtype();
        let tensor = Tensor::from_data(data, (execution, dtype));
        let mapper = parameter.mapper.get();
        match mapper.and_then(|mapper| mapper.downcast_ref::<ParamMapper<Tensor<D>>>()) {
            Some(mapper) => mapper.on_load(tensor),
            None => tensor,
        }
    }

    fn tracked<B, C, const D: usize>(&self, base: Tensor<D>) -> Tensor<D>
    where
        B: Backend,
        C: CheckpointStrategy,
        DispatchTensor: DispatchKindConversion<Autodiff<B, C>>
            + DispatchKindConversion<Autodiff<Flex, C>>
            + DispatchKindConversion<B>,
    {
        let is_trained = base.is_require_grad();
        let fetch = Fetch::<B, D> {
            base: base.clone().without_autodiff(),
            offloaded: self.clone(),
            backend: PhantomData,
        };
        let value = fetch.value(Pass::Forward);
        let device = Device::flex().with_autodiff_context_from(&base.device());
        let anchor = self.store.anchors.next::<C>(self.index, &device);
        // Only what is tracked is recomputed, so what is not trained hangs on something that is.
        let parent = if is_trained {
            base.try_into_primitive::<Autodiff<Flex, C>>()
        } else {
            Tensor::<1>::zeros([1], &device)
                .require_grad()
                .try_into_primitive::<Autodiff<Flex, C>>()
        };
        let anchor = anchor.try_into_primitive::<Autodiff<Flex, C>>();
        let (Ok(parent), Ok(anchor)) = (parent, anchor) else {
            self.fail("it has left host memory")
        };
        let prepared = Brought::<D> { is_trained }
            .prepare::<BalancedCheckpointing>([parent.node(), anchor.node()])
            .memory_bound()
            .retro_forward(fetch)
            .parents([&parent]);
        Tensor::from_primitive::<Autodiff<B, C>>(prepared.stateless(value))
    }
}

impl Reparameterization for Offloaded {
    const NAME: &'static str = "offloaded";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        use GradientCheckpointingStrategy::{Balanced, Disabled};
        if !base.is_autodiff() {
            return self.fetched(base, Pass::Forward);
        }
        if self.parameter().is_on_disk && base.is_require_grad() {
            self.fail("it stays on disk and cannot be trained; freeze it, or map it to cpu");
        }
        let strategy = base.gradient_checkpointing_strategy();
        match (self.store.execution.as_dispatch(), strategy) {
            (DispatchDevice::Flex(_), Some(Disabled)) => {
                self.tracked::<Flex, NoCheckpointing, D>(base)
            }
            (DispatchDevice::Flex(_), Some(Balanced)) => {
                self.tracked::<Flex, BalancedCheckpointing, D>(base)
            }
            #[cfg(feature = "cube")]
            (DispatchDevice::Cube(_), Some(Disabled)) => {
                self.tracked::<burn::backend::Cube, NoCheckpointing, D>(base)
            }
            #[cfg(feature = "cube")]
            (DispatchDevice::Cube(_), Some(Balanced)) => {
                self.tracked::<burn::backend::Cube, BalancedCheckpointing, D>(base)
            }
            #[allow(unreachable_patterns, reason = "other packages may add backends")]
            (device, _) => self.fail(&format!("no training on {device:?}")),
        }
    }
}

pub(super) struct Attacher<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) indices: &'a HashMap<ParamId, usize>,
}

impl Reparameterizer for Attacher<'_> {
    type Reparam = Offloaded;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Offloaded>) {
        let index = self.indices.get(&param.id).copied();
        let offloaded = index.map(|index| Offloaded { index, store: Arc::clone(self.store) });
        (param, offloaded)
    }
}

#[derive(Debug)]
struct Brought<const D: usize> {
    is_trained: bool,
}

impl<B: Backend, const D: usize> Backward<B, 2> for Brought<D>
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
        let gradient = gradients.consume::<B>(&ops.node);
        let [parent, _anchor] = ops.parents;
        let Some(parent) = parent.filter(|_| self.is_trained) else {
            return;
        };
        let gradient = Tensor::<D>::from_primitive::<B>(gradient).to_device(&Device::flex());
        let gradient = gradient.try_into_primitive::<Flex>();
        gradients.register::<Flex>(parent.id, gradient.expect("it was moved there"));
    }
}

/// Brings a parameter, and again for a backward step that needs it.
#[derive(Debug)]
struct Fetch<B, const D: usize> {
    base: Tensor<D>,
    offloaded: Offloaded,
    backend: PhantomData<B>,
}

impl<B: Backend, const D: usize> Fetch<B, D>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn value(&self, pass: Pass) -> B::FloatTensorPrimitive {
        let value = self.offloaded.fetched(self.base.clone(), pass);
        let value = value.try_into_primitive::<B>();
        value.expect("it was brought to a device of this backend")
    }
}

impl<B: Backend, const D: usize> RetroForward for Fetch<B, D>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn forward(&self, states: &mut BackwardStates, out_node: NodeId) {
        states.save(out_node, self.value(Pass::Backward));
    }
}
