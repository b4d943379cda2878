//! Least squares on synthetic data: small, deterministic, and the same bits wherever it is computed.

pub const WEIGHTS: usize = 256;

const SAMPLES: usize = 4;

const RATE: f32 = 0.05;

#[derive(Clone, Debug)]
pub struct Batch {
    inputs: Vec<[f32; WEIGHTS]>,
    targets: Vec<f32>,
}

impl Batch {
    pub fn read(seed: u64, rank: u32, step: u64) -> Self {
        let sample = |index: usize| {
            let of = |weight: usize| {
                let place =
                    (u64::from(rank) << 48) ^ (step << 20) ^ ((index * WEIGHTS + weight) as u64);
                uniform(seed ^ place)
            };
            let input: [f32; WEIGHTS] = std::array::from_fn(of);
            let target = input.iter().step_by(3).sum::<f32>();
            (input, target)
        };
        let (inputs, targets) = (0..SAMPLES).map(sample).unzip();
        Self { inputs, targets }
    }

    /// A batch of no samples, of a rank that only keeps the others company.
    pub fn empty() -> Self {
        Self { inputs: Vec::new(), targets: Vec::new() }
    }

    /// The gradient summed over the samples, and behind it their number.
    pub fn gradient(&self, weights: &[f32]) -> Vec<f32> {
        let mut gradient = vec![0.0; WEIGHTS + 1];
        for (input, target) in self.inputs.iter().zip(&self.targets) {
            let output: f32 = input.iter().zip(weights).map(|(x, w)| x * w).sum();
            let error = output - target;
            for (sum, x) in gradient.iter_mut().zip(input) {
                *sum += error * x;
            }
            gradient[WEIGHTS] += 1.0;
        }
        gradient
    }
}

pub fn start() -> Vec<f32> {
    vec![0.0; WEIGHTS]
}

/// One step, with the gradient summed over all ranks.
pub fn update(weights: &mut [f32], gradient: &[f32]) {
    let samples = gradient[WEIGHTS].max(1.0);
    for (weight, sum) in weights.iter_mut().zip(gradient) {
        *weight -= RATE / samples * sum;
    }
}

/// The weights after `steps` steps of a world in which each rank has the given batches: what a
/// training must come to, computed by one thread that folds in the order of the ranks.
pub fn expected(seed: u64, batches: &[u64], steps: u64) -> Vec<f32> {
    let mut weights = start();
    for step in 0..steps {
        let mut total: Option<Vec<f32>> = None;
        for (rank, &batches) in (0..).zip(batches) {
            let batch = if step < batches { Batch::read(seed, rank, step) } else { Batch::empty() };
            let gradient = batch.gradient(&weights);
            match &mut total {
                None => total = Some(gradient),
                Some(total) => total.iter_mut().zip(gradient).for_each(|(sum, x)| *sum += x),
            }
        }
        update(&mut weights, &total.expect("a world has ranks"));
    }
    weights
}

/// A number between -0.5 and 0.5 that a place in the data set always has (the finalizer of
/// splitmix64).
fn uniform(place: u64) -> f32 {
    let mut bits = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_training_learns() {
        let error = |weights: &[f32]| {
            let batch = Batch::read(1, 9, 0);
            let outputs = batch.inputs.iter().map(|input| {
                let output: f32 = input.iter().zip(weights).map(|(x, w)| x * w).sum();
                output
            });
            let squares = outputs.zip(&batch.targets).map(|(o, t)| (o - t) * (o - t));
            squares.sum::<f32>()
        };
        let trained = expected(1, &[400, 400], 400);
        assert!(error(&trained) < error(&start()) / 4.0);
    }

    #[test]
    fn a_rank_without_samples_changes_nothing() {
        assert_eq!(expected(3, &[5, 0], 5), expected(3, &[5], 5));
    }
}
