//! One layer, compared with the formulas in f64 and with Burn's layer on the whole batch.

use burn::module::Param;
use proptest::prelude::*;

use super::*;

const EPSILON: f64 = 1e-5;

/// A batch that ranks share: its samples, its features, the positions of a sample.
#[derive(Clone, Debug)]
struct Whole {
    samples: usize,
    features: usize,
    positions: Vec<usize>,
}

/// What a layer makes of a batch, and of the gradient of the loss: one value per element, or feature.
#[derive(Clone, Debug, Default)]
struct Outcome {
    output: Vec<f64>,
    input_gradient: Vec<f64>,
    gamma_gradient: Vec<f64>,
    beta_gradient: Vec<f64>,
    mean: Vec<f64>,
    variance: Vec<f64>,
}

impl Whole {
    fn sample_elems(&self) -> usize {
        self.features * self.positions.iter().product::<usize>()
    }

    /// Values of the samples from `start` to `end`.
    fn part(&self, seed: u64, start: usize, end: usize) -> TensorData {
        let all = uniform(seed, &[self.samples, self.sample_elems()]);
        let elems = self.sample_elems();
        let mut shape = vec![end - start, self.features];
        shape.extend(&self.positions);
        TensorData::new(all[start * elems..end * elems].to_vec(), shape)
    }

    /// Some of the values are moved far from zero, as the input of a layer in a network is.
    fn inputs(&self, start: usize, end: usize) -> TensorData {
        let data = self.part(1, start, end);
        let (elems, positions) = (self.sample_elems(), self.sample_elems() / self.features);
        let values = data.iter::<f32>().enumerate();
        let values = values.map(|(i, x)| x + ((i % elems) / positions) as f32);
        let values: Vec<f32> = values.collect();
        TensorData::new(values, data.shape().clone())
    }

    /// What each output counts in the loss, which is the sum over all ranks.
    fn shares(&self, start: usize, end: usize) -> TensorData {
        self.part(2, start, end)
    }

    fn gamma(&self) -> Vec<f32> {
        uniform(3, &[self.features])
    }

    fn beta(&self) -> Vec<f32> {
        uniform(4, &[self.features])
    }
}

/// The formulas, in f64, over all samples at once.
fn oracle(whole: &Whole) -> Outcome {
    let x: Vec<f64> = whole.inputs(0, whole.samples).iter::<f64>().collect();
    let dy: Vec<f64> = whole.shares(0, whole.samples).iter::<f64>().collect();
    let positions = whole.sample_elems() / whole.features;
    let mut outcome = Outcome {
        output: vec![0.0; x.len()],
        input_gradient: vec![0.0; x.len()],
        ..Outcome::default()
    };
    for feature in 0..whole.features {
        let own: Vec<usize> =
            (0..x.len()).filter(|i| i / positions % whole.features == feature).collect();
        let m = own.len().max(1) as f64;
        let sum = |f: &dyn Fn(usize) -> f64| own.iter().map(|&i| f(i)).sum::<f64>();
        let mean = sum(&|i| x[i]) / m;
        let variance = sum(&|i| (x[i] - mean).powi(2)) / m;
        let deviation = (variance + EPSILON).sqrt();
        let hat = |i: usize| (x[i] - mean) / deviation;
        let gamma = f64::from(whole.gamma()[feature]);
        let beta = f64::from(whole.beta()[feature]);
        let (dgamma, dbeta) = (sum(&|i| dy[i] * hat(i)), sum(&|i| dy[i]));
        for &i in &own {
            outcome.output[i] = gamma * hat(i) + beta;
            outcome.input_gradient[i] =
                gamma / deviation * (dy[i] - dbeta / m - hat(i) * dgamma / m);
        }
        outcome.gamma_gradient.push(dgamma);
        outcome.beta_gradient.push(dbeta);
        outcome.mean.push(mean);
        outcome.variance.push(variance);
    }
    outcome
}

/// What the layer makes of some samples of the batch.
fn computed<const D: usize>(
    whole: &Whole,
    samples: (usize, usize),
    layer: BatchNorm,
    device: &Device,
) -> Outcome {
    let layer = BatchNorm {
        gamma: Param::from_data(TensorData::from(&whole.gamma()[..]), device),
        beta: Param::from_data(TensorData::from(&whole.beta()[..]), device),
        // The running statistics are then those of the batch.
        momentum: 1.0,
        ..layer
    };
    let x = Tensor::<D>::from_data(whole.inputs(samples.0, samples.1), device).require_grad();
    let shares = Tensor::<D>::from_data(whole.shares(samples.0, samples.1), device);
    let output = layer.forward(x.clone());
    let gradients = (output.clone() * shares).sum().backward();
    let wide = |data: TensorData| data.iter::<f64>().collect::<Vec<f64>>();
    Outcome {
        output: wide(output.into_data()),
        input_gradient: wide(x.grad(&gradients).unwrap().into_data()),
        gamma_gradient: wide(layer.gamma.val().grad(&gradients).unwrap().into_data()),
        beta_gradient: wide(layer.beta.val().grad(&gradients).unwrap().into_data()),
        mean: wide(layer.running_mean.value().into_data()),
        variance: wide(layer.running_var.value().into_data()),
    }
}

/// The parts of all ranks together: outputs in order, gradients of parameters added up.
fn together(parts: &[Outcome]) -> Outcome {
    let all = |field: fn(&Outcome) -> &Vec<f64>| parts.iter().flat_map(field).copied().collect();
    let sums = |field: fn(&Outcome) -> &Vec<f64>| {
        let features = field(&parts[0]).len();
        let sum = |i| parts.iter().map(|part| field(part)[i]).sum();
        (0..features).map(sum).collect()
    };
    Outcome {
        output: all(|o| &o.output),
        input_gradient: all(|o| &o.input_gradient),
        gamma_gradient: sums(|o| &o.gamma_gradient),
        beta_gradient: sums(|o| &o.beta_gradient),
        mean: parts[0].mean.clone(),
        variance: parts[0].variance.clone(),
    }
}

/// How far f32 may be from the oracle, for m values per feature. To first order (Higham, Accuracy and
/// Stability of Numerical Algorithms, 3.1) a sum of m terms is off by m u times the sum of their
/// magnitudes; inputs are at most `reach`, which dividing by the deviation makes `hat`, and the factor
/// allows for the ten operations that follow one another.
struct Allowed {
    output: f64,
    input_gradient: f64,
    gradient: f64,
    mean: f64,
    variance: f64,
}

fn allowed(whole: &Whole, expected: &Outcome) -> Allowed {
    let positions = whole.sample_elems() / whole.features;
    let m = (whole.samples * positions) as f64;
    let rounding = 10.0 * (m + 10.0) * f64::from(f32::EPSILON) / 2.0;
    let smallest = expected.variance.iter().copied().fold(f64::MAX, f64::min);
    let deviation = (smallest + EPSILON).sqrt();
    let reach = whole.features as f64;
    let hat = (reach / deviation).max(1.0);
    Allowed {
        output: rounding * hat,
        input_gradient: rounding * hat * hat / deviation,
        gradient: rounding * m * hat,
        mean: rounding * reach,
        variance: rounding * reach * reach,
    }
}

fn assert_near(what: &str, found: &[f64], expected: &[f64], allowed: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found - expected).abs();
        assert!(apart <= allowed, "{what}: {found}, not {expected} (± {allowed})");
    }
}

fn assert_is(found: &Outcome, expected: &Outcome, allowed: &Allowed) {
    type Field = fn(&Outcome) -> &Vec<f64>;
    let fields: [(&str, Field, f64); 6] = [
        ("output", |o| &o.output, allowed.output),
        ("gradient of the input", |o| &o.input_gradient, allowed.input_gradient),
        ("gradient of gamma", |o| &o.gamma_gradient, allowed.gradient),
        ("gradient of beta", |o| &o.beta_gradient, allowed.gradient),
        ("mean", |o| &o.mean, allowed.mean),
        ("variance", |o| &o.variance, allowed.variance),
    ];
    for (what, field, allowed) in fields {
        assert_near(what, field(found), field(expected), allowed);
    }
}

/// Ranks with so many samples each compute what one rank does with all of them.
fn check<const D: usize>(parts: &[usize], features: usize, positions: &[usize]) {
    assert_eq!(D, 2 + positions.len());
    let whole = Whole { samples: parts.iter().sum(), features, positions: positions.to_vec() };
    let results = on_ranks(parts.len() as u32, |world| {
        let device = world.device().autodiff();
        let group = NormGroup::of_world(&world).unwrap();
        let layer = BatchNormConfig::new(features).init_synchronized(&device, &group);
        assert_eq!(layer.synchronized_ranks(), Some(parts.len()));
        let rank = world.rank().index();
        let start: usize = parts[..rank].iter().sum();
        computed::<D>(&whole, (start, start + parts[rank]), layer, &device)
    });
    for result in &results {
        let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&result.mean), bits(&results[0].mean));
        assert_eq!(bits(&result.variance), bits(&results[0].variance));
    }
    let found = together(&results);
    if whole.samples == 0 {
        assert_eq!(found.mean, vec![0.0; features], "nothing was learnt");
        assert_eq!(found.variance, vec![1.0; features], "nothing was learnt");
        return;
    }
    let expected = oracle(&whole);
    let allowed = allowed(&whole, &expected);
    assert_is(&found, &expected, &allowed);
    // Burn's own layer is as close to the formulas.
    let device = Device::flex().autodiff();
    let alone = BatchNormConfig::new(features).init(&device);
    let alone = computed::<D>(&whole, (0, whole.samples), alone, &device);
    assert_is(&alone, &expected, &allowed);
}

#[test]
fn equal_batches_of_some_samples_and_of_one() {
    check::<2>(&[5], 3, &[]);
    check::<2>(&[4, 4], 3, &[]);
    check::<3>(&[2, 2, 2], 2, &[5]);
    check::<4>(&[2, 2, 2, 2], 3, &[3, 2]);
    check::<2>(&[1, 1], 3, &[]);
    check::<4>(&[1, 1, 1], 1, &[2, 2]);
}

#[test]
fn unequal_batches_and_ranks_without_any() {
    check::<2>(&[7, 1], 2, &[]);
    check::<3>(&[0, 3], 2, &[4]);
    check::<4>(&[3, 0, 2], 2, &[2, 3]);
    check::<2>(&[0, 0], 2, &[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_division_of_any_batch(
        parts in prop::collection::vec(0_usize..6, 1..5),
        features in 1_usize..5,
        positions in prop::collection::vec(1_usize..4, 0..3),
    ) {
        // One value alone is refused.
        let values = parts.iter().sum::<usize>() * positions.iter().product::<usize>();
        prop_assume!(values != 1);
        match positions.len() {
            0 => check::<2>(&parts, features, &positions),
            1 => check::<3>(&parts, features, &positions),
            _ => check::<4>(&parts, features, &positions),
        }
    }
}

#[test]
fn evaluation_and_frozen_layers_ask_nobody() {
    on_ranks(2, |world| {
        let device = world.device().autodiff();
        let group = NormGroup::of_world(&world).unwrap();
        let layer = BatchNormConfig::new(2).init_synchronized(&device, &group);
        let x = |device: &Device| Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 5.0]], device);
        let before = group.group().traffic();
        let _output = layer.forward(x(&device));
        assert_ne!(group.group().traffic(), before, "training exchanges");
        let before = group.group().traffic();
        // On one rank alone: with an exchange this would wait.
        if world.is_main() {
            let valid = layer.valid();
            assert_eq!(valid.synchronized_ranks(), Some(2));
            let _output = valid.forward(x(&world.device()));
            let _output = layer.clone().freeze().forward(x(&device));
        }
        assert_eq!(group.group().traffic(), before);
        world.group().barrier().unwrap();
    });
}

#[test]
fn the_ranks_of_a_group_have_statistics_of_their_own() {
    let means = on_ranks(4, |world| {
        let device = world.device().autodiff();
        let pair = world.group().split(Some(world.rank().get() / 2), 0).unwrap();
        let group = NormGroup::of_ranks(&world, pair.unwrap());
        let layer = BatchNormConfig::new(1).with_momentum(1.0).init_synchronized(&device, &group);
        let own = world.rank().get() as f32;
        let _output = layer.forward(Tensor::<2>::full([2, 1], own, &device));
        floats(layer.running_mean.value())[0]
    });
    assert_eq!(means, [0.5, 0.5, 2.5, 2.5]);
}

#[test]
fn a_layer_of_f64_is_exact_to_f64() {
    let means = on_ranks(2, |world| {
        let device = world.device().autodiff();
        let wide = burn::tensor::DType::F64;
        let group = NormGroup::of_world(&world).unwrap();
        let layer = BatchNorm {
            gamma: Param::from_tensor(Tensor::ones([1], (&device, wide))),
            beta: Param::from_tensor(Tensor::zeros([1], (&device, wide))),
            ..BatchNormConfig::new(1).init_synchronized(&device, &group)
        };
        // Their mean is 1; in f32 the difference of the second would be lost.
        let own = [1.0 + 2.0_f64.powi(-40), 1.0 - 2.0_f64.powi(-40)][world.rank().index()];
        let data = TensorData::from([[own]]);
        let output = layer.forward(Tensor::<2>::from_data(data, (&device, wide)));
        output.into_data().iter::<f64>().next().unwrap()
    });
    let deviation = (2.0_f64.powi(-80) + EPSILON).sqrt();
    let expected = 2.0_f64.powi(-40) / deviation;
    for (found, expected) in means.iter().zip([expected, -expected]) {
        let apart = (found - expected).abs();
        assert!(apart <= 4.0 * f64::EPSILON / deviation, "{found}, not {expected}");
    }
}
