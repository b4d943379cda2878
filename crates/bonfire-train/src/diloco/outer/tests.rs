//! Workers beside an oracle in f64, and what happens when they join, leave, differ or fail.

use std::num::{NonZeroU64, NonZeroUsize};

use crate::{DeviceKind, LocalRank, World};
use bonfire_collective::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
use bonfire_testkit::{connected, local, over};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};

use super::*;
use crate::diloco::OuterGradients;

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

fn world(group: ProcessGroup) -> World {
    let local =
        LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() };
    World::new(group, local, DeviceKind::Cpu).unwrap()
}

fn mesh(world: &World, workers: u32) -> Mesh {
    let shape = format!("dp_replicate={workers},dp_shard=-1");
    world.mesh(shape).unwrap()
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

/// Workers that train for some steps and finish.
fn train(world: &World, workers: u32, config: DilocoConfig, steps: u64) -> Vec<f32> {
    let mesh = mesh(world, workers);
    let worker = mesh.sub(Axis::DpReplicate).rank().get();
    let (mut diloco, mut net) = Diloco::new(Net::new(world.rank().get()), &mesh, config).unwrap();
    for step in 0..steps {
        net = diloco.step(stepped(net, (worker, step))).unwrap();
    }
    assert_eq!(diloco.steps(), steps);
    diloco.finish(net).unwrap().all()
}

fn trained(workers: u32, inner: u32, config: DilocoConfig, steps: u64) -> Vec<f32> {
    let ranks = workers * inner;
    let all =
        local(ranks, GroupOptions::default(), |group| train(&world(group), workers, config, steps));
    for other in &all {
        assert_eq!(*other, all[0], "after `finish` all have the same");
    }
    all.into_iter().next().unwrap()
}

/// What the papers say, in f64 but for the inner steps.
struct Oracle {
    config: DilocoConfig,
    common: Vec<f64>,
    momentum: Vec<f64>,
    nets: Vec<Net>,
    fragments: Vec<OracleFragment>,
}

#[derive(Default)]
struct OracleFragment {
    elements: Vec<usize>,
    /// When the exchange under way ends, and the mean of the differences.
    exchange: Option<(u64, Vec<f64>)>,
    /// Whether workers have gone their own ways since.
    differs: bool,
}

impl Oracle {
    fn trained(workers: u32, config: DilocoConfig, steps: u64) -> Vec<f32> {
        let net = Net::new(0);
        let lengths = floats::lengths(&net);
        let first = |index: usize| lengths[..index].iter().sum::<usize>();
        let elements = |index: usize| first(index)..first(index) + lengths[index];
        let fragments = assign(&lengths, config.fragments.get()).into_iter();
        let fragments = fragments.map(|parameters| OracleFragment {
            elements: parameters.into_iter().flat_map(elements).collect(),
            ..OracleFragment::default()
        });
        let common: Vec<f64> = net.all().into_iter().map(f64::from).collect();
        let mut oracle = Self {
            config,
            momentum: vec![0.0; common.len()],
            common,
            nets: vec![net; workers as usize],
            fragments: fragments.collect(),
        };
        for step in 1..=steps {
            oracle.step(step);
        }
        oracle.finish(steps);
        oracle.common.into_iter().map(|value| value as f32).collect()
    }

    fn step(&mut self, step: u64) {
        let nets = (0..).zip(std::mem::take(&mut self.nets));
        let nets = nets.map(|(worker, net)| stepped(net, (worker, step - 1)));
        self.nets = nets.collect();
        for index in 0..self.fragments.len() {
            let fragment = &mut self.fragments[index];
            fragment.differs = true;
            if matches!(fragment.exchange, Some((ends, _)) if ends == step) {
                self.end(index, self.config.mixing);
            }
            if self.config.begins(index, step) {
                self.begin(index, step);
                if self.config.delay == 0 {
                    self.end(index, self.config.mixing);
                }
            }
        }
    }

    fn begin(&mut self, index: usize, step: u64) {
        let all: Vec<Vec<f32>> = self.nets.iter().map(Net::all).collect();
        let fragment = &mut self.fragments[index];
        let difference = |element: &usize| {
            let common = self.common[*element];
            let each = all.iter().map(|own| common - f64::from(own[*element]));
            each.sum::<f64>() / all.len() as f64
        };
        let mean = fragment.elements.iter().map(difference).collect();
        fragment.exchange = Some((step + self.config.delay, mean));
        fragment.differs = false;
    }

    fn end(&mut self, index: usize, mixing: f64) {
        let Self { config, common, momentum, .. } = self;
        let fragment = &mut self.fragments[index];
        let (_, mean) = fragment.exchange.take().unwrap();
        for (element, gradient) in fragment.elements.iter().copied().zip(mean) {
            let momentum = &mut momentum[element];
            *momentum = config.outer_momentum * *momentum + gradient;
            common[element] -= config.outer_rate * (gradient + config.outer_momentum * *momentum);
        }
        fragment.differs &= mixing > 0.0;
        for net in &mut self.nets {
            let mut all: Vec<f64> = net.all().into_iter().map(f64::from).collect();
            for element in fragment.elements.iter().copied() {
                all[element] = mixing * all[element] + (1.0 - mixing) * common[element];
            }
            *net = with(net.clone(), &all);
        }
    }

    fn finish(&mut self, step: u64) {
        for index in 0..self.fragments.len() {
            if self.fragments[index].exchange.is_some() {
                self.end(index, self.config.mixing);
            }
            if self.fragments[index].differs {
                // The mean of the parameters, without the outer optimizer.
                self.begin(index, step);
                let (_, mean) = self.fragments[index].exchange.take().unwrap();
                let elements = self.fragments[index].elements.iter().zip(mean);
                elements.for_each(|(element, gradient)| self.common[*element] -= gradient);
            }
        }
    }
}

/// A model with these parameters.
fn with(net: Net, all: &[f64]) -> Net {
    let mut rest = all;
    let mut parts = BTreeMap::new();
    for (index, len) in floats::lengths(&net).into_iter().enumerate() {
        let (part, after) = rest.split_at(len);
        parts.insert(index, part.iter().map(|value| *value as f32).collect());
        rest = after;
    }
    floats::write(net, parts, 0.0)
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
    let all = local(2, GroupOptions::default(), |group| {
        let world = world(group);
        let mesh = mesh(&world, 2);
        let worker = world.rank().get();
        let (mut diloco, mut net) = Diloco::new(Net::new(0), &mesh, config(50)).unwrap();
        for step in 0..10 {
            net = diloco.step(stepped(net, (worker, step))).unwrap();
        }
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
        assert_eq!(trained(2, 2, config, 8), alone, "{kind}");
        assert_eq!(trained(2, 3, config, 8), alone, "{kind}");
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
    let all = local(2, GroupOptions::default(), |group| {
        let rank = group.rank().get();
        let mut ddp = Ddp::new(Net::new(0), &world(group)).unwrap();
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
    let all = local(4, GroupOptions::default(), |group| {
        let world = world(group);
        let mesh = mesh(&world, 2);
        let (mut diloco, net) = Diloco::new(Net::new(0), &mesh, config(3)).unwrap();
        let mut ddp = Ddp::new(net, mesh.sub(Axis::DpShard)).unwrap();
        let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
        let mut losses = Vec::new();
        for step in 0..7 {
            let done = ddp.backward(|net| net.loss((world.rank().get(), step))).unwrap();
            losses.push(done.loss);
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
        let (mut diloco, mut net) = Diloco::new(Net::new(0), &mesh, config(50)).unwrap();
        let before = sent();
        for step in 0..STEPS {
            net = diloco.step(stepped(net, (world.rank().get(), step))).unwrap();
        }
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
    let all = local(4, GroupOptions::default(), |group| {
        let world = world(group);
        let mesh = mesh(&world, 2);
        let worker = mesh.sub(Axis::DpReplicate).rank().get();
        let (mut diloco, mut net) = Diloco::new(Net::new(0), &mesh, config).unwrap();
        let mut state = None;
        for step in 0..12 {
            if step == 6 {
                // Fragments of three steps end on the third, and the first of them earlier.
                net = diloco.finish(net).unwrap();
                state = Some((diloco.state().unwrap(), net.clone()));
            }
            net = diloco.step(stepped(net, (worker, step))).unwrap();
        }
        let through = diloco.finish(net).unwrap().all();
        let (saved, net) = state.unwrap();
        let text = serde_json::to_string(&saved).unwrap();
        let saved = serde_json::from_str(&text).unwrap();
        let (mut diloco, mut net) = Diloco::resume(net, &mesh, config, Some(saved)).unwrap();
        assert_eq!(diloco.steps(), 6);
        for step in 6..12 {
            net = diloco.step(stepped(net, (worker, step))).unwrap();
        }
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
    let all = local(3, GroupOptions::default(), |group| {
        let world = world(group);
        let rank = world.rank().get();
        let (mut diloco, mut net) = Diloco::new(Net::new(0), &mesh(&world, 3), config(2)).unwrap();
        let mut results = Vec::new();
        for step in 0..4 {
            net = diloco.step(stepped(net, (rank, step))).unwrap();
        }
        results.push(net.all());
        let staying = world.split((rank < 2).then_some(0), 0).unwrap();
        if let Some(two) = staying {
            let state = diloco.state().unwrap();
            let (mut diloco, mut net) =
                Diloco::resume(net, &mesh(&two, 2), config(2), Some(state)).unwrap();
            for step in 4..8 {
                net = diloco.step(stepped(net, (rank, step))).unwrap();
            }
            let state = diloco.state().unwrap();
            let (mut diloco, mut net) =
                Diloco::resume(net, &mesh(&world, 3), config(2), Some(state)).unwrap();
            for step in 8..10 {
                net = diloco.step(stepped(net, (rank, step))).unwrap();
            }
            results.push(net.all());
        } else {
            // It joins again, with other parameters and without a state.
            let (mut diloco, mut net) =
                Diloco::resume(Net::new(9), &mesh(&world, 3), config(2), None).unwrap();
            assert_eq!(diloco.steps(), 8);
            for step in 8..10 {
                net = diloco.step(stepped(net, (rank, step))).unwrap();
            }
            results.push(net.all());
        }
        results
    });
    assert!(all.iter().all(|other| *other == all[0]));
}

#[test]
fn what_cannot_be_is_said_on_all_workers() {
    let errors = local(3, GroupOptions::default(), |group| {
        let world = world(group);
        let rank = world.rank().get();
        let mesh = mesh(&world, 3);
        let mine = config(if rank == 2 { 5 } else { 4 });
        let mismatch = Diloco::new(Net::new(0), &mesh, mine).unwrap_err();
        let (mut diloco, mut net) = Diloco::new(Net::new(0), &mesh, config(2)).unwrap();
        for step in 0..2 {
            net = diloco.step(stepped(net, (rank, step))).unwrap();
        }
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
    let errors = local(4, GroupOptions::default(), |group| {
        let world = world(group);
        let mesh = mesh(&world, 2);
        let (diloco, net) = Diloco::new(Net::new(0), &mesh, config(2)).unwrap();
        let state = diloco.state().unwrap();
        let state = (world.rank().get() != 3).then_some(state);
        let refused = Diloco::resume(net, &mesh, config(2), state).unwrap_err();
        refused.to_string()
    });
    for error in errors {
        assert!(error.contains("the ranks of worker 1 do not"), "{error}");
    }
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
        let errors = local(2, GroupOptions::default(), |group| {
            let world = world(group);
            Diloco::new(Net::new(0), &mesh(&world, 2), config).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains(word)), "{errors:?}");
    }
    let error = "f16".parse::<OuterGradients>().unwrap_err();
    assert!(error.to_string().contains("choose f32, bf16 or int8"));
}

#[test]
fn a_worker_that_ends_is_named() {
    let found = local(3, GroupOptions::default(), |group| {
        let world = world(group);
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
