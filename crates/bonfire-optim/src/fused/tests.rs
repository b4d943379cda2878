use burn::module::{Module, Param, ParamGroup};
use burn::nn::Linear;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{self as burn_optim, GradientsParams, ModuleOptimizer, Optimizer};
use burn::tensor::{DType, Device, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::every_rule::every_rule;
use super::rules::*;
use super::*;

mod offload;

const STEPS: usize = 50;

/// The types and weight decays with which a rule is compared with Burn's.
pub(super) const CASES: [(DType, f32); 3] =
    [(DType::F32, 0.1), (DType::F32, 0.0), (DType::F64, 0.1)];

/// One element, odd numbers of them, and more than a thread takes at once.
const SHAPES: [[usize; 2]; 4] = [[1, 1], [3, 5], [17, 61], [257, 511]];

/// With both zeros, and from small to large.
fn numbers(seed: u64, shape: [usize; 2], dtype: DType) -> Tensor<2> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut number = |_| match random.random_range(0..10) {
        0 => 0.0,
        1 => -0.0,
        _ => random.random_range(-1.0..1.0) * 10f64.powi(random.random_range(-6..3)),
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(&mut number).collect();
    Tensor::from_data(TensorData::new(values, shape), (&Device::flex(), dtype))
}

/// The rate of a step: nothing in some.
fn rate(step: usize) -> f64 {
    match step % 7 {
        3 => 0.0,
        _ => 0.01 / (1 + step) as f64,
    }
}

fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u8> {
    tensor.to_data().as_bytes().to_vec()
}

/// Burn's configuration of an L2 penalty.
pub(super) fn penalty(penalty: f32) -> Option<WeightDecayConfig> {
    (penalty != 0.0).then(|| WeightDecayConfig::new(penalty))
}

/// Trains with both and compares the bits after each step.
#[track_caller]
pub(super) fn check<O: Optimizer, P: Optimizer>(ours: &O, theirs: &P, dtype: DType) {
    for (index, shape) in SHAPES.into_iter().enumerate() {
        let start = numbers(index as u64, shape, dtype);
        let (mut one, mut other) = (start.clone(), start.clone());
        let (mut state, mut other_state) = (None, None);
        for step in 0..STEPS {
            let gradient = numbers((100 + step) as u64, shape, dtype);
            (one, state) = ours.step(rate(step), one, gradient.clone(), state);
            (other, other_state) = theirs.step(rate(step), other, gradient, other_state);
            assert!(bits(&one) == bits(&other), "{shape:?}, step {step}");
        }
        assert!(bits(&one) != bits(&start), "{shape:?}");
    }
}

/// Burn rounds 16-bit parameters after each operation; these are rounded once per step, from master weights.
#[test]
fn sixteen_bits_are_those_of_thirty_two_rounded_once_per_step() {
    let ours = AdamWConfig::new().with_weight_decay(0.1).build();
    let theirs = burn_optim::AdamWConfig::new().with_epsilon(1e-8);
    let theirs = theirs.with_weight_decay(0.1).build();
    for dtype in [DType::F16, DType::BF16] {
        for wide_gradients in [false, true] {
            let (mut one, mut state) = (numbers(1, [37, 89], dtype), None);
            let (mut master, mut other_state) = (one.clone().cast(DType::F32), None);
            for step in 0..STEPS {
                let gradient = numbers(2 + step as u64, [37, 89], dtype);
                let wide = gradient.clone().cast(DType::F32);
                let gradient = if wide_gradients { wide.clone() } else { gradient };
                (one, state) = ours.step(rate(step), one, gradient, state);
                (master, other_state) = theirs.step(rate(step), master, wide, other_state);
                assert!(bits(&one) == bits(&master.clone().cast(dtype)), "{dtype:?}, {step}");
            }
        }
    }
}

#[test]
fn masters_follow_a_parameter_that_somebody_else_has_changed() {
    let optimizer = SgdConfig::new().build();
    let ones = Tensor::<1>::ones([3], (&Device::flex(), DType::BF16));
    let (parameter, state) = optimizer.step(1e-4, ones.clone(), ones.clone(), None);
    assert_eq!(bits(&parameter), bits(&ones), "too small a step for 8 bits");
    let loaded = Tensor::from_data([1.0, 7.0, 1.0], (&Device::flex(), DType::BF16));
    let (_, state) = optimizer.step(1e-4, loaded, ones, state);
    let master = state.unwrap().master.unwrap();
    let master: Vec<f32> = master.data().try_to_vec().unwrap();
    let stepped = |start: f32, steps| (0..steps).fold(start, |value, _| value - 1e-4);
    assert_eq!(master, [stepped(1.0, 2), stepped(7.0, 1), stepped(1.0, 2)]);
}

/// As on other devices than the CPU.
#[test]
fn operations_of_tensors_have_the_bits_of_slices() {
    let rule = |time| adamw::AdamWRule::new(AdamWConfig::new(), 0.01, time);
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let parameter = numbers(1, [33, 7], dtype);
        let wide = wide(dtype);
        let weights = || Weights {
            parameter: Offloaded::Memory(parameter.clone()),
            // Not quite the parameter's, so that it has to follow.
            master: (wide != dtype)
                .then(|| Offloaded::Memory(parameter.clone().cast(wide).mul_scalar(1.01))),
        };
        let (mut one, mut other) = (weights(), weights());
        let begin = || std::array::from_fn(|_| Offloaded::neutral(&parameter, wide, None));
        let (mut moments, mut other_moments): ([_; 2], [_; 2]) = (begin(), begin());
        for time in 1..5 {
            let gradient = numbers(1 + time as u64, [33, 7], dtype);
            let mut factors = Factors::default();
            if time > 2 {
                let factor = Tensor::<1>::from_floats([0.3], &Device::flex());
                factors.push(factor);
            }
            if time > 3 {
                factors.push(0.7);
            }
            let same = gradient.clone();
            (one, moments) = flex::step(rule(time), one, same, factors.numbers(), moments);
            (other, other_moments) =
                operations(rule(time), other, gradient, &factors, other_moments);
            let ones = moments.iter().chain(&one.master).chain([&one.parameter]);
            let others = other_moments.iter().chain(&other.master);
            for (one, other) in ones.zip(others.chain([&other.parameter])) {
                assert_eq!(one.data(), other.data(), "{dtype:?}");
            }
        }
    }
}

#[test]
fn a_step_of_rows_is_the_rows_of_the_step() {
    let rows = 301;
    let shape = [rows, 1009];
    for dtype in [DType::F32, DType::BF16] {
        let optimizer = AdamWConfig::new().build();
        let train = |range: std::ops::Range<usize>| {
            let part = |tensor: Tensor<2>| tensor.slice([range.clone()]);
            let (mut parameter, mut state) = (part(numbers(1, shape, dtype)), None);
            for step in 0..3 {
                let gradient = part(numbers(2 + step, shape, dtype));
                (parameter, state) = optimizer.step(0.01, parameter, gradient, state);
            }
            bits(&parameter)
        };
        let whole = train(0..rows);
        for cuts in [vec![150], vec![1, 2, 300], vec![100, 101, 201]] {
            let starts = [0].into_iter().chain(cuts.clone());
            let ends = cuts.iter().copied().chain([rows]);
            let parts: Vec<u8> = starts.zip(ends).flat_map(|(from, to)| train(from..to)).collect();
            assert!(parts == whole, "{dtype:?}, cut at {cuts:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let train = |threads, dtype| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let step = || {
            let [parameter, gradient] = [1, 2].map(|seed| numbers(seed, [1000, 333], dtype));
            let (parameter, _) = LionConfig::new().build().step(0.01, parameter, gradient, None);
            bits(&parameter)
        };
        pool.build().unwrap().install(step)
    };
    for dtype in [DType::F32, DType::BF16] {
        let one = train(1, dtype);
        assert!([2, 3, 8].into_iter().all(|threads| train(threads, dtype) == one));
    }
}

#[test]
fn tensors_in_any_order_are_stepped() {
    let optimizer = LionConfig::new().build();
    let [parameter, gradient] = [1, 2].map(|seed| numbers(seed, [5, 9], DType::F32));
    let (expected, _) = optimizer.step(0.1, parameter.clone(), gradient.clone(), None);
    let columns = |tensor: &Tensor<2>| {
        let data = tensor.clone().transpose().into_data();
        Tensor::<2>::from_data(data, &Device::flex()).transpose()
    };
    let (found, _) = optimizer.step(0.1, columns(&parameter), gradient.clone(), None);
    assert_eq!(bits(&found), bits(&expected));
    let (found, _) = optimizer.step(0.1, parameter, columns(&gradient), None);
    assert_eq!(bits(&found), bits(&expected));
}

/// The same values every time.
fn linear() -> Linear {
    let weight = numbers(1, [6, 3], DType::F32);
    let bias = numbers(2, [1, 3], DType::F32).reshape([3]);
    Linear {
        weight: Param::from_tensor(Tensor::from_inner(weight)),
        bias: Some(Param::from_tensor(Tensor::from_inner(bias))),
    }
}

/// Gradients of all parameters.
fn gradients(model: &Linear, step: u64) -> GradientsParams {
    let shape = [4, 6];
    let input = numbers(step, shape, DType::F32).to_device(&Device::flex());
    let input = Tensor::from_inner(input);
    GradientsParams::from_grads(model.forward(input).powi_scalar(2).mean().backward(), model)
}

/// Where a parameter is in host memory.
fn address<const D: usize>(parameter: &Param<Tensor<D>>) -> usize {
    let tensor = parameter.val().inner();
    let primitive = tensor.try_into_primitive::<burn::backend::Flex>().unwrap();
    primitive.as_slice::<f32>().unwrap().as_ptr() as usize
}

#[test]
fn a_module_is_stepped_where_it_is_unless_somebody_else_sees_it() {
    let mut optimizer = AdamWConfig::new().init();
    let mut model = linear();
    let first = address(&model.weight);
    for step in 0..2 {
        let gradients = gradients(&model, step);
        model = optimizer.step(0.01, model, gradients);
        assert_eq!(address(&model.weight), first);
    }
    let kept = model.clone();
    let before = bits(&kept.weight.val());
    let gradients = gradients(&model, 2);
    let model = optimizer.step(0.01, model, gradients);
    assert_eq!(bits(&kept.weight.val()), before);
    assert_ne!(bits(&model.weight.val()), before);
}

/// Three steps, then three with another optimizer that has the state of the first.
fn handed_over(first: ModuleOptimizer, then: ModuleOptimizer) -> Vec<u8> {
    let (mut first, mut model) = (first, linear());
    for step in 0..3 {
        let gradients = gradients(&model, step);
        model = first.step(0.01, model, gradients);
    }
    let mut then = then.from_bytes(first.into_bytes().unwrap()).unwrap();
    for step in 3..6 {
        let gradients = gradients(&model, step);
        model = then.step(0.01, model, gradients);
    }
    [bits(&model.weight.val()), bits(&model.bias.unwrap().val())].concat()
}

/// Continues records of each with each.
#[track_caller]
pub(super) fn check_records(
    ours: impl Fn() -> ModuleOptimizer,
    theirs: impl Fn() -> ModuleOptimizer,
) {
    let expected = handed_over(theirs(), theirs());
    assert_eq!(handed_over(ours(), ours()), expected);
    assert_eq!(handed_over(ours(), theirs()), expected);
    assert_eq!(handed_over(theirs(), ours()), expected);
}

#[test]
fn state_that_a_rule_does_not_have_begins_again() {
    let plain = || SgdConfig::new().init();
    let momentum = || SgdConfig::new().with_momentum(0.9).init();
    assert_ne!(handed_over(plain(), momentum()), handed_over(plain(), plain()));
    assert_ne!(handed_over(momentum(), plain()), handed_over(plain(), plain()));
}

#[test]
fn masters_are_part_of_records() {
    let make = || AdamWConfig::new().init();
    let (mut optimizer, mut restored) = (make(), make());
    let half = |model: Linear| model.map(&mut Half);
    let (mut model, mut twin) = (half(linear()), half(linear()));
    for step in 0..4 {
        let gradient = |model: &Linear| {
            let mut all = GradientsParams::new();
            let gradient = numbers(step, [6, 3], DType::BF16);
            all.register(model.weight.id, gradient);
            all
        };
        let gradients = gradient(&model);
        model = optimizer.step(1e-3, model, gradients);
        let gradients = gradient(&twin);
        twin = restored.step(1e-3, twin, gradients);
        assert_eq!(bits(&model.weight.val()), bits(&twin.weight.val()));
        restored = make().from_bytes(restored.into_bytes().unwrap()).unwrap();
    }
}

/// Makes parameters of 16 bits.
struct Half;

impl burn::module::ModuleMapper for Half {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = parameter.consume();
        Param::from_mapped_value(id, tensor.cast(DType::BF16), mapper)
    }
}

#[test]
fn groups_have_numbers_of_their_own() {
    let config = AdamWConfig::new().with_weight_decay(0.5);
    let undecayed = config.with_weight_decay(0.0).build();
    let bias = ParamGroup::from_predicate("bias");
    let mut optimizer = config.init().with_group(bias, undecayed, None);
    let model = linear();
    let mut zeros = GradientsParams::new();
    zeros.register(model.weight.id, Tensor::<2>::zeros([6, 3], &Device::flex()));
    let id = model.bias.as_ref().unwrap().id;
    zeros.register(id, Tensor::<1>::zeros([3], &Device::flex()));
    let halved = bits(&model.weight.val().inner().mul_scalar(0.5));
    let bias = bits(&model.bias.as_ref().unwrap().val());
    let model = optimizer.step(1.0, model, zeros);
    assert_eq!(bits(&model.weight.val()), halved);
    assert_eq!(bits(&model.bias.unwrap().val()), bias);
}

#[test]
fn configurations_are_read_with_defaults() {
    let read: AdamWConfig = serde_json::from_str(r#"{"beta_2": 0.95}"#).unwrap();
    assert_eq!(read, AdamWConfig::new().with_beta_2(0.95));
    fn check<C>(_: Fused<C>, _: usize, text: &str)
    where
        C: Default + PartialEq + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        assert_eq!(serde_json::from_str::<C>(text).unwrap(), C::default());
    }
    every_rule!(check("{}"));
}

#[test]
#[should_panic(expected = "1.5 is not from 0 to less than 1")]
fn a_beta_above_one_is_refused() {
    AdamWConfig::new().with_beta_2(1.5).build();
}

#[test]
fn parameters_without_elements_stay_without() {
    let empty = || Tensor::<2>::zeros([0, 3], &Device::flex());
    let (parameter, _) = AdamConfig::new().build().step(0.1, empty(), empty(), None);
    assert_eq!(parameter.dims(), [0, 3]);
}

/// Takes steps with a handle on factors, and steps whose gradients are multiplied before.
#[track_caller]
fn check_factors<C: Arithmetic>(plain: Fused<C>, _: usize, dtype: DType) {
    let handle = DeferredScale::default();
    let folding = plain.clone().with_deferred_scale(handle.clone());
    for shape in SHAPES {
        let start = numbers(1, shape, dtype);
        let (mut one, mut other) = (start.clone(), start);
        let (mut state, mut other_state) = (None, None);
        for step in 0..STEPS {
            let gradient = numbers((100 + step) as u64, shape, dtype);
            let mut factors = Factors::default();
            if step % 3 > 0 {
                factors.push(1.0 / 3.0);
            }
            if step % 3 > 1 {
                let factor = Tensor::<1>::from_floats([0.7], &Device::flex());
                factors.push(factor);
            }
            let multiplied = factors.multiply(gradient.clone());
            (other, other_state) = plain.step(rate(step), other, multiplied, other_state);
            let stepped = || folding.step(rate(step), one, gradient, state);
            let taken;
            ((one, state), taken) = handle.during(factors, stepped);
            assert_eq!(taken, 1);
            assert!(bits(&one) == bits(&other), "{shape:?}, step {step}");
        }
    }
}

#[test]
fn factors_that_an_optimizer_takes_have_the_bits_of_gradients_multiplied_before() {
    for dtype in [DType::F32, DType::F64] {
        every_rule!(check_factors(dtype));
    }
}

/// A gradient of 16 bits is multiplied in 32, and not rounded to 16 before the step.
#[test]
fn factors_of_sixteen_bits_are_those_of_thirty_two() {
    let handle = DeferredScale::default();
    let adamw = AdamWConfig::new().build();
    let folding = adamw.clone().with_deferred_scale(handle.clone());
    for dtype in [DType::F16, DType::BF16] {
        let (start, gradient) = (numbers(1, [37, 89], dtype), numbers(2, [37, 89], dtype));
        let factors = Factors::from(0.3);
        let multiplied = factors.multiply(gradient.clone().cast(DType::F32));
        let (expected, _) = adamw.step::<2>(0.01, start.clone(), multiplied, None);
        let stepped = || folding.step::<2>(0.01, start, gradient, None);
        let ((one, _), _) = handle.during(factors, stepped);
        assert!(bits(&one) == bits(&expected), "{dtype:?}");
    }
}

#[test]
fn a_step_without_factors_is_as_ever_and_two_at_once_are_refused() {
    let handle = DeferredScale::default();
    let adamw = AdamWConfig::new().build();
    let folding = adamw.clone().with_deferred_scale(handle.clone());
    check(&folding, &adamw, DType::F32);
    let nested = || handle.during(Factors::default(), || ());
    let message = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        handle.during(Factors::default(), nested);
    }));
    let message = message.unwrap_err();
    let message = message.downcast_ref::<&str>().unwrap();
    assert!(message.contains("each rank makes its own"), "{message}");
}
