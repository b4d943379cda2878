//! Every placement trains to the bits of plain data parallelism, with the memory and the bytes of its formula.

use std::num::NonZeroU32;

use bonfire_collective::TransportKind;
use bonfire_plan::{Layout, ShardGroup, ShardUnit, WorldSize};
use burn::grad_clipping::GradientClippingConfig;
use burn::module::ParamGroup;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdafactorConfig, LambConfig, MuonConfig};

use super::*;
use crate::reducer::collect::Site;
use crate::{BatchNorm, BatchNormConfig, GradientCompression, GradientRoute, Placement};

mod folded;
mod resumed;
mod views;

/// Parameters whose rows do not divide, of which there are fewer than ranks, and that are small.
#[derive(Module, Debug)]
pub(super) struct Uneven {
    /// 8 rows of 131.
    first: Linear,
    /// Small.
    second: Linear,
    /// Two rows of 600.
    third: Linear,
    /// 600 rows of 4.
    fourth: Linear,
}

impl Uneven {
    pub(super) fn new(device: &Device) -> Self {
        let model = Self {
            first: LinearConfig::new(INPUTS, 131).init(device),
            second: LinearConfig::new(131, 2).init(device),
            third: LinearConfig::new(2, 600).init(device),
            fourth: LinearConfig::new(600, OUTPUTS).init(device),
        };
        seeded(model, 1)
    }

    pub(super) fn loss(&self, indices: &[usize]) -> Tensor<1> {
        // A bias that is not cut.
        let bias = self.second.bias.as_ref().unwrap();
        let (x, y) = samples(indices, &bias.device());
        let x = activation::tanh(self.first.forward(x));
        let x = activation::tanh(self.second.forward(x));
        let x = activation::tanh(self.third.forward(x));
        (self.fourth.forward(x) - y).powi_scalar(2).mean()
    }
}

const SHARDED: [Placement; 5] =
    [Placement::zero1(), Placement::zero2(), Placement::zero3(), WHOLE[0], WHOLE[1]];

fn placed(placement: Placement) -> DdpConfig {
    small_buckets().with_placement(placement)
}

const WHOLE: [Placement; 2] =
    [Placement::zero1().of_whole_parameters(), Placement::zero2().of_whole_parameters()];

/// With momentum on one layer, and moments on the others.
fn optimizer() -> ModuleOptimizer {
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let first = ParamGroup::from_predicate("first");
    AdamWConfig::new().init().with_group(first, momentum.build(), None)
}

/// Each group looks at all elements of a parameter.
fn whole_optimizer() -> ModuleOptimizer {
    let clipping = GradientClippingConfig::Norm(0.05);
    let second = ParamGroup::from_predicate("second");
    let fourth = ParamGroup::from_predicate("fourth.weight");
    let optimizer = AdafactorConfig::new().init();
    optimizer.with_group(second, LambConfig::new().build(), Some(clipping.init())).with_group(
        fourth,
        MuonConfig::new().build(),
        None,
    )
}

/// Some steps of some micro-batches each, clipped.
fn trained(
    world: &World,
    config: DdpConfig,
    (micro_batches, mut optimizer): (usize, ModuleOptimizer),
) -> Bits {
    let on_devices = config.route == GradientRoute::Device;
    let mut ddp = Ddp::with_config(Uneven::new(&world.device()), world, config).unwrap();
    assert_cut(&ddp);
    assert_eq!(ddp.reducer.lock().site() == Site::Device, on_devices);
    // The norm is exchanged there, too.
    assert_eq!(ddp.devices.is_some(), on_devices && world.world_size() > WorldSize::ONE);
    if let Some(gatherer) = &ddp.gatherer {
        assert_eq!(gatherer.has_lane(), on_devices);
    }
    for step in 0..5 {
        for micro_batch in 1..micro_batches {
            let indices = share(world, 100 * step + micro_batch, 2);
            ddp.no_sync(|model| model.loss(&indices)).unwrap();
        }
        let indices = share(world, 100 * step, 2);
        let done = ddp.backward(|model| model.loss(&indices)).unwrap();
        let gradients = done.gradients.clip(Clip::Norm(0.1)).unwrap();
        gradients.check_finite().unwrap();
        ddp.step(&mut optimizer, 0.01, gradients).unwrap();
    }
    bits(&ddp.whole().unwrap())
}

#[test]
fn every_placement_trains_to_the_same_bits() {
    assert_placements_alike(GradientRoute::Auto);
}

/// Gradients, rows and complete parameters go from device to device, on the tests' engine.
#[test]
fn every_placement_trains_to_the_same_bits_on_devices() {
    assert_placements_alike(GradientRoute::Device);
}

fn assert_placements_alike(route: GradientRoute) {
    for ranks in [1, 2, 3, 4] {
        for micro_batches in [1, 3] {
            let with = |config: DdpConfig| {
                one_of(on_ranks(ranks, |world| {
                    trained(&world, config.clone(), (micro_batches, optimizer()))
                }))
            };
            let reference = with(small_buckets());
            for placement in SHARDED {
                for bucket_bytes_max in [1, 5000, 25 << 20] {
                    let config = placed(placement).with_bucket_bytes_max(bucket_bytes_max);
                    assert!(
                        with(config.with_route(route)) == reference,
                        "{placement} on {ranks} ranks in buckets of {bucket_bytes_max} bytes, \
                         {micro_batches} micro-batches, {route}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_optimizer_of_whole_parameters_trains_to_the_same_bits() {
    for ranks in [1, 2, 3, 4] {
        let with = |placement| {
            let training = || (2, whole_optimizer());
            one_of(on_ranks(ranks, |world| trained(&world, placed(placement), training())))
        };
        let reference = with(Placement::replicated());
        for placement in WHOLE {
            assert!(with(placement) == reference, "{placement} on {ranks} ranks");
        }
    }
}

#[test]
fn copies_of_shards_are_the_same_in_every_placement() {
    let among = |ranks| ShardGroup::Ranks(NonZeroU32::new(ranks).unwrap());
    let with = |placement: Placement| {
        let training = || (2, optimizer());
        one_of(on_ranks(4, |world| trained(&world, placed(placement), training())))
    };
    let replicated = with(Placement::replicated());
    // One copy, or four whole ones.
    assert!(with(Placement::zero3().among(among(4))) == replicated);
    assert!(with(Placement::zero3().among(ShardGroup::Host)) == replicated);
    assert!(with(Placement::zero2().among(among(1))) == replicated);
    // Two copies: the sum of two sums of two is rounded otherwise than the sum of four.
    let halves = with(Placement::zero1().among(among(2)));
    for placement in SHARDED {
        assert!(with(placement.among(among(2))) == halves, "{placement}");
    }
    assert!(halves != replicated);
    let values = |bits: Bits| -> Vec<f64> {
        let values = bits.into_iter().flat_map(|(_, values)| values);
        values.map(f64::from_bits).collect()
    };
    for (half, whole) in values(halves).into_iter().zip(values(replicated)) {
        assert!((half - whole).abs() < 1e-3, "{half} and {whole}");
    }
}

#[test]
fn an_error_of_one_copy_ends_the_others() {
    for placement in SHARDED {
        let errors = on_ranks(4, |world| {
            let two = ShardGroup::Ranks(NonZeroU32::new(2).unwrap());
            let config = placed(placement.among(two));
            // A slow rank may still set up when rank 3 fails.
            let ddp = Ddp::with_config(Uneven::new(&world.device()), &world, config);
            let done = ddp.and_then(|mut ddp| {
                ddp.backward(|model| match world.rank().get() {
                    3 => Err(std::io::Error::other("no data")),
                    _ => Ok(model.loss(&share(&world, 0, 2))),
                })
            });
            done.unwrap_err()
        });
        assert_each_says(errors, &["no data"]);
    }
}

#[test]
fn groups_of_different_sizes_are_refused_by_name() {
    let errors = on_ranks(3, |world| {
        let two = NonZeroU32::new(2).unwrap();
        let placement = Placement::zero1().among(ShardGroup::Ranks(two));
        Ddp::with_config(Mlp::new(1, &world.device()), &world, placed(placement)).unwrap_err()
    });
    assert_each_says(errors, &["zero1@2", "[2, 2, 1]"]);
}

#[test]
fn ranks_hold_and_send_what_the_formulas_say() {
    // Large enough that what else is sent is little. The first layer is small: its parameters are not needed
    // again in the backward pass.
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).with_bias(false);
    let model = |device: &Device| {
        let layers: Vec<Linear> = vec![layer(1, 300).init(device), layer(300, 500).init(device)];
        seeded(layers, 1)
    };
    let loss = |model: &Vec<Linear>, device: &Device| {
        let x = model[0].forward(Tensor::<2>::ones([2, 1], device));
        model[1].forward(x).powi_scalar(2).mean()
    };
    let options = GroupOptions::default().with_transport(Some(TransportKind::Tcp));
    let two = ShardGroup::Ranks(NonZeroU32::new(2).unwrap());
    // Ranks of each copy, and copies.
    let cases = [
        (Placement::replicated(), 1, (3, 1)),
        (Placement::zero1(), 1, (3, 1)),
        (Placement::zero1(), 4, (3, 1)),
        (Placement::zero2(), 4, (3, 1)),
        (Placement::zero1().of_whole_parameters(), 1, (3, 1)),
        (Placement::zero2().of_whole_parameters(), 4, (3, 1)),
        (Placement::zero3(), 1, (3, 1)),
        (Placement::zero3(), 4, (3, 1)),
        (Placement::zero1().among(two), 1, (2, 2)),
        (Placement::zero3().among(two), 4, (2, 2)),
    ];
    for (placement, micro_batches, (ranks, copies)) in cases {
        let found = connected(ranks * copies, options.clone(), |group| {
            let world = world(group);
            let device = world.device();
            let config = DdpConfig::default().with_placement(placement);
            let mut ddp = Ddp::with_config(model(&device), &world, config).unwrap();
            let mut optimizer = AdamWConfig::new().init();
            let groups = [
                Some(world.group().clone()),
                ddp.shards.groups().copies().map(|_| ddp.shards.groups().shards().clone()),
                ddp.shards.groups().copies().cloned(),
            ];
            let traffic = || -> u64 {
                let groups = groups.iter().flatten();
                groups.map(|group| group.traffic().payload_bytes_sent).sum()
            };
            let mut sent = 0;
            for _ in 0..4 {
                let before = traffic();
                for _ in 1..micro_batches {
                    ddp.no_sync(|model| loss(model, &device)).unwrap();
                }
                take_step(&mut ddp, &mut optimizer, 0.01, |model| loss(model, &device));
                sent = traffic() - before;
            }
            (sent, optimizer.into_bytes().unwrap().len())
        });
        let shard_ranks = WorldSize::new(ranks).unwrap();
        let layout = Layout::new([&[1, 300][..], &[300, 500]], placement, shard_ranks);
        let sent = found.iter().map(|(sent, _)| *sent as f64).sum::<f64>() / found.len() as f64;
        let formula = 4.0 * layout.elems_sent(micro_batches, copies);
        // A broadcast that takes all links at once sends 1/3 more with three ranks; that is half of what is sent.
        let most = match placement.unit {
            ShardUnit::Rows => 1.01,
            ShardUnit::Parameters => 1.01 + 1.0 / 6.0,
        };
        assert!(
            (0.99..most).contains(&(sent / formula)),
            "{placement}: {sent} bytes sent for {micro_batches} micro-batches, {formula} by the formula"
        );
        for (rank, (_, record)) in shard_ranks.ranks().cycle().zip(found) {
            let moments = 2 * 4 * layout.held(placement.optimizer, rank);
            let names = record - moments;
            assert!(names < 5000, "{placement}: {record} bytes of state for {moments}");
        }
    }
}

#[test]
fn gradients_that_are_not_finite_in_the_rows_of_one_rank_are_named_on_all() {
    let errors = on_ranks(3, |world| {
        let device = world.device();
        let config = placed(Placement::zero1());
        let mut ddp = Ddp::with_config(Uneven::new(&device), &world, config).unwrap();
        let done = ddp.backward(|model| {
            // Only the last row of a weight has an infinite gradient.
            let mut weights = vec![1.0; 600 * OUTPUTS];
            *weights.last_mut().unwrap() = f32::INFINITY;
            let weights = Tensor::<1>::from_floats(&weights[..], &device);
            (model.fourth.weight.val() * weights.reshape([600, OUTPUTS])).sum().reshape([1])
        });
        done.unwrap().gradients.check_finite().unwrap_err()
    });
    assert_each_says(errors, &["fourth.weight and of 0 other"]);
}

#[test]
fn a_parameter_without_a_gradient_stays_as_it_is() {
    let with = |placement| {
        on_ranks(2, |world| {
            let device = world.device();
            let mut ddp =
                Ddp::with_config(Uneven::new(&device), &world, placed(placement)).unwrap();
            let mut optimizer = optimizer();
            for _ in 0..2 {
                take_step(&mut ddp, &mut optimizer, 0.01, |model| {
                    let x = Tensor::<2>::ones([1, INPUTS], &device);
                    model.first.forward(x).powi_scalar(2).mean()
                });
            }
            bits(&ddp.whole().unwrap())
        })
    };
    let start = bits(&Uneven::new(&Device::flex()));
    let replicated = with(Placement::replicated());
    for placement in SHARDED {
        let sharded = with(placement);
        assert!(sharded == replicated, "{placement}");
        assert_ne!(sharded[0][0], start[0]);
        assert_eq!(sharded[0].last(), start.last());
    }
}

#[test]
fn an_optimizer_that_needs_whole_parameters_is_refused_by_name() {
    type Make = fn() -> ModuleOptimizer;
    let whole: [(&str, Make); 4] = [
        ("the optimizer of parameter", || MuonConfig::new().init()),
        ("the optimizer of parameter", || LambConfig::new().init()),
        ("the optimizer of parameter", || AdafactorConfig::new().init()),
        ("gradient clipping", || {
            let clipping = GradientClippingConfig::Norm(1.0);
            SgdConfig::new().with_gradient_clipping(Some(clipping)).init()
        }),
    ];
    for (who, make) in whole {
        let errors = on_ranks(2, |world| {
            let device = world.device();
            // Without biases, which Muon does not take.
            let model = LinearConfig::new(64, 32).with_bias(false).init(&device);
            let config = placed(Placement::zero1());
            let mut ddp = Ddp::with_config(model, &world, config).unwrap();
            let x = Tensor::<2>::ones([1, 64], &device);
            let done = ddp.backward(|model| model.forward(x).mean()).unwrap();
            let result = ddp.step(&mut make(), 0.01, done.gradients);
            // Nothing has happened to the model.
            assert_eq!(ddp.module().weight.dims(), [64, 32]);
            result.unwrap_err()
        });
        for error in errors {
            assert!(matches!(error, TrainError::RowsDiffer { .. } | TrainError::Collective(_)));
            let text = error.to_string();
            assert!(text.contains(who) && text.contains("zero1"), "{text}");
        }
    }
}

#[test]
fn what_goes_with_no_shards_is_refused_by_name() {
    let zero1 = placed(Placement::zero1());
    let zero3 = placed(Placement::zero3().of_whole_parameters());
    for (config, part) in [
        (zero3, "zero2().of_whole_parameters()"),
        (zero1.with_compression(GradientCompression::Bf16), "compressed"),
    ] {
        let errors = on_ranks(2, |world| {
            Ddp::with_config(Mlp::new(1, &world.device()), &world, config.clone()).unwrap_err()
        });
        assert!(errors.iter().any(|error| error.to_string().contains(part)), "{errors:?}");
    }
}

/// Two layers alike, behind running statistics that are no parameters.
#[derive(Module, Debug)]
struct Twins {
    norm: BatchNorm,
    left: Linear,
    right: Linear,
}

#[test]
fn a_rank_without_samples_learns_that_the_others_gather_parameters() {
    let errors = on_ranks(2, |world| {
        let config = placed(Placement::zero3());
        let mut ddp = Ddp::with_config(Uneven::new(&world.device()), &world, config).unwrap();
        let samples = if world.is_main() { 2 } else { 0 };
        let loss = |model: &Uneven| Loss::mean_over(model.loss(&[1, 2]), samples);
        ddp.backward(loss).unwrap_err()
    });
    assert_each_says(errors, &["loss counts no samples"]);
}

#[test]
fn ranks_that_use_parameters_in_another_order_hear_which() {
    type Forward = fn(&Twins, Tensor<2>) -> Tensor<2>;
    let usual: Forward = |twins, x| twins.right.forward(twins.left.forward(x));
    let others: [Forward; 3] = [
        |twins, x| twins.left.forward(twins.right.forward(x)),
        |twins, x| twins.left.forward(x),
        |twins, x| twins.right.forward(x),
    ];
    // In the first step nothing is gathered ahead, later the parameter that the others used next.
    let cases = others.into_iter().flat_map(|other| [(other, 0), (other, 3)]);
    for (other, earlier) in cases {
        let errors = on_ranks(2, |world| {
            let device = world.device();
            let layer = || LinearConfig::new(64, 64).with_bias(false).init(&device);
            let norm = BatchNormConfig::new(64).init(&device);
            let model = Twins { norm, left: layer(), right: layer() };
            let config = placed(Placement::zero3());
            let mut ddp = Ddp::with_config(model, &world, config).unwrap();
            let x = Tensor::<2>::ones([1, 64], &device);
            for _ in 0..earlier {
                let x = x.clone();
                ddp.backward(|model| usual(model, x).mean()).unwrap();
            }
            let forward = [usual, other][world.rank().index()];
            let done = ddp.backward(|model| forward(model, x).mean());
            done.unwrap_err().to_string()
        });
        let named = |name| errors.iter().any(|error| error.contains(name));
        assert!(named("parameter left.weight") || named("parameter right.weight"), "{errors:?}");
        // In what is recorded, too.
        let recorded =
            ["left", "right"].map(|name| format!("Ddp::backward (parameter {name}.weight)"));
        assert!(recorded.iter().any(|text| named(text)), "{errors:?}");
        assert_each_says(&errors, &["disagree"]);
    }
}
