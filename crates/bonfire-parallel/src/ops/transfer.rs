//! Sends tensors without autodiff from rank to rank, cut into blocks and joined.
//!
//! On the CPU the memory of a tensor is sent as it is, without a copy if it is not shared and in row-major order.

use bonfire_collective::{ReduceOp, WorldSize};
use bonfire_train::{Transfer, World};
use burn::tensor::{DType, Tensor};

use super::Dims;
use crate::ParallelError;

#[track_caller]
pub(crate) fn all_reduce<const D: usize>(
    x: Tensor<D>,
    world: &World,
    reduce: ReduceOp,
) -> Result<Tensor<D>, ParallelError> {
    if world.world_size() == WorldSize::ONE {
        return Ok(x);
    }
    let shape = x.dims();
    let flat = x.reshape([shape.iter().product::<usize>()]);
    Ok(transferred(flat, world, Transfer::AllReduce(reduce))?.reshape(shape))
}

#[track_caller]
pub(super) fn gathered<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let shape = x.dims();
    let flat = x.reshape([shape.iter().product::<usize>()]);
    let all = transferred(flat, world, Transfer::AllGather)?;
    Ok(join(all, dim, shape, world.world_size().len()))
}

pub(super) fn own_part<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let size = part(&x, dim, world)?[dim];
    Ok(x.narrow(dim, world.rank().index() * size, size))
}

#[track_caller]
pub(super) fn scattered_sum<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let shape = part(&x, dim, world)?;
    let blocks = split(x, dim, world.world_size().len());
    Ok(transferred(blocks, world, Transfer::ReduceScatter)?.reshape(shape))
}

#[track_caller]
pub(super) fn exchanged<const D: usize>(
    x: Tensor<D>,
    Dims { from, to }: Dims,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let shape = part(&x, to, world)?;
    let ranks = world.world_size().len();
    let blocks = transferred(split(x, to, ranks), world, Transfer::AllToAll)?;
    Ok(join(blocks, from, shape, ranks))
}

fn part<const D: usize>(
    x: &Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<[usize; D], ParallelError> {
    assert!(dim < D, "dimension {dim} of a tensor of {D}");
    let mut shape = x.dims();
    let ranks = world.world_size();
    if !shape[dim].is_multiple_of(ranks.len()) {
        return Err(ParallelError::Indivisible { what: "a tensor", dim, size: shape[dim], ranks });
    }
    shape[dim] /= ranks.len();
    Ok(shape)
}

#[track_caller]
fn transferred(
    x: Tensor<1>,
    world: &World,
    transfer: Transfer,
) -> Result<Tensor<1>, ParallelError> {
    let x = sendable(x, world)?;
    Ok(bonfire_train::transfer(x, world, transfer)?)
}

/// The tensor, if ranks can send it. The other ranks are not to wait for one that has nothing to send.
pub(crate) fn sendable<const D: usize>(
    x: Tensor<D>,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    match x.dtype() {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => Ok(x),
        other => {
            let error = ParallelError::UnsupportedDtype { dtype: format!("{other:?}") };
            world.group().or_abort(Err(error))
        }
    }
}

/// The elements of a tensor that is cut into `count` equal blocks along `dim`, block after block.
fn split<const D: usize>(x: Tensor<D>, dim: usize, count: usize) -> Tensor<1> {
    let (outer, inner) = around(&x.dims(), dim);
    let flat = [x.dims().iter().product::<usize>()];
    match outer {
        1 => x.reshape(flat),
        _ => {
            let blocks = x.reshape([outer, count, inner / count]);
            blocks.swap_dims(0, 1).reshape(flat)
        }
    }
}

/// The tensor made of `count` blocks of this shape, which are one behind the other in memory, along `dim`.
fn join<const D: usize>(
    blocks: Tensor<1>,
    dim: usize,
    mut shape: [usize; D],
    count: usize,
) -> Tensor<D> {
    let (outer, inner) = around(&shape, dim);
    shape[dim] *= count;
    match outer {
        1 => blocks.reshape(shape),
        _ => {
            let blocks = blocks.reshape([count, outer, inner]);
            blocks.swap_dims(0, 1).reshape(shape)
        }
    }
}

/// The number of runs along `dim` and behind it, and the length of each.
fn around(shape: &[usize], dim: usize) -> (usize, usize) {
    let (before, behind) = shape.split_at(dim);
    (before.iter().product(), behind.iter().product())
}
