//! The distribution of a sequence's tokens to ranks, and the weight of a rank's loss.

use std::ops::Range;

use bonfire_collective::{ReduceOp, WorldSize};
use bonfire_train::{Loss, World};
use burn::tensor::Tensor;
use burn::tensor::kind::Basic;

use crate::ParallelError;

/// Returns the positions of this rank's tokens in a sequence of `length`: two runs of equal length, in this order. Of
/// `n` ranks, the r-th has the chunks `r` and `2n - 1 - r` of `2n`.
///
/// # Errors
/// [`ParallelError::Odd`] on all ranks if the tokens do not divide into that number of equal chunks.
pub fn zigzag_ranges(length: usize, cp: &World) -> Result<[Range<usize>; 2], ParallelError> {
    ranges(length, cp, 0)
}

/// Returns this rank's tokens, along `dim`, of a tensor that is the same on all ranks, such as a batch or a table of
/// positions. The gradient is that of these tokens; it is not summed over the ranks.
///
/// # Errors
/// As [`zigzag_ranges`].
///
/// # Panics
/// If the tensor has no such dimension.
pub fn zigzag_split<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    dim: usize,
    cp: &World,
) -> Result<Tensor<D, K>, ParallelError> {
    assert!(dim < D, "dimension {dim} of a tensor of {D}");
    let runs = ranges(x.dims()[dim], cp, dim)?;
    if cp.world_size() == WorldSize::ONE {
        return Ok(x);
    }
    let runs = runs.map(|run| x.clone().narrow(dim, run.start, run.len()));
    Ok(Tensor::cat(runs.to_vec(), dim))
}

/// Returns the loss of this rank's tokens where ranks may count different numbers of them: `sum` over its tokens, of
/// which `tokens` count. The mean of a step is then over all tokens of all sequences. Every rank must call it.
///
/// [`Loss::mean_over`] would not do: a gradient of this rank comes from the losses of other ranks, too, through
/// keys and values, so losses must be weighted before the backward pass. Where all tokens count, each rank has as many,
/// and the plain mean is right.
///
/// # Errors
/// [`ParallelError::Collective`].
#[track_caller]
pub fn context_loss(sum: Tensor<1>, tokens: usize, cp: &World) -> Result<Loss, ParallelError> {
    let mut all = [tokens as u64];
    cp.group().all_reduce(&mut all, ReduceOp::Sum)?;
    let factor = f64::from(cp.world_size().get()) / all[0] as f64;
    // All ranks of the sequence count the same, so nothing is weighted after the backward pass.
    Ok(Loss::mean_over(sum.mul_scalar(factor), all[0] as usize))
}

fn ranges(length: usize, cp: &World, dim: usize) -> Result<[Range<usize>; 2], ParallelError> {
    let (ranks, rank) = (cp.world_size(), cp.rank().index());
    let chunks = 2 * ranks.len();
    if ranks == WorldSize::ONE {
        return Ok([0..length / 2, length / 2..length]);
    }
    if !length.is_multiple_of(chunks) {
        return Err(ParallelError::Odd { dim, length, ranks, chunks });
    }
    let chunk = length / chunks;
    Ok([rank, chunks - 1 - rank].map(|index| index * chunk..(index + 1) * chunk))
}
