//! Workers beside an oracle in f64, and what happens when they join, leave, differ or fail.

use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;

use bonfire_collective::{CollectiveError, ReduceOp};
use bonfire_testkit::{assert_each_says, connected, over};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::World;
use crate::diloco::OuterGradients;
use crate::world::tests::{on_ranks, world};
use oracle::{Oracle, with};

mod oracle;

const RATE: f64 = 0.05;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

impl Net {
    /// With values that depend on a seed.
    fn new(seed: u32) -> Self {
        let device = Device::flex().autodiff();
        let filled = |layer: Linear, seed| Linear {
            weight: filled(layer.weight, seed, &device),
            bias: layer.bias.map(|bias| filled(bias, seed + 1, &device)),
        };
        Self {
            first: filled(LinearConfig::new(3, 5).init(&device), seed),
            second: filled(LinearConfig::new(5, 2).init(&device), seed + 2),
        }
    }

    fn loss(&self, (worker, step): (u32, u64)) -> Tensor<1> {
        let device = Device::flex().autodiff();
        let batch = values([4, 3], 1000 + worker * 100 + step as u32, &device);
        let hidden = self.first.forward(batch).tanh();
        (self.second.forward(hidden) - 0.5).powi_scalar(2).mean()
    }

    fn all(&self) -> Vec<f32> {
        let count = floats::lengths(self).len();
        let all = floats::read(self, &(0..count).collect::<Vec<_>>()).unwrap();
        all.into_values().flatten().collect()
    }
}

fn filled<const D: usize>(param: Param<Tensor<D>>, seed: u32, device: &Device) -> Param<Tensor<D>> {
    param.map(|tensor| values(tensor.dims(), seed, device).require_grad())
}

fn values<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let value = |index| ((index as f64 + 37.0 * f64::from(seed)) * 0.7).sin() as f32;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn mesh(world: &World, workers: u32) -> Mesh {
    world.mesh(format!("dp_replicate={workers},dp_shard=-1")).unwrap()
}

/// A step of plain SGD.
fn stepped(net: Net, at: (u32, u64)) -> Net {
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    let gradients = GradientsParams::from_grads(net.loss(at).backward(), &net);
    optimizer.step(RATE, net, gradients)
}

fn config(local_steps: u64) -> DilocoConfig {
    DilocoConfig::default().with_local_steps(NonZeroU64::new(local_steps).unwrap())
}

fn steps(diloco: &mut Diloco, net: Net, worker: u32, steps: Range<u64>) -> Net {
    steps.fold(net, |net, step| diloco.step(stepped(net, (worker, step))).unwrap())
}

/// Workers that train for some steps and finish.
fn train(world: &World, workers: u32, config: DilocoConfig, count: u64) -> Vec<f32> {
    let mesh = mesh(world, workers);
    let worker = mesh.sub(Axis::DpReplicate).rank().get();
    let (mut diloco, net) = Diloco::new(Net::new(world.rank().get()), &mesh, config).unwrap();
    let net = steps(&mut diloco, net, worker, 0..count);
    assert_eq!(diloco.steps(), count);
    diloco.finish(net).unwrap().all()
}

fn trained(workers: u32, inner: u32, config: DilocoConfig, steps: u64) -> Vec<f32> {
    let mut all = on_ranks(workers * inner, |world| train(&world, workers, config, steps));
    for other in &all {
        assert_eq!(*other, all[0], "after `finish` all have the same");
    }
    all.remove(0)
}

fn distance(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    let differences = left.iter().zip(right).map(|(left, right)| (left - right).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn workers_go_the_way_of_the_paper() {
    for workers in 1..=3 {
        let expected = Oracle::trained(workers, config(4), 12);
        let found = trained(workers, 1, config(4), 12);
        let off = distance(&found, &expected);
        assert!(off < 2e-6, "{workers} workers: {off}");
        let untrained = distance(&Net::new(0).all(), &expected);
        assert!(untrained > 1e-2, "the workers have learnt something: {untrained}");
    }
}

/// Before the first exchange, between two, and with one under way.
#[test]
fn what_was_learnt_since_the_last_exchange_is_not_lost() {
    let start = Net::new(0).all();
    for fragments in [1, 3] {
        for (delay, mixing) in [(0, 0.0), (0, 0.5), (2, 0.0), (2, 0.5)] {
            let config = config(5).with_delay(delay, mixing);
            let config = config.with_fragments(NonZeroUsize::new(fragments).unwrap());
            for steps in [1, 3, 6, 7, 9, 11] {
                let expected = Oracle::trained(2, config, steps);
                let found = trained(2, 2, config, steps);
                let off = distance(&found, &expected);
                let case = format!("{fragments} fragments, delay {delay}, {mixing}, {steps} steps");
                assert!(off < 1e-5, "{case}: {off}");
                let moved = distance(&found, &start);
                assert!(moved > 1e-3, "{case}: nothing is learnt, {moved}");
            }
        }
    }
}

/// A stop between two exchanges: finished, saved and resumed, it has what was learnt.
#[test]
fn a_state_after_finish_goes_with_what_was_learnt() {
    let all = on_ranks(2, |world| {
        let mesh = mesh(&world, 2);
        let worker = world.rank().get();
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh, config(50)).unwrap();
        let net = steps(&mut diloco, net, worker, 0..10);
        let finished = diloco.finish(net).unwrap();
        let state = diloco.state().unwrap();
        let (mut diloco, net) =
            Diloco::resume(finished.clone(), &mesh, config(50), Some(state)).unwrap();
        assert_eq!(diloco.steps(), 10);
        let again = diloco.finish(net).unwrap();
        (finished.all(), again.all())
    });
    for (finished, again) in &all {
        assert_eq!((finished, again), (&all[0].0, &all[0].0));
        assert!(distance(finished, &Net::new(0).all()) > 1e-2);
    }
}

/// In any division of the work: the same sums in the same order.
#[test]
fn ranks_of_a_worker_and_fragments_without_delay_change_no_bit() {
    for kind in [OuterGradients::F32, OuterGradients::Bf16, OuterGradients::Int8] {
        let config = config(4).with_outer_gradients(kind);
        let alone = trained(2, 1, config, 8);
        assert_eq!(trained(2, 2, config, 8), alone, "{kind:?}");
        assert_eq!(trained(2, 3, config, 8), alone, "{kind:?}");
    }
}

#[test]
fn streams_with_a_delay_and_in_fewer_bits_stay_near() {
    let plain = trained(2, 1, config(4), 16);
    let moved = distance(&plain, &Net::new(0).all());
    let three = NonZeroUsize::new(3).unwrap();
    for (config, part) in [
        (config(4).with_fragments(three), 0.5),
        (config(4).with_fragments(three).with_delay(2, 0.5), 0.7),
        (config(4).with_outer_gradients(OuterGradients::Bf16), 0.02),
        (config(4).with_outer_gradients(OuterGradients::Int8), 0.02),
    ] {
        let found = trained(2, 2, config, 16);
        let off = distance(&found, &plain);
        assert!(off > 0.0 && off < part * moved, "{config:?}: {off} of {moved}");
    }
}

/// With a learning rate of one and no momentum an exchange is a mean of parameters; after every step, that is data
/// parallelism.
#[test]
fn an_exchange_after_each_step_is_data_parallelism() {
    let found = trained(2, 1, config(1).with_outer(1.0, 0.0), 6);
    let all = on_ranks(2, |world| {
        let rank = world.rank().get();
        let mut ddp = Ddp::new(Net::new(0), &world).unwrap();
        let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
        for step in 0..6 {
            let done = ddp.backward(|net| net.loss((rank, step))).unwrap();
            ddp.step(&mut optimizer, RATE, done.gradients).unwrap();
        }
        ddp.into_module().all()
    });
    let off = distance(&found, &all[0]);
    assert!(off < 1e-6, "{off}");
}

#[test]
fn a_worker_of_two_ranks_trains_with_ddp() {
    let all = on_ranks(4, |world| {
        let mesh = mesh(&world, 2);
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh, config(3)).unwrap();
        let mut ddp = Ddp::new(net, mesh.sub(Axis::DpShard)).unwrap();
        let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
        for step in 0..7 {
            let done = ddp.backward(|net| net.loss((world.rank().get(), step))).unwrap();
            ddp.step(&mut optimizer, RATE, done.gradients).unwrap();
            diloco.step_in(&mut ddp).unwrap();
        }
        assert!(matches!(diloco.state(), Err(DilocoError::UnfinishedRound)));
        diloco.finish_in(&mut ddp).unwrap();
        diloco.state().unwrap();
        ddp.into_module().all()
    });
    assert!(all.iter().all(|other| *other == all[0]));
    assert!(distance(&all[0], &Net::new(0).all()) > 1e-2);
}

#[test]
fn fifty_local_steps_send_a_fiftieth() {
    const STEPS: u64 = 100;
    let all = connected(2, over("tcp").unwrap(), |group| {
        let world = world(group);
        let mesh = mesh(&world, 2);
        let workers = mesh.sub(Axis::DpReplicate).group();
        let sent = || workers.traffic().payload_bytes_sent;
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh, config(50)).unwrap();
        let before = sent();
        let net = steps(&mut diloco, net, world.rank().get(), 0..STEPS);
        let net = diloco.finish(net).unwrap();
        let local = sent() - before;
        let mut gradients = net.all();
        let before = sent();
        for _ in 0..STEPS {
            workers.all_reduce(&mut gradients, ReduceOp::Mean).unwrap();
        }
        (local, sent() - before)
    });
    for (local, synchronous) in all {
        assert!(local > 0 && synchronous >= 40 * local, "{local} and {synchronous}");
    }
}

#[test]
fn a_training_that_is_resumed_ends_with_the_same_bits() {
    let config = config(3).with_fragments(NonZeroUsize::new(2).unwrap());
    let whole = trained(2, 2, config, 12);
    let all = on_ranks(4, |world| {
        let mesh = mesh(&world, 2);
        let worker = mesh.sub(Axis::DpReplicate).rank().get();
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh, config).unwrap();
        let net = steps(&mut diloco, net, worker, 0..6);
        // Fragments of three steps end on the third, and the first of them earlier.
        let net = diloco.finish(net).unwrap();
        let text = serde_json::to_string(&diloco.state().unwrap()).unwrap();
        let through = steps(&mut diloco, net.clone(), worker, 6..12);
        let through = diloco.finish(through).unwrap().all();
        let saved = serde_json::from_str(&text).unwrap();
        let (mut diloco, net) = Diloco::resume(net, &mesh, config, Some(saved)).unwrap();
        assert_eq!(diloco.steps(), 6);
        let net = steps(&mut diloco, net, worker, 6..12);
        (through, diloco.finish(net).unwrap().all())
    });
    for (through, resumed) in all {
        assert_eq!(through, resumed);
        assert!(distance(&through, &whole) < 0.1);
    }
}

/// Three workers; the last one leaves, and another one comes, which gets everything from those that are there.
#[test]
fn workers_leave_and_join_between_rounds() {
    let all = on_ranks(3, |world| {
        let rank = world.rank().get();
        let resume = |net, world: &World, workers, state| {
            Diloco::resume(net, &mesh(world, workers), config(2), state).unwrap()
        };
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh(&world, 3), config(2)).unwrap();
        let net = steps(&mut diloco, net, rank, 0..4);
        let first = net.all();
        let staying = world.split((rank < 2).then_some(0), 0).unwrap();
        let (mut diloco, net) = if let Some(two) = staying {
            let (mut diloco, net) = resume(net, &two, 2, Some(diloco.state().unwrap()));
            let net = steps(&mut diloco, net, rank, 4..8);
            resume(net, &world, 3, Some(diloco.state().unwrap()))
        } else {
            // With other parameters and without a state.
            resume(Net::new(9), &world, 3, None)
        };
        assert_eq!(diloco.steps(), 8);
        [first, steps(&mut diloco, net, rank, 8..10).all()]
    });
    assert!(all.iter().all(|other| *other == all[0]));
}

#[test]
fn what_cannot_be_is_said_on_all_workers() {
    let errors = on_ranks(3, |world| {
        let rank = world.rank().get();
        let mesh = mesh(&world, 3);
        let mine = config(if rank == 2 { 5 } else { 4 });
        let mismatch = Diloco::new(Net::new(0), &mesh, mine).unwrap_err();
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh, config(2)).unwrap();
        let mut net = steps(&mut diloco, net, rank, 0..2);
        let state = (rank > 0).then(|| diloco.state().unwrap());
        let newcomer = Diloco::resume(net.clone(), &mesh, config(2), state).unwrap_err();
        if rank == 1 {
            let infinite = vec![f64::INFINITY; net.all().len()];
            net = with(net, &infinite);
        }
        net = diloco.step(net).unwrap();
        let non_finite = diloco.step(net).unwrap_err();
        [mismatch, newcomer, non_finite].map(|error| error.to_string())
    });
    for [mismatch, newcomer, non_finite] in errors {
        assert!(mismatch.contains("worker 2 has other options"), "{mismatch}");
        assert!(newcomer.contains("worker 1 continues from step 2"), "{newcomer}");
        assert!(non_finite.contains("not finite after 4 steps"), "{non_finite}");
    }
}

#[test]
fn a_state_on_some_ranks_of_a_worker_is_refused_on_all() {
    let errors = on_ranks(4, |world| {
        let mesh = mesh(&world, 2);
        let (diloco, net) = Diloco::new(Net::new(0), &mesh, config(2)).unwrap();
        let state = diloco.state().unwrap();
        let state = (world.rank().get() != 3).then_some(state);
        Diloco::resume(net, &mesh, config(2), state).unwrap_err()
    });
    assert_each_says(errors, &["the ranks of worker 1 do not"]);
}

#[test]
fn options_without_a_meaning_are_refused() {
    for (config, word) in [
        (config(4).with_delay(4, 0.0), "delay"),
        (config(4).with_delay(0, 1.0), "mixing"),
        (config(4).with_outer(0.0, 0.9), "outer_rate"),
        (config(4).with_outer(0.7, 1.0), "outer_momentum"),
        (config(4).with_fragments(NonZeroUsize::new(5).unwrap()), "fragments"),
    ] {
        let errors =
            on_ranks(2, |world| Diloco::new(Net::new(0), &mesh(&world, 2), config).unwrap_err());
        assert_each_says(errors, &[word]);
    }
}

#[test]
fn a_worker_that_ends_is_named() {
    let found = on_ranks(3, |world| {
        let rank = world.rank().get();
        let mesh = mesh(&world, 3);
        let train = || -> Result<(), DilocoError> {
            // The others may hear of rank 1 in here already.
            let (mut diloco, mut net) = Diloco::new(Net::new(0), &mesh, config(2))?;
            for step in 0..2 {
                if rank == 1 && step == 1 {
                    mesh.sub(Axis::DpReplicate).group().abort("out of memory");
                    return Ok(());
                }
                net = diloco.step(stepped(net, (rank, step)))?;
            }
            Ok(())
        };
        match train() {
            Ok(()) => None,
            Err(DilocoError::Train(TrainError::Collective(error))) => Some(error),
            Err(error) => panic!("{error}"),
        }
    });
    for rank in [0, 2] {
        let error: &CollectiveError = found[rank].as_ref().unwrap();
        assert!(error.to_string().contains("out of memory"), "{error}");
    }
}
