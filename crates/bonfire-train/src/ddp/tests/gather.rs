//! Parameters are gathered before they are used, in the order of the last pass.

use super::*;
use crate::{GradientRoute, Placement};

/// Two layers alike, each with one parameter that is cut.
#[derive(Module, Debug)]
struct Pair {
    first: Linear,
    second: Linear,
}

const WIDTH: usize = 64;

impl Pair {
    fn new(device: &Device) -> Self {
        let layer = || {
            let config = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
            config.init(device)
        };
        let model = Self { first: layer(), second: layer() };
        seeded(model, 1)
    }

    fn loss(&self, order: [&Linear; 2], device: &Device, mut used: impl FnMut()) -> Tensor<1> {
        let mut x = Tensor::<2>::ones([2, WIDTH], device);
        for layer in order {
            x = activation::tanh(layer.forward(x));
            used();
        }
        x.powi_scalar(2).mean()
    }
}

#[test]
fn the_next_parameter_is_gathered_while_the_last_one_is_used() {
    let seen = on_ranks(2, |world| {
        let device = world.device();
        let config = small_buckets().with_placement(Placement::zero3());
        let mut ddp = Ddp::with_config(Pair::new(&device), &world, config).unwrap();
        let gatherer = Arc::clone(ddp.gatherer.as_ref().unwrap());
        let pass = |_: usize| {
            let mut ahead = Vec::new();
            let used = || ahead.push(gatherer.ahead());
            let loss = |model: &Pair| model.loss([&model.first, &model.second], &device, used);
            ddp.backward(loss).unwrap();
            assert_eq!(gatherer.ahead(), None, "the pass is over");
            ahead
        };
        (0..3).map(pass).collect::<Vec<_>>()
    });
    // The backward pass begins with the last layer.
    let ahead = vec![Some(1), Some(1)];
    for seen in seen {
        assert_eq!(seen, [vec![None; 2], ahead.clone(), ahead.clone()]);
    }
}

#[test]
fn the_order_may_change_from_step_to_step() {
    let with = |placement| {
        one_of(on_ranks(2, |world| {
            let device = world.device();
            let config = small_buckets().with_placement(placement);
            let mut ddp = Ddp::with_config(Pair::new(&device), &world, config).unwrap();
            let mut optimizer = AdamWConfig::new().init();
            for step in [0, 0, 0, 1, 1, 0, 1, 2, 2, 0] {
                let loss = |model: &Pair| {
                    let Pair { first, second } = model;
                    let orders = [[first, second], [second, first], [first, first]];
                    model.loss(orders[step], &device, || ())
                };
                take_step(&mut ddp, &mut optimizer, 0.01, loss);
            }
            bits(&ddp.whole().unwrap())
        }))
    };
    assert!(with(Placement::zero3()) == with(Placement::replicated()));
}

/// Devices gather what they are given: without a comparison the ranks would compute with rows of two parameters.
#[test]
fn ranks_that_use_parameters_in_different_orders_are_told_so_on_both_ways() {
    for route in [GradientRoute::Host, GradientRoute::Device] {
        let errors = on_ranks(2, |world| {
            let device = world.device();
            let config = small_buckets().with_placement(Placement::zero3()).with_route(route);
            let mut ddp = Ddp::with_config(Pair::new(&device), &world, config).unwrap();
            let gatherer = ddp.gatherer.as_ref().unwrap();
            assert_eq!(gatherer.has_lane(), route == GradientRoute::Device);
            let loss = |model: &Pair| {
                let Pair { first, second } = model;
                let order = if world.is_main() { [first, second] } else { [second, first] };
                model.loss(order, &device, || ())
            };
            ddp.backward(loss).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("first.weight") || text.contains("second.weight"), "{text}");
        }
    }
}
