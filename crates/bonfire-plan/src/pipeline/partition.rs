//! Which layers a stage is made of.

use std::ops::Range;

/// Layers that cannot be divided into stages. The caller is at fault.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Fewer layers than stages, or no stage at all.
    #[error("{layers} layers are not {stages} stages of at least one layer each")]
    Stages {
        /// Layers to divide: one for each weight.
        layers: usize,
        /// Stages asked for, of at least one layer each.
        stages: usize,
    },
    /// A weight that is negative, infinite or not a number.
    #[error("layer {layer} has the weight {weight}; give a finite number that is 0 or more")]
    Weight {
        /// The layer, counted from 0.
        layer: usize,
        /// The number given: negative, infinite or not a number.
        weight: f64,
    },
}

/// Cuts layers into stages, each a run of at least one layer, so that the heaviest stage is as light as can be.
/// Of the ways to do that it takes one whose stages differ least: the sum of squares is the least.
///
/// A weight is what should be even: 1 to divide layers by count, their parameters, or their measured seconds. An
/// embedding and a head are layers like others, with weights of their own. It takes time in proportion to
/// stages x layers x layers.
///
/// ```
/// # mod bonfire { pub mod parallel { pub mod schedule { pub use bonfire_plan::pipeline::*; } } }
/// use bonfire::parallel::schedule::partition;
///
/// assert_eq!(partition(&[1.0; 10], 4)?, [0..3, 3..6, 6..8, 8..10]);
/// // A heavy head leaves fewer layers for the last stage.
/// assert_eq!(partition(&[1.0, 1.0, 1.0, 1.0, 3.0], 2)?, [0..4, 4..5]);
/// # Ok::<(), bonfire_plan::pipeline::PartitionError>(())
/// ```
///
/// # Errors
/// [`PartitionError`] for fewer layers than stages, and for a weight that is none.
pub fn partition(weights: &[f64], stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
    let layers = weights.len();
    if stages == 0 || stages > layers {
        return Err(PartitionError::Stages { layers, stages });
    }
    let mut sums = vec![0.0];
    for (layer, &weight) in weights.iter().enumerate() {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(PartitionError::Weight { layer, weight });
        }
        sums.push(sums[layer] + weight);
    }
    let sum = |run: Range<usize>| sums[run.end] - sums[run.start];
    let heaviest = cut(layers, stages, |before, run| f64::max(before, sum(run)));
    let limit = heaviest.0;
    let squares = cut(layers, stages, |before, run| match sum(run) {
        weight if weight <= limit => before + weight * weight,
        _ => f64::INFINITY,
    });
    Ok(squares.1)
}

/// The cut with the least cost, and its cost. `cost` adds a run of layers to the cost of those in front of it.
fn cut(
    layers: usize,
    stages: usize,
    cost: impl Fn(f64, Range<usize>) -> f64,
) -> (f64, Vec<Range<usize>>) {
    // The least cost of the first layers in that many stages, and where the last of these begins.
    let mut best = vec![vec![(f64::INFINITY, 0); layers + 1]; stages + 1];
    best[0][0].0 = 0.0;
    for stage in 1..=stages {
        for end in stage..=layers - (stages - stage) {
            for start in stage - 1..end {
                let total = cost(best[stage - 1][start].0, start..end);
                // Of equal ones the last start, which puts more layers in front.
                if total <= best[stage][end].0 {
                    best[stage][end] = (total, start);
                }
            }
        }
    }
    let mut runs = Vec::with_capacity(stages);
    let mut end = layers;
    for stage in (1..=stages).rev() {
        let start = best[stage][end].1;
        runs.push(start..end);
        end = start;
    }
    runs.reverse();
    (best[stages][layers].0, runs)
}
