//! Blocks of a tensor along a dimension, one behind the other in memory.

use burn::tensor::Tensor;

/// The elements of a tensor that is cut into `count` equal blocks along `dim`, block after block.
pub(super) fn split<const D: usize>(x: Tensor<D>, dim: usize, count: usize) -> Tensor<1> {
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
pub(super) fn join<const D: usize>(
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
