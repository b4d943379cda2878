//! Tensors that are divided among the devices of a process, and concatenated again.

use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Float, Int, Tensor};

use crate::nn::custom_gradient::Inputs;

/// A batch that can be divided into parts along a dimension.
///
/// A batch of several tensors implements it by calling each method on all of them.
pub trait Scatter: Sized {
    /// Returns its number of samples along `dim`.
    ///
    /// # Panics
    /// If it has no such dimension.
    fn samples(&self, dim: usize) -> usize;

    /// Returns the samples of `range` along `dim`, on `device`.
    #[must_use]
    fn part(&self, dim: usize, range: Range<usize>, device: &Device) -> Self;

    /// Adds the graphs of its tensors to `graphs`.
    fn join(&self, graphs: &mut Graphs);
}

/// The output of replicas, of which each has a part.
pub trait Gather: Sized {
    /// Concatenates all parts in their order along `dim`, on `device`.
    ///
    /// # Panics
    /// If there is no part or no such dimension, or if the parts differ in another one.
    #[must_use]
    fn gather(parts: Vec<Self>, dim: usize, device: &Device) -> Self;
}

/// Graphs of autodiff that threads add to at the same time.
///
/// Burn keeps graphs apart until an operation has parents in two of them, and then merges these. Additions of another
/// thread to one of them meanwhile are lost. So they are merged before threads start.
#[derive(Default)]
pub struct Graphs(Inputs);

impl Graphs {
    /// Adds the graph of a tensor, if it has one.
    pub fn add<const D: usize>(&mut self, tensor: &Tensor<D>) {
        self.0.add(tensor);
    }

    pub(super) fn of<M: Module>(module: &M) -> Self {
        let mut graphs = Self::default();
        module.visit(&mut graphs);
        graphs
    }

    /// Merges the graphs by an operation with a parent in each. It computes nothing, now or in the backward pass.
    pub(super) fn merge(self, device: &Device) {
        let output = Tensor::<1>::zeros([1], device);
        drop(self.0.lead_to(output, |_| unreachable!("no loss depends on it")));
    }
}

impl std::fmt::Debug for Graphs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graphs")
    }
}

impl ModuleVisitor for Graphs {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(&param.base());
    }
}

macro_rules! batch_of_a_tensor {
    ($kind:ty, $join:expr) => {
        impl<const D: usize> Scatter for Tensor<D, $kind> {
            fn samples(&self, dim: usize) -> usize {
                check(dim, D);
                self.dims()[dim]
            }

            fn part(&self, dim: usize, range: Range<usize>, device: &Device) -> Self {
                let part = self.clone().narrow(dim, range.start, range.len());
                part.to_device(device)
            }

            fn join(&self, graphs: &mut Graphs) {
                let join: fn(&Self, &mut Graphs) = $join;
                join(self, graphs);
            }
        }

        impl<const D: usize> Gather for Tensor<D, $kind> {
            fn gather(parts: Vec<Self>, dim: usize, device: &Device) -> Self {
                check(dim, D);
                let parts = parts.into_iter().map(|part| part.to_device(device));
                Tensor::cat(parts.collect(), dim)
            }
        }
    };
}

batch_of_a_tensor!(Float, |tensor, graphs| graphs.add(tensor));
batch_of_a_tensor!(Int, |_, _| ());
batch_of_a_tensor!(Bool, |_, _| ());

fn check(dim: usize, dims: usize) {
    assert!(
        dim < dims,
        "a tensor of {dims} dimensions has no dimension {dim}, along which DataParallel divides and gathers"
    );
}

impl<A: Scatter, B: Scatter> Scatter for (A, B) {
    /// # Panics
    /// If the two have different numbers of samples.
    fn samples(&self, dim: usize) -> usize {
        let (first, second) = (self.0.samples(dim), self.1.samples(dim));
        assert_eq!(first, second, "both parts of a batch have the same samples");
        first
    }

    fn part(&self, dim: usize, range: Range<usize>, device: &Device) -> Self {
        (self.0.part(dim, range.clone(), device), self.1.part(dim, range, device))
    }

    fn join(&self, graphs: &mut Graphs) {
        self.0.join(graphs);
        self.1.join(graphs);
    }
}

impl<A: Gather, B: Gather> Gather for (A, B) {
    fn gather(parts: Vec<Self>, dim: usize, device: &Device) -> Self {
        let (first, second) = parts.into_iter().unzip();
        (A::gather(first, dim, device), B::gather(second, dim, device))
    }
}
