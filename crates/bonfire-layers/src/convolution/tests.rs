//! Beside a convolution of 64 bits that is written as the definition.

use proptest::prelude::*;
use rayon::ThreadPoolBuilder;

use super::*;

const ALL: Wanted = Wanted { input: true, weight: true, bias: true };

/// What a convolution is about.
#[derive(Clone, Copy, Debug)]
struct Case {
    input: [usize; 4],
    weight: [usize; 4],
    window: Window,
}

impl Case {
    /// Padded so that only the stride makes the image smaller.
    fn square(
        samples: usize,
        channels: [usize; 2],
        side: usize,
        stride: usize,
        pixels: usize,
    ) -> Self {
        Self {
            input: [samples, channels[0], pixels, pixels],
            weight: [channels[1], channels[0], side, side],
            window: Window {
                stride: [stride; 2],
                dilation: [1; 2],
                padding: [(side / 2, side / 2); 2],
                groups: 1,
            },
        }
    }

    fn convolution(&self) -> Convolution {
        Convolution::new(self.input, self.weight, self.window)
    }
}

/// Between -1 and 1.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |i: usize| {
        let mixed = (i as u32 + 1).wrapping_mul(2_654_435_761);
        let mixed = mixed.wrapping_add(seed.wrapping_mul(977));
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(2_246_822_519);
        (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(number).collect()
}

/// Output, and gradients of input, weight and bias.
fn found(case: &Case) -> [Vec<f32>; 4] {
    let convolution = case.convolution();
    let numbers = |shape: [usize; 4], seed| numbers(shape.iter().product(), seed);
    let (input, weight) = (numbers(case.input, 1), numbers(case.weight, 2));
    let bias = self::numbers(case.weight[0], 3);
    let output = convolution.forward(&input, &weight, Some(&bias));
    let slopes = numbers(convolution.output(), 4);
    let gradients = convolution.backward(&input, &weight, &slopes, ALL);
    let [of_input, of_weight, of_bias] = [gradients.input, gradients.weight, gradients.bias];
    [output, of_input.unwrap(), of_weight.unwrap(), of_bias.unwrap()]
}

/// A sum, that of the magnitudes of its terms, and how many they are.
#[derive(Clone, Copy, Default)]
struct Sum(f64, f64, f64);

impl Sum {
    fn add(&mut self, term: f64) {
        *self = Self(self.0 + term, self.1 + term.abs(), self.2 + 1.0);
    }
}

/// The same as [`found`] term by term.
fn exact(case: &Case) -> [Vec<Sum>; 4] {
    let wide = |shape: &[usize], seed| -> Vec<f64> {
        let values = numbers(shape.iter().product(), seed).into_iter();
        values.map(f64::from).collect()
    };
    let ([_, channels, height, width], [targets, depth, rows, columns]) = (case.input, case.weight);
    let (x, w, b) = (wide(&case.input, 1), wide(&case.weight, 2), wide(&[targets], 3));
    let shape = case.convolution().output();
    let slopes = wide(&shape, 4);
    let sums = |count: usize| vec![Sum::default(); count];
    let mut found = [sums(slopes.len()), sums(x.len()), sums(w.len()), sums(targets)];
    let Window { stride, dilation, padding, groups } = case.window;
    for (at, &slope) in slopes.iter().enumerate() {
        let (right, down) = (at % shape[3], at / shape[3] % shape[2]);
        let (target, sample) =
            (at / shape[3] / shape[2] % targets, at / shape[3] / shape[2] / targets);
        found[0][at].add(b[target]);
        found[3][target].add(slope);
        for tap in 0..depth * rows * columns {
            let y = down * stride[0] + tap / columns % rows * dilation[0];
            let z = right * stride[1] + tap % columns * dilation[1];
            let (y, z) = (y.wrapping_sub(padding[0].0), z.wrapping_sub(padding[1].0));
            if y >= height || z >= width {
                continue;
            }
            let channel = target / (targets / groups) * depth + tap / columns / rows;
            let from = ((sample * channels + channel) * height + y) * width + z;
            let weight = target * depth * rows * columns + tap;
            found[0][at].add(x[from] * w[weight]);
            found[1][from].add(slope * w[weight]);
            found[2][weight].add(slope * x[from]);
        }
    }
    found
}

/// Rounding a product and a sum is wrong by half a unit of the last place each, of at most the sum of magnitudes.
fn check(case: &Case) {
    let names = ["output", "input", "weight", "bias"];
    for (name, (found, exact)) in names.iter().zip(found(case).iter().zip(&exact(case))) {
        assert_eq!(found.len(), exact.len(), "{name} of {case:?}");
        for (i, (&value, &Sum(sum, magnitude, terms))) in found.iter().zip(exact).enumerate() {
            let tolerance = terms * f64::from(f32::EPSILON) * magnitude;
            let error = (f64::from(value) - sum).abs();
            assert!(error <= tolerance, "{name} {i} of {case:?}: {value} for {sum}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn values_and_gradients_are_those_of_64_bits(
        (samples, groups) in (1usize..20, 1usize..3),
        channels in [1usize..36, 1usize..36],
        kernel in prop::sample::select(vec![[1, 1], [3, 3], [5, 5], [7, 7], [1, 3], [4, 2]]),
        (stride, dilation) in ([1usize..4, 1usize..4], [1usize..3, 1usize..3]),
        padding in [(0usize..4, 0usize..4), (0usize..4, 0usize..4)],
        size in [1usize..9, 1usize..9],
    ) {
        let fits = |dim: usize| {
            size[dim] + padding[dim].0 + padding[dim].1 > dilation[dim] * (kernel[dim] - 1)
        };
        prop_assume!(fits(0) && fits(1));
        check(&Case {
            input: [samples, channels[0] * groups, size[0], size[1]],
            weight: [channels[1] * groups, channels[0], kernel[0], kernel[1]],
            window: Window { stride, dilation, padding, groups },
        });
    }
}

#[test]
fn the_layers_of_resnets_are_those_of_64_bits() {
    for case in [
        Case::square(5, [3, 20], 7, 2, 16),
        Case::square(20, [3, 16], 7, 2, 40),
        Case::square(13, [17, 33], 3, 1, 4),
        Case::square(4, [16, 32], 3, 2, 5),
        Case::square(6, [32, 16], 1, 2, 4),
        Case::square(7, [32, 32], 3, 1, 1),
        Case::square(1, [8, 8], 3, 1, 4),
    ] {
        check(&case);
    }
}

/// Taps that lie in the padding everywhere have a gradient, too: zero.
#[test]
fn a_map_of_one_pixel_has_gradients_of_all_taps() {
    let [_, _, weight, _] = found(&Case::square(4, [2, 3], 3, 1, 1));
    assert_eq!(weight.len(), 2 * 3 * 9);
    for (i, value) in weight.into_iter().enumerate() {
        assert_eq!(value != 0.0, i % 9 == 4, "tap {}", i % 9);
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let case = Case::square(37, [19, 40], 3, 1, 6);
    let on = |threads| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| found(&case))
    };
    assert_eq!(on(1), on(3));
}

#[test]
fn no_samples_give_no_values_and_gradients_of_zero() {
    let [output, input, weight, bias] = found(&Case::square(0, [5, 4], 3, 1, 3));
    assert_eq!([output, input], [vec![], vec![]]);
    assert_eq!(weight, [0.0; 180]);
    assert_eq!(bias, [0.0; 4]);
}

#[test]
fn only_wanted_gradients_are_computed() {
    let case = Case::square(3, [4, 5], 3, 1, 3);
    let none = Wanted { input: false, weight: false, bias: false };
    let (input, weight) = (numbers(108, 1), numbers(180, 2));
    let slopes = numbers(135, 4);
    let gradients = case.convolution().backward(&input, &weight, &slopes, none);
    assert_eq!(gradients, Gradients::default());
}

#[test]
#[should_panic(expected = "channels of the input and of a convolution with 1 groups")]
fn another_number_of_channels_is_a_mistake() {
    let case = Case::square(3, [4, 5], 3, 1, 3);
    Convolution::new([3, 5, 3, 3], case.weight, case.window);
}

#[test]
#[should_panic(expected = "a kernel that reaches over 5 pixels and an input of 4")]
fn a_kernel_larger_than_the_image_is_a_mistake() {
    let mut case = Case::square(3, [4, 5], 5, 1, 4);
    case.window.padding = [(0, 0); 2];
    case.convolution();
}
