//! The gradients of a stage: summed over micro-batches, and passed to a [`Ddp`](bonfire_train::Ddp).

use std::collections::BTreeMap;

use bonfire_train::custom_gradient;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, Tensor};

/// The sum of a stage's gradients over the micro-batches, added in their order, so that its bits do not depend on
/// their arrival.
pub(super) struct Sum<M> {
    sum: GradientsAccumulator<M>,
    turns: Turns<GradientsParams>,
}

impl<M: Module> Sum<M> {
    pub(super) fn new() -> Self {
        Self { sum: GradientsAccumulator::new(), turns: Turns::default() }
    }

    pub(super) fn add(&mut self, stage: &M, micro_batch: u32, gradients: GradientsParams) {
        for gradients in self.turns.next(micro_batch, gradients) {
            self.sum.accumulate(stage, gradients);
        }
    }

    pub(super) fn take(mut self) -> GradientsParams {
        self.sum.grads()
    }
}

/// Returns the values of micro-batches in their order, and keeps early ones until their turn.
#[derive(Debug)]
pub(super) struct Turns<T> {
    next: u32,
    early: BTreeMap<u32, T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { next: 0, early: BTreeMap::new() }
    }
}

impl<T> Turns<T> {
    /// The values whose turn it is after this one.
    pub(super) fn next(&mut self, micro_batch: u32, brought: T) -> Vec<T> {
        self.early.insert(micro_batch, brought);
        let mut ready = Vec::new();
        while let Some(turn) = self.early.remove(&self.next) {
            ready.push(turn);
            self.next += 1;
        }
        ready
    }
}

/// A loss of some stages with these gradients, times a factor. Its value has no meaning.
pub(super) fn given(
    stages: &impl Module,
    gradients: Vec<GradientsParams>,
    factor: f64,
    device: &Device,
) -> Tensor<1> {
    let mut given = Given { gradients, factor, numbers: Vec::new() };
    stages.visit(&mut given);
    if given.numbers.is_empty() {
        Tensor::zeros([1], device)
    } else {
        Tensor::cat(given.numbers, 0).sum()
    }
}

struct Given {
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
