//! Batch norms whose statistics are those of all ranks.

mod layer;
mod training;

use super::*;
use crate::{BatchNorm, BatchNormConfig, NormGroup, convert_sync_batch_norm};

/// The same values for the same shape.
fn uniform(seed: u64, shape: &[usize]) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = shape.iter().product();
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}
