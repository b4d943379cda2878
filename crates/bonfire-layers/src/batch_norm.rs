//! Batch normalisation (Ioffe and Szegedy 2015) and its gradients: a pass for the statistics and one for the values,
//! each way.
//!
//! Sums over the positions of a sample are of 32 bits, those over samples of 64.

#[cfg(test)]
mod tests;

use pulp::Arch;
use rayon::prelude::*;

/// Values that are summed side by side, one per lane.
const LANES: usize = 16;

/// The mean and the biased variance of a feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments {
    /// The mean over all samples and positions.
    pub mean: f64,
    /// The variance over all values, not over one less.
    pub variance: f64,
}

/// A batch `[samples, features, positions]` and its statistics.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    sizes: Sizes,
    moments: Vec<Moments>,
    /// One over the deviation of each feature.
    scales: Vec<f64>,
}

impl BatchNorm {
    /// Computes the statistics of `x`; `epsilon` is added to variances.
    ///
    /// # Panics
    /// If `x` has another number of values than `[samples, features, positions]`, or none.
    pub fn of(x: &[f32], shape: [usize; 3], epsilon: f64) -> Self {
        let [samples, features, positions] = shape;
        let sizes = Sizes { samples, features, positions };
        assert!(!x.is_empty(), "a batch has values");
        assert_eq!(x.len(), samples * features * positions, "values of a batch");
        let moments: Vec<_> = moments(x, sizes)
            .into_iter()
            .map(|[mean, variance]| Moments { mean, variance })
            .collect();
        let scale = |moments: &Moments| 1.0 / (moments.variance + epsilon).sqrt();
        Self { sizes, scales: moments.iter().map(scale).collect(), moments }
    }

    /// Returns the moments of each feature.
    pub fn moments(&self) -> &[Moments] {
        &self.moments
    }

    /// Normalizes the batch to mean 0 and variance 1 in each feature, then multiplies by `gamma` and adds `beta`.
    ///
    /// # Panics
    /// If a slice has another length than the batch, or than there are features.
    pub fn forward(&self, x: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f32> {
        let features = self.sizes.features;
        assert_eq!([gamma.len(), beta.len()], [features; 2], "a number for each feature");
        let factor = |feature: usize| {
            let scale = self.scales[feature] * f64::from(gamma[feature]);
            let shift = f64::from(beta[feature]) - self.moments[feature].mean * scale;
            [scale as f32, shift as f32]
        };
        let factors: Vec<_> = (0..features).map(factor).collect();
        let mut output = vec![0.0; x.len()];
        each_line(
            &mut output,
            x,
            self.sizes,
            &factors,
            #[inline(always)]
            |target, x, &[scale, shift]| {
                for (target, x) in target.iter_mut().zip(x) {
                    *target = x * scale + shift;
                }
            },
        );
        output
    }

    /// Returns the gradients of gamma and beta, from that of the output.
    ///
    /// # Panics
    /// If a slice has another length than the batch.
    pub fn backward_parameters(&self, x: &[f32], gradient: &[f32]) -> [Vec<f64>; 2] {
        let sizes = self.sizes;
        assert_eq!(x.len(), gradient.len(), "values of a batch and of a gradient");
        let sums = each_feature(
            sizes,
            #[inline(always)]
            |feature: usize| {
                let centre = self.moments[feature].mean as f32;
                let [mut sum, mut product] = [0.0; 2];
                for (gradient, x) in sizes.lines(gradient, feature).zip(sizes.lines(x, feature)) {
                    let [one, two] = line_sums(
                        gradient,
                        x,
                        #[inline(always)]
                        |gradient, x| [gradient, gradient * (x - centre)],
                    );
                    sum += one;
                    product += two;
                }
                [product * self.scales[feature], sum]
            },
        );
        [0, 1].map(|index| sums.iter().map(|sums| sums[index]).collect())
    }

    /// Makes the gradient of the output that of the batch, given those of the
    /// [parameters](Self::backward_parameters). With xhat for the batch with mean 0 and variance 1 and g for the
    /// gradient, it is gamma (g - mean(g) - xhat mean(g xhat)) over the deviation.
    ///
    /// # Panics
    /// If a slice has another length than the batch, or than there are features.
    pub fn backward(
        &self,
        x: &[f32],
        gamma: &[f32],
        [products, sums]: &[Vec<f64>; 2],
        gradient: &mut [f32],
    ) {
        let sizes = self.sizes;
        assert_eq!(x.len(), gradient.len(), "values of a batch and of a gradient");
        let count = (sizes.samples * sizes.positions) as f64;
        let factor = |feature: usize| {
            let scale = self.scales[feature];
            let outer = f64::from(gamma[feature]) * scale;
            let slope = -outer * scale * products[feature] / count;
            let shift = -outer * sums[feature] / count - slope * self.moments[feature].mean;
            [outer as f32, slope as f32, shift as f32]
        };
        let factors: Vec<_> = (0..sizes.features).map(factor).collect();
        each_line(
            gradient,
            x,
            sizes,
            &factors,
            #[inline(always)]
            |target, x, &[outer, slope, shift]| {
                for (target, x) in target.iter_mut().zip(x) {
                    *target = *target * outer + (x * slope + shift);
                }
            },
        );
    }
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    samples: usize,
    features: usize,
    positions: usize,
}

impl Sizes {
    fn lines(self, values: &[f32], feature: usize) -> impl Iterator<Item = &[f32]> {
        let samples = values.chunks_exact(self.features * self.positions);
        samples.map(move |sample| &sample[feature * self.positions..][..self.positions])
    }
}

/// Mean and biased variance of each feature.
fn moments(x: &[f32], sizes: Sizes) -> Vec<[f64; 2]> {
    let count = (sizes.samples * sizes.positions) as f64;
    each_feature(
        sizes,
        #[inline(always)]
        |feature| {
            let mut sum = 0.0;
            for line in sizes.lines(x, feature) {
                sum += line_sums(
                    line,
                    line,
                    #[inline(always)]
                    |x, _| [x, 0.0],
                )[0];
            }
            // About a number near the mean, which 32 bits may not hold.
            let centre = (sum / count) as f32;
            let [mut offset, mut square] = [0.0; 2];
            for line in sizes.lines(x, feature) {
                let [one, two] = line_sums(
                    line,
                    line,
                    #[inline(always)]
                    |x, _| [x - centre, (x - centre) * (x - centre)],
                );
                offset += one;
                square += two;
            }
            let offset = offset / count;
            let variance = (square / count - offset * offset).max(0.0);
            [f64::from(centre) + offset, variance]
        },
    )
}

/// Runs `run` for each feature, on all threads of the rayon pool that this is called in.
fn each_feature(sizes: Sizes, run: impl Fn(usize) -> [f64; 2] + Sync) -> Vec<[f64; 2]> {
    let run = |feature| {
        Arch::new().dispatch(
            #[inline(always)]
            || run(feature),
        )
    };
    if rayon::current_num_threads() == 1 {
        // Without waiting for another thread.
        return (0..sizes.features).map(run).collect();
    }
    (0..sizes.features).into_par_iter().map(run).collect()
}

/// Runs `run` on the lines of `target` and `x`, each with the entry of its feature in `factors`.
fn each_line<F: Sync>(
    target: &mut [f32],
    x: &[f32],
    sizes: Sizes,
    factors: &[F],
    run: impl Fn(&mut [f32], &[f32], &F) + Sync,
) {
    let len = sizes.features * sizes.positions;
    let sample = |(target, x): (&mut [f32], &[f32])| {
        Arch::new().dispatch(
            #[inline(always)]
            || {
                let targets = target.chunks_exact_mut(sizes.positions);
                let lines = targets.zip(x.chunks_exact(sizes.positions));
                for ((target, x), factors) in lines.zip(factors) {
                    run(target, x, factors);
                }
            },
        );
    };
    if rayon::current_num_threads() == 1 {
        return target.chunks_exact_mut(len).zip(x.chunks_exact(len)).for_each(sample);
    }
    target.par_chunks_exact_mut(len).zip(x.par_chunks_exact(len)).for_each(sample);
}

/// The sums of both parts of `map` over a line.
#[inline(always)]
fn line_sums(a: &[f32], b: &[f32], map: impl Fn(f32, f32) -> [f32; 2]) -> [f64; 2] {
    if a.len() < LANES {
        let mut sums = [0.0; 2];
        for (&a, &b) in a.iter().zip(b) {
            let [one, two] = map(a, b);
            sums[0] += f64::from(one);
            sums[1] += f64::from(two);
        }
        return sums;
    }
    let mut sums = [[0.0_f32; LANES]; 2];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            let [one, two] = map(a[lane], b[lane]);
            sums[0][lane] += one;
            sums[1][lane] += two;
        }
    }
    for (lane, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        let [one, two] = map(a, b);
        sums[0][lane] += one;
        sums[1][lane] += two;
    }
    sums.map(|sums| f64::from(sums.iter().sum::<f32>()))
}
