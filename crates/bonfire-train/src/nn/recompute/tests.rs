//! Segments beside the same pass without them, in bits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Lora, ModuleVisitor, Param};
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{self, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, FloatDType, TensorData, activation};

use super::*;
use crate::{BatchNorm, BatchNormConfig};

const WIDTH: usize = 8;
const ROWS: usize = 6;

#[derive(Module, Debug)]
struct Residual {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Residual {
    fn new(device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
            down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inner = activation::gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.down.forward(inner)
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn blocks(device: &Device) -> Vec<Residual> {
    (0..4).map(|_| Residual::new(device)).collect()
}

/// Values from -1 to 1, the same for the same shape.
fn values<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|index| (index as f32 * 0.7).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

type Bits = Vec<u8>;

fn bits<const D: usize>(tensor: Tensor<D>) -> Bits {
    tensor.into_data().into_parts().0.to_vec()
}

/// The loss and the gradients of all parameters, none where there is none.
fn loss_and_gradients<M: Module, const D: usize>(
    model: &M,
    output: Tensor<D>,
) -> (Bits, Vec<Option<Bits>>) {
    struct Reader(Vec<Option<Bits>>, burn::tensor::Gradients);
    impl ModuleVisitor for Reader {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.base().grad(&self.1).map(bits));
        }
    }
    let loss = output.cast(FloatDType::F32).square().mean();
    let mut reader = Reader(Vec::new(), loss.backward());
    model.visit(&mut reader);
    (bits(loss), reader.0)
}

/// That a model has the same loss and gradients as a whole and in segments, on data and on inputs that need a
/// gradient.
fn check<M: Module, const D: usize, const E: usize>(
    model: &M,
    x: &Tensor<D>,
    whole: impl Fn(&M, Tensor<D>) -> Tensor<E>,
    segments: impl Fn(&M, Tensor<D>) -> Tensor<E>,
) -> Vec<Option<Bits>> {
    let expected = loss_and_gradients(model, whole(model, x.clone()));
    let found = loss_and_gradients(model, segments(model, x.clone()));
    assert_eq!(found, expected, "on data");
    let with_input = |forward: &dyn Fn(&M, Tensor<D>) -> Tensor<E>| {
        let x = Param::from_tensor(x.clone());
        // Not a leaf, as the output of another layer.
        let output = forward(model, x.val() * 1.5);
        loss_and_gradients(&(model.clone(), x), output)
    };
    assert_eq!(with_input(&segments), with_input(&whole), "on parameters");
    found.1
}

#[test]
fn residual_blocks_have_the_bits_of_the_pass_without_segments() {
    for device in [device(), device().gradient_checkpointing()] {
        let gradients = check(
            &blocks(&device),
            &values([ROWS, WIDTH], &device),
            |blocks, x| blocks.iter().fold(x, |x, block| block.forward(x)),
            |blocks, x| blocks.iter().fold(x, |x, block| recompute(block, x, Residual::forward)),
        );
        assert!(gradients.iter().all(Option::is_some));
    }
}

#[test]
fn transformer_blocks_of_burn_do_too() {
    for norm_first in [false, true] {
        let device = device();
        let config = TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 2, 2)
            .with_dropout(0.0)
            .with_norm_first(norm_first);
        let layers = || TransformerEncoderLayer::new(&config, &device);
        check(
            &vec![layers(), layers(), layers()],
            &values([2, ROWS, WIDTH], &device),
            |layers, x| layers.iter().fold(x, |x, layer| layer.forward(x, None, None)),
            |layers, x| {
                let forward = |layer: &TransformerEncoderLayer, x| layer.forward(x, None, None);
                layers.iter().fold(x, |x, layer| recompute(layer, x, forward))
            },
        );
    }
}

#[test]
fn segments_may_be_nested_and_share_blocks() {
    let device = device();
    check(
        &blocks(&device),
        &values([ROWS, WIDTH], &device),
        |blocks, x| {
            let twice = |x| blocks.iter().fold(x, |x, block| block.forward(x));
            twice(twice(x))
        },
        |blocks, x| {
            let inner = |blocks: &Vec<Residual>, x| {
                blocks.iter().fold(x, |x, block| recompute(block, x, Residual::forward))
            };
            recompute(blocks, recompute(blocks, x, inner), inner)
        },
    );
}

#[test]
fn a_block_needs_no_parameters_and_an_output_may_have_another_rank() {
    let device = device();
    check(
        &(Linear::clone(&blocks(&device)[0].up), Gelu::new()),
        &values([ROWS, WIDTH], &device),
        |(linear, gelu), x| gelu.forward(linear.forward(x)).reshape([ROWS, 4, WIDTH]),
        |(linear, gelu), x| {
            recompute(gelu, linear.forward(x), |gelu, x| gelu.forward(x).reshape([ROWS, 4, WIDTH]))
        },
    );
}

#[test]
fn two_inputs_have_their_gradients_and_one_that_is_data_has_none() {
    let device = device();
    let model = Residual::new(&device);
    let mixed = |block: &Residual, x: Tensor<2>, y: Tensor<3>| {
        block.forward(x) * y.sum_dim(0).squeeze_dim(0)
    };
    let whole = |block: &Residual, x: Tensor<2>, y| mixed(block, x, y);
    let segment = move |block: &Residual, x: Tensor<2>, y: Tensor<3>| {
        recompute(block, (x, y), move |block, (x, y)| mixed(block, x, y))
    };
    let gradients = |run: &dyn Fn(&Residual, Tensor<2>, Tensor<3>) -> Tensor<2>, is_data: bool| {
        let block = model.clone();
        let x = Param::from_tensor(values([ROWS, WIDTH], &device));
        let y = Param::from_tensor(values([2, ROWS, WIDTH], &device)).set_require_grad(!is_data);
        let output = run(&block, x.val(), y.val());
        loss_and_gradients(&(block, x, y), output)
    };
    for is_data in [false, true] {
        let found = gradients(&segment, is_data);
        assert_eq!(found, gradients(&whole, is_data));
        assert_eq!(found.1.last().unwrap().is_none(), is_data);
    }
}

#[test]
fn what_a_segment_does_not_use_has_no_gradient() {
    let device = device();
    let gradients = check(
        &blocks(&device),
        &values([ROWS, WIDTH], &device),
        |blocks, x| blocks[1].forward(x),
        |blocks, x| recompute(blocks, x, |blocks, x| blocks[1].forward(x)),
    );
    let used: Vec<bool> = gradients.iter().map(Option::is_some).collect();
    let expected: Vec<bool> = (0..24).map(|index| index / 6 == 1).collect();
    assert_eq!(used, expected);
}

#[test]
fn nor_has_what_it_uses_without_need() {
    let device = device();
    let first = |blocks: &Vec<Residual>, x: Tensor<2>| {
        let detached = blocks[1].forward(x.clone()).detach();
        blocks[0].forward(x) + detached
    };
    let gradients =
        check(&blocks(&device), &values([ROWS, WIDTH], &device), first, move |blocks, x| {
            recompute(blocks, x, first)
        });
    assert!(gradients[0].is_some() && gradients[6].is_none());
}

#[test]
fn frozen_and_adapted_parameters_are_as_ever() {
    let device = device();
    let mut frozen = blocks(&device);
    frozen[1] = frozen[1].clone().freeze();
    let adapted = blocks(&device).apply_lora(Lora::new(2, 4.0));
    for (model, trained) in [(frozen, 18), (adapted, 16)] {
        let gradients = check(
            &model,
            &values([ROWS, WIDTH], &device),
            |blocks, x| blocks.iter().fold(x, |x, block| block.forward(x)),
            |blocks, x| blocks.iter().fold(x, |x, block| recompute(block, x, Residual::forward)),
        );
        assert_eq!(gradients.iter().flatten().count(), trained);
    }
}

#[test]
fn inputs_come_back_from_host_memory_with_their_bits() {
    let device = device();
    let options =
        Recompute::default().with_inputs_in(InputPlacement::Host).with_rng_replay(RngReplay::None);
    for dtype in [FloatDType::F32, FloatDType::F64, FloatDType::BF16] {
        let gradient = |forward: &dyn Fn(Tensor<2>) -> Tensor<2>| {
            let x = Param::from_tensor(values([ROWS, WIDTH], &device).cast(dtype));
            loss_and_gradients(&x, forward(x.val() * 1.5))
        };
        let segments = |x| options.run(&Gelu::new(), x, Gelu::forward);
        assert_eq!(gradient(&segments), gradient(&|x| Gelu::new().forward(x)));
    }
}

#[test]
fn without_autodiff_a_segment_just_runs() {
    let device = device();
    let model = blocks(&device)[0].valid();
    let x = values([ROWS, WIDTH], &device.without_autodiff());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let output = recompute(&model, x.clone(), move |block, x| {
        counted.fetch_add(1, Ordering::Relaxed);
        block.forward(x)
    });
    assert!(!output.is_autodiff());
    assert_eq!(bits(output), bits(model.forward(x)));
    assert_eq!(Arc::strong_count(&runs), 1, "nothing is kept");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[test]
#[should_panic(expected = "neither an input nor a parameter of the block")]
fn a_tensor_from_outside_that_needs_a_gradient_is_refused() {
    let device = device();
    let blocks = blocks(&device);
    let other = blocks[1].clone();
    recompute(&blocks[0], values([ROWS, WIDTH], &device), move |block, x| {
        block.forward(x.clone()) + other.forward(x)
    });
}

/// A segment whose second run adds `surplus`.
fn changed(surplus: f32) {
    let device = device();
    let runs = AtomicUsize::new(0);
    let output = recompute(&blocks(&device)[0], values([ROWS, WIDTH], &device), move |block, x| {
        let again = runs.fetch_add(1, Ordering::Relaxed) > 0;
        let surplus = if again { surplus } else { 0.0 };
        block.forward(x).add_scalar(surplus)
    });
    output.sum().backward();
}

#[test]
#[should_panic(expected = "computed something else in the backward pass")]
fn another_result_in_the_second_run_is_found_out() {
    changed(1e-3);
}

#[test]
fn the_same_result_is_not() {
    changed(0.0);
    // Numbers that are none are the same if their bits are.
    let device = device();
    let x = Tensor::<1>::full([3], f32::NAN, &device).require_grad();
    let output = recompute(&Gelu::new(), x.clone(), Gelu::forward);
    let gradients = output.sum().backward();
    assert!(x.grad(&gradients).is_some());
}

/// Batch norms of both kinds.
#[derive(Module, Debug)]
struct Normed {
    own: BatchNorm,
    burns: nn::BatchNorm,
    linear: Linear,
}

impl Normed {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.burns.forward(self.own.forward(x));
        // A layer that is used twice learns twice.
        self.own.forward(activation::tanh(self.linear.forward(x)))
    }
}

#[test]
fn running_statistics_learn_from_a_batch_once() {
    let device = device();
    let start = Normed {
        own: BatchNormConfig::new(WIDTH).init(&device),
        burns: nn::BatchNormConfig::new(WIDTH).init(&device),
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
    };
    let trained = |forward: &dyn Fn(&Normed, Tensor<2>) -> Tensor<2>| {
        // Burn's running state is shared by clones.
        let model = start.valid().train();
        let mut seen = Vec::new();
        for step in 1..4 {
            let x = values([ROWS, WIDTH], &device) * step;
            seen.push(loss_and_gradients(&model, forward(&model, x)));
        }
        let model = model.valid();
        let statistics = [
            model.own.running_mean.value(),
            model.own.running_var.value(),
            model.burns.running_mean.value(),
            model.burns.running_var.value(),
        ];
        (seen, statistics.map(bits))
    };
    let expected = trained(&Normed::forward);
    let nested = |model: &Normed, x| recompute(model, x, Normed::forward);
    assert_eq!(trained(&nested), expected);
    assert_eq!(trained(&move |model, x| recompute(model, x, nested)), expected);
    assert_ne!(expected.1[0], expected.1[2]);
}

#[test]
fn inputs_in_16_bits_stay_in_16_bits() {
    let device = device();
    let x = values([ROWS, WIDTH], &device).cast(FloatDType::BF16).require_grad();
    let output = recompute(&Gelu::new(), x.clone(), Gelu::forward);
    assert_eq!(output.dtype(), DType::BF16);
    let gradients = output.sum().backward();
    assert_eq!(x.grad(&gradients).unwrap().dtype(), DType::BF16);
}
