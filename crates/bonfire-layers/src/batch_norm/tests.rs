//! Beside the definition in 64 bits.

use rayon::ThreadPoolBuilder;

use super::*;

const EPSILON: f64 = 1e-5;

/// Around an offset, of deviation about 1.
fn numbers(count: usize, seed: u32, offset: f32) -> Vec<f32> {
    let number = |i: usize| {
        let mixed = (i as u32 + 1).wrapping_mul(2_654_435_761);
        let mixed = mixed.wrapping_add(seed.wrapping_mul(977));
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
        (mixed >> 8) as f32 / (1 << 22) as f32 - 2.0 + offset
    };
    (0..count).map(number).collect()
}

/// Output, and gradients of the batch, of gamma and of beta.
fn found(shape: [usize; 3], offset: f32) -> [Vec<f64>; 4] {
    let count = shape.iter().product();
    let (x, mut gradient) = (numbers(count, 1, offset), numbers(count, 2, 0.0));
    let (gamma, beta) = (numbers(shape[1], 3, 0.0), numbers(shape[1], 4, 0.0));
    let norm = BatchNorm::of(&x, shape, EPSILON);
    let output = norm.forward(&x, &gamma, &beta);
    let sums = norm.backward_parameters(&x, &gradient);
    norm.backward(&x, &gamma, &sums, &mut gradient);
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
    let [of_gamma, of_beta] = sums;
    [wide(output), wide(gradient), of_gamma, of_beta]
}

fn exact(shape: [usize; 3], offset: f32) -> [Vec<f64>; 4] {
    let [samples, features, positions] = shape;
    let elems = samples * features * positions;
    let wide = |values: Vec<f32>| -> Vec<f64> { values.into_iter().map(f64::from).collect() };
    let (x, g) = (wide(numbers(elems, 1, offset)), wide(numbers(elems, 2, 0.0)));
    let (gamma, beta) = (wide(numbers(features, 3, 0.0)), wide(numbers(features, 4, 0.0)));
    let mut found = [vec![0.0; elems], vec![0.0; elems], vec![0.0; features], vec![0.0; features]];
    for feature in 0..features {
        let of_feature = |i: &usize| i / positions % features == feature;
        let places: Vec<usize> = (0..elems).filter(of_feature).collect();
        let mean_of = |of: &dyn Fn(usize) -> f64| {
            places.iter().map(|&i| of(i)).sum::<f64>() / places.len() as f64
        };
        let mean = mean_of(&|i| x[i]);
        let deviation = (mean_of(&|i| (x[i] - mean).powi(2)) + EPSILON).sqrt();
        let normalized = |i: usize| (x[i] - mean) / deviation;
        let slopes = [mean_of(&|i| g[i]), mean_of(&|i| g[i] * normalized(i))];
        for &i in &places {
            found[0][i] = gamma[feature] * normalized(i) + beta[feature];
            let projected = g[i] - slopes[0] - normalized(i) * slopes[1];
            found[1][i] = gamma[feature] * projected / deviation;
        }
        let count = places.len() as f64;
        (found[2][feature], found[3][feature]) = (slopes[1] * count, slopes[0] * count);
    }
    found
}

const SHAPES: [[usize; 3]; 6] =
    [[5, 3, 49], [7, 18, 16], [33, 20, 4], [9, 33, 1], [1, 2, 40], [4, 1, 3]];

/// Values are up to 2 off the offset, as gamma, beta and gradients; deviations are near 1. What is rounded is at most as
/// large as gamma times gradient times offset; sums of 32 bits have as many terms as positions over lanes, and lanes.
#[test]
fn values_and_gradients_are_those_of_64_bits() {
    for shape in SHAPES {
        for offset in [0.0, 100.0] {
            let terms = (shape[2] / LANES + LANES) as f64;
            let size = 8.0 * (4.0 + f64::from(offset)) * f64::from(f32::EPSILON);
            let count = (shape[0] * shape[2]) as f64;
            let tolerances = [size, size * terms, size * terms * count, size * terms * count];
            let pairs = found(shape, offset).into_iter().zip(exact(shape, offset));
            for (index, (found, exact)) in pairs.enumerate() {
                assert_eq!(found.len(), exact.len());
                for (found, exact) in found.iter().zip(&exact) {
                    let error = (found - exact).abs();
                    let tolerance = tolerances[index];
                    assert!(
                        error <= tolerance,
                        "{index} of {shape:?} at {offset}: {found} for {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_constant_feature_has_no_variance() {
    let norm = BatchNorm::of(&[1e6 + 0.5; 40], [5, 2, 4], EPSILON);
    for moments in norm.moments() {
        assert_eq!((moments.mean, moments.variance), (1e6 + 0.5, 0.0));
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let on = |threads| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| SHAPES.map(|shape| found(shape, 1.0)))
    };
    assert_eq!(on(1), on(3));
}
