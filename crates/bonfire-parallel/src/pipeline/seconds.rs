//! The time of layers, by which they are divided into stages.

use std::time::Instant;

use bonfire_train::{TrainError, World};
use burn::tensor::Tensor;

use super::error::PipelineError;

/// Number of passes of each layer. The first warms up, and others may be disturbed: the shortest counts.
const PASSES: usize = 3;

/// Measures a forward and a backward pass of each layer, in seconds, in the mean over the ranks of a world and the
/// same on all of them: weights for [`partition`](bonfire_plan::pipeline::partition). Every rank calls it.
///
/// `forward` runs one layer on values of their later size, and returns a number that depends on all of its output. An
/// input that requires a gradient has one computed, as between two stages.
///
/// ```
/// # use bonfire_parallel::{PipelineError, layer_seconds};
/// # use bonfire_plan::pipeline::partition;
/// # use bonfire_train::World;
/// # use burn::nn::Linear;
/// # use burn::tensor::Tensor;
/// # fn balanced(world: &World, layers: &[Linear]) -> Result<(), Box<dyn std::error::Error>> {
/// let device = world.device().autodiff();
/// let seconds = layer_seconds(world, layers.len(), |layer| {
///     let input = Tensor::<2>::ones([32, 1024], &device).require_grad();
///     layers[layer].forward(input).mean()
/// })?;
/// let runs = partition(&seconds, 4)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`PipelineError::Train`] if a device fails; [`PipelineError::Collective`] if a rank does.
#[track_caller]
pub fn layer_seconds(
    world: &World,
    layers: usize,
    forward: impl Fn(usize) -> Tensor<1>,
) -> Result<Vec<f64>, PipelineError> {
    let device = world.device();
    let pass = |layer| {
        let start = Instant::now();
        let loss = forward(layer);
        let _gradients = loss.is_tracked().then(|| loss.backward());
        device.sync().map_err(|cause| TrainError::UnreadableTensor {
            what: format!("the end of layer {layer}"),
            cause: format!("{cause:?}"),
        })?;
        Ok::<_, TrainError>(start.elapsed().as_secs_f64())
    };
    let mut own = vec![f64::INFINITY; layers];
    for (layer, shortest_s) in own.iter_mut().enumerate() {
        for _ in 0..PASSES {
            *shortest_s = shortest_s.min(pass(layer)?);
        }
    }
    let all = world.group().all_gather(&own)?;
    let ranks = world.world_size().len();
    let mean = |layer| {
        let all_s: f64 = all.iter().skip(layer).step_by(layers).sum();
        all_s / ranks as f64
    };
    Ok((0..layers).map(mean).collect())
}
