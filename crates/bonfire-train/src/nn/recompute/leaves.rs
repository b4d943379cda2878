//! Moves the tensors of a segment from one graph to another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::autodiff::ops::NodeGuard;
use burn::module::{ModuleMapper, Param};
use burn::tensor::{Device, Gradients, Tensor};

use crate::nn::custom_gradient::{Gradient, node_of};

/// Detaches all tensors from their graph, and finds those with a gradient that are used: an unused tensor has no
/// gradient, so waiting for one would never end.
#[derive(Default)]
pub(super) struct Detacher {
    device: Option<Device>,
    tracked: Vec<Tracked>,
    places: usize,
}

struct Tracked {
    place: usize,
    node: NodeGuard,
    used: Arc<AtomicBool>,
}

pub(super) struct Found {
    /// Their indices, in the order of the mapping.
    pub(super) places: Vec<usize>,
    pub(super) nodes: Vec<NodeGuard>,
    /// True if there are tensors that need no gradient.
    pub(super) has_constants: bool,
}

impl Detacher {
    pub(super) fn device(&self) -> Device {
        let device = self.device.clone();
        device.expect("a segment has an input")
    }

    /// The tensors with gradients that were used until now.
    pub(super) fn used(self) -> Option<Found> {
        let has_constants = self.places > self.tracked.len();
        let used = self.tracked.into_iter();
        let used = used.filter(|tracked| tracked.used.load(Ordering::Relaxed));
        let (places, nodes): (Vec<_>, _) =
            used.map(|tracked| (tracked.place, tracked.node)).unzip();
        (!places.is_empty()).then_some(Found { places, nodes, has_constants })
    }
}

impl ModuleMapper for Detacher {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.places;
        self.places += 1;
        let value = param.base();
        let device = value.device();
        self.device.get_or_insert_with(|| device.clone());
        if !value.is_tracked() {
            return param;
        }
        let node = node_of(value.clone());
        let used = Arc::new(AtomicBool::new(false));
        self.tracked.push(Tracked { place, node, used: Arc::clone(&used) });
        let (shape, constant) = (value.shape(), value.set_require_grad(false));
        let first_use = move |_: &Device, _: bool| {
            used.store(true, Ordering::Relaxed);
            constant
        };
        Param::uninitialized(param.id, first_use, device, false, shape)
    }
}

pub(super) struct ToHost;

impl ModuleMapper for ToHost {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.base();
        let (device, dtype, shape) = (value.device(), value.dtype(), value.shape());
        let id = param.id;
        drop(param);
        let data = value.into_data();
        let back = move |device: &Device, _: bool| Tensor::from_data(data, (device, dtype));
        Param::uninitialized(id, back, device, false, shape)
    }
}

/// Makes leaves of a new graph of the tensors at some indices, and returns their gradients.
pub(super) struct Leaves {
    /// In ascending order of the mapping.
    places: Vec<usize>,
    place: usize,
    leaves: Vec<Leaf>,
}

/// Takes the gradient of a leaf from those of a pass, if there was one.
type Leaf = Box<dyn Fn(Option<&mut Gradients>) -> Gradient>;

impl Leaves {
    pub(super) fn at(places: Vec<usize>) -> Self {
        Self { places, place: 0, leaves: Vec::new() }
    }

    /// The gradients of all leaves, in their order, given those of a backward pass, if there was one.
    pub(super) fn gradients(self, mut gradients: Option<Gradients>) -> Vec<Gradient> {
        let leaves = self.leaves.into_iter();
        leaves.map(|leaf| leaf(gradients.as_mut())).collect()
    }
}

impl ModuleMapper for Leaves {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.place;
        self.place += 1;
        if self.places.get(self.leaves.len()) != Some(&place) {
            return param;
        }
        let leaf = param.base().require_grad();
        let known = leaf.clone();
        self.leaves.push(Box::new(move |gradients| {
            let found = gradients.and_then(|gradients| known.grad_remove(gradients));
            let depends = found.is_some();
            let values = found.unwrap_or_else(|| known.zeros_like().without_autodiff());
            Gradient { values: values.into_dispatch(), depends }
        }));
        Param::initialized(param.id, leaf)
    }
}
