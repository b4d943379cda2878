//! Sends tensors without autodiff from rank to rank through host memory.
//!
//! On the CPU the memory of a tensor is sent as it is, without a copy if it is not shared and in row-major order.

use bonfire_collective::{Element, ProcessGroup, ReduceOp, WorldSize};
use bonfire_train::World;
use burn::tensor::{DType, Tensor, TensorData};
use half::{bf16, f16};

use super::Dims;
use crate::ParallelError;
use crate::error::unreadable;

/// Operations of ranks on values that have as many equal blocks as there are ranks.
#[derive(Clone, Copy, Debug)]
enum Travel {
    AllReduce(ReduceOp),
    /// Every rank ends with the blocks of all, in their order.
    AllGather,
    /// Every rank ends with its block of the sum.
    ReduceScatter,
    /// Block r goes to rank r.
    AllToAll,
}

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
    Ok(travelled(flat, world, Travel::AllReduce(reduce))?.reshape(shape))
}

#[track_caller]
pub(super) fn gathered<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let shape = x.dims();
    let flat = x.reshape([shape.iter().product::<usize>()]);
    let all = travelled(flat, world, Travel::AllGather)?;
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
    Ok(travelled(blocks, world, Travel::ReduceScatter)?.reshape(shape))
}

#[track_caller]
pub(super) fn exchanged<const D: usize>(
    x: Tensor<D>,
    Dims { from, to }: Dims,
    world: &World,
) -> Result<Tensor<D>, ParallelError> {
    let shape = part(&x, to, world)?;
    let ranks = world.world_size().len();
    let blocks = travelled(split(x, to, ranks), world, Travel::AllToAll)?;
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
fn travelled(x: Tensor<1>, world: &World, travel: Travel) -> Result<Tensor<1>, ParallelError> {
    let group = world.group();
    let (device, dtype) = (x.device(), x.dtype());
    let data = match x.try_into_data() {
        Ok(data) => match dtype {
            DType::F32 => run::<f32>(data, group, travel),
            DType::F64 => run::<f64>(data, group, travel),
            DType::F16 => run::<f16>(data, group, travel),
            DType::BF16 => run::<bf16>(data, group, travel),
            other => Err(ParallelError::UnsupportedDtype { dtype: format!("{other:?}") }),
        },
        Err(cause) => Err(unreadable(&cause)),
    };
    // The other ranks are not to wait for one that has nothing to send.
    let data = group.or_abort(data)?;
    Ok(Tensor::from_data(data, (&device, dtype)))
}

#[track_caller]
fn run<T: Element + burn::tensor::Element>(
    mut data: TensorData,
    group: &ProcessGroup,
    travel: Travel,
) -> Result<TensorData, ParallelError> {
    let values = data.as_mut_slice::<T>().map_err(|cause| unreadable(&cause))?;
    let flat = |values: Vec<T>| {
        let len = values.len();
        TensorData::new(values, [len])
    };
    Ok(match travel {
        Travel::AllReduce(reduce) => {
            group.all_reduce(values, reduce)?;
            data
        }
        Travel::AllToAll => {
            group.all_to_all(values)?;
            data
        }
        Travel::AllGather => flat(group.all_gather(values)?),
        Travel::ReduceScatter => {
            group.reduce_scatter_in_place(values, ReduceOp::Sum)?;
            let len = values.len() / group.world_size().len();
            let start = group.rank().index() * len;
            flat(values[start..start + len].to_vec())
        }
    })
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
