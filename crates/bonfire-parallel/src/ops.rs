//! Collective operations on tensors, with their gradients.
//!
//! Along an axis of a mesh a tensor is in one of three states: the *same* on all ranks; each rank has a *part* of it,
//! and the parts, one behind the other along a dimension, are the complete tensor; or each rank has a *summand* of it.
//! An operation leads from one state to another, and its backward pass leads gradients back:
//!
//! | operation | input | output | forward | backward |
//! |---|---|---|---|---|
//! | [`copy`] | same | own use of each rank | nothing | sum |
//! | [`reduce`] | summands | same | sum | nothing |
//! | [`scatter`] | same | parts | own part | gather |
//! | [`gather`] | parts | own use of each rank | gather | sum, own part |
//! | [`reduce_scatter`] | summands | parts | sum, own part | gather |
//! | [`all_to_all`] | parts along one dimension | parts along another | exchange | exchange back |
//!
//! *Own use* means that each rank computes something else with the tensor, so the gradients are summands. *The same* has
//! the same gradient on all ranks. These are the operations of Shoeybi et al. (2019, arXiv 1909.08053) and of
//! Korthikanti et al. (2022, arXiv 2205.05198).
//!
//! Sums are folded in the order of the ranks: all ranks have the same bits. All ranks of a world must call the same
//! operations in the same order, and run the same backward pass. On one rank an operation does nothing.
//!
//! An operation that fails in a backward pass returns zeros, and the failure is kept: see [`World::fail`]. It ends the
//! groups of the mesh, so it reaches all ranks.
//!
//! ```
//! # mod bonfire { pub use bonfire_train::World; pub mod parallel { pub use bonfire_parallel::*; } }
//! use bonfire::World;
//! use bonfire::parallel::{ParallelError, ops};
//! use burn::nn::Linear;
//! use burn::tensor::{Tensor, activation};
//!
//! /// Two layers, of which each rank has some of the hidden features.
//! fn forward(up: &Linear, down: &Linear, x: Tensor<2>, tp: &World) -> Result<Tensor<2>, ParallelError> {
//!     let hidden = activation::gelu(up.forward(ops::copy(x, tp)?));
//!     ops::reduce(down.forward(hidden), tp)
//! }
//! ```

mod transfer;

#[cfg(test)]
pub(crate) mod tests;

use bonfire_collective::{ReduceOp, WorldSize};
use bonfire_train::{World, custom_gradient};
use burn::tensor::Tensor;

use crate::ParallelError;
pub(crate) use transfer::{all_reduce, sendable};
use transfer::{exchanged, gathered, own_part, scattered_sum};

/// Passes a tensor that is the same on all ranks to computations that differ: the gradient is the sum of theirs.
///
/// # Errors
/// [`ParallelError::UnsupportedDtype`].
pub fn copy<const D: usize>(x: Tensor<D>, world: &World) -> Result<Tensor<D>, ParallelError> {
    let tp = world.clone();
    let sum = move |gradient| all_reduce(gradient, &tp, ReduceOp::Sum);
    operation(x, world, Ok, sum)
}

/// Returns the sum of all ranks' tensors, which have the same shape.
///
/// # Errors
/// [`ParallelError::Collective`] if shapes differ or a rank fails; [`ParallelError::UnsupportedDtype`];
/// [`ParallelError::Unreadable`].
#[track_caller]
pub fn reduce<const D: usize>(x: Tensor<D>, world: &World) -> Result<Tensor<D>, ParallelError> {
    operation(x, world, |x| all_reduce(x, world, ReduceOp::Sum), Ok)
}

/// Returns this rank's part, along `dim`, of a tensor that is the same on all ranks.
///
/// # Errors
/// [`ParallelError::Indivisible`] on all ranks.
///
/// # Panics
/// If the tensor has no such dimension.
pub fn scatter<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let tp = world.clone();
    let part = |x| own_part(x, dim, world);
    operation(x, world, part, move |gradient| gathered(gradient, dim, &tp))
}

/// Returns all ranks' parts, which have the same shape, one behind the other along `dim`.
///
/// # Errors
/// As [`reduce`].
///
/// # Panics
/// If the tensor has no such dimension.
#[track_caller]
pub fn gather<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let tp = world.clone();
    let sum = move |gradient| scattered_sum(gradient, dim, &tp);
    operation(x, world, |x| gathered(x, dim, world), sum)
}

/// Returns this rank's part, along `dim`, of the sum of all ranks' tensors, which have the same shape.
///
/// # Errors
/// As [`reduce`]; [`ParallelError::Indivisible`] on all ranks.
///
/// # Panics
/// If the tensor has no such dimension.
#[track_caller]
pub fn reduce_scatter<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let tp = world.clone();
    let back = move |gradient| gathered(gradient, dim, &tp);
    operation(x, world, |x| scattered_sum(x, dim, world), back)
}

/// Converts parts along `from` to parts along `to`: the tensor is cut along `to`, each rank gets a piece, and this
/// rank's pieces are joined along `from`.
///
/// # Errors
/// As [`reduce`]; [`ParallelError::Indivisible`] on all ranks if `to` cannot be cut.
///
/// # Panics
/// If the tensor has no such dimension.
#[track_caller]
pub fn all_to_all<const D: usize>(
    x: Tensor<D>,
    Dims { from, to }: Dims,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let tp = world.clone();
    let back = move |gradient| exchanged(gradient, Dims { from: to, to: from }, &tp);
    operation(x, world, |x| exchanged(x, Dims { from, to }, world), back)
}

/// The dimensions along which ranks have parts before and after [`all_to_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Before.
    pub from: usize,
    /// After.
    pub to: usize,
}

fn operation<const D: usize>(
    x: Tensor<D>,
    world: &World,
    forward: impl FnOnce(Tensor<D>) -> Result<Tensor<D>, ParallelError>,
    backward: impl FnOnce(Tensor<D>) -> Result<Tensor<D>, ParallelError> + Send + 'static,
) -> Result<Tensor<D>, ParallelError> {
    if world.world_size() == WorldSize::ONE {
        return Ok(x);
    }
    let (world, dims) = (world.clone(), x.dims());
    let mut failure = None;
    let forward = |x: Tensor<D>| {
        let options = (x.device(), x.dtype());
        forward(x).unwrap_or_else(|error| {
            failure = Some(error);
            // It is not used.
            Tensor::zeros([1; D], (&options.0, options.1))
        })
    };
    let output = custom_gradient(x, forward, move |gradient| {
        let options = (gradient.device(), gradient.dtype());
        backward(gradient).unwrap_or_else(|error| {
            world.fail(error);
            Tensor::zeros(dims, (&options.0, options.1))
        })
    });
    failure.map_or(Ok(output), Err)
}
