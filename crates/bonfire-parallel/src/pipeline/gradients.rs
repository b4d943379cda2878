//! The gradients of a stage: summed over micro-batches, and handed to a [`Ddp`](bonfire_train::Ddp).

use std::collections::BTreeMap;

use bonfire_train::custom_gradient;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, Tensor};

/// The sum of a stage's gradients over the micro-batches, in their order, so that it has the same bits in whatever
/// order they come. What comes too early is kept until its turn.
pub(super) struct Sum<M> {
    sum: GradientsAccumulator<M>,
    next: u32,
    early: BTreeMap<u32, GradientsParams>,
}

impl<M: Module> Sum<M> {
    pub(super) fn new() -> Self {
        Self {
            sum: GradientsAccumulator::new(),
            next: 0,
            early: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, stage: &M, micro_batch: u32, gradients: GradientsParams) {
        self.early.insert(micro_batch, gradients);
        while let Some(gradients) = self.early.remove(&self.next) {
            self.sum.accumulate(stage, gradients);
            self.next += 1;
        }
    }

    pub(super) fn take(mut self) -> GradientsParams {
        self.sum.grads()
    }
}

/// A loss of some stages whose gradients are those that are given, times a factor. Its value means nothing.
pub(super) fn given(
    stages: &impl Module,
    gradients: Vec<GradientsParams>,
    factor: f64,
    device: &Device,
) -> Tensor<1> {
    let mut given = Given {
        gradients,
        factor,
        numbers: Vec::new(),
    };
    stages.visit(&mut given);
    match given.numbers.is_empty() {
        true => Tensor::zeros([1], device),
        false => Tensor::cat(given.numbers, 0).sum(),
    }
}

struct Given {
    /// Of each stage.
    gradients: Vec<GradientsParams>,
    factor: f64,
    numbers: Vec<Tensor<1>>,
}

impl ModuleVisitor for Given {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let mut gradients = self.gradients.iter_mut();
        let found = gradients.find_map(|gradients| gradients.remove::<D>(param.id));
        let Some(gradient) = found else { return };
        let factor = self.factor;
        self.numbers.push(custom_gradient(
            param.val(),
            |value| Tensor::zeros([1], (&value.device(), DType::F32)),
            move |_: Tensor<1>| gradient.mul_scalar(factor),
        ));
    }
}
