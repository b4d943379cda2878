//! Random numbers in segments and in a mesh. In a program of its own, one test at a time: the CPU has one
//! generator per process, and what another test drew would be missing here.

#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::{GroupOptions, ProcessGroup, Rank};
use bonfire_testkit::local;
use bonfire_train::{Ddp, DeviceKind, LocalRank, Recompute, RngReplay, World, recompute};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};

const WIDTH: usize = 16;
const ROWS: usize = 4;

/// Held by a test as long as it draws.
static GENERATOR: Mutex<()> = Mutex::new(());

fn generator(seed: u64) -> MutexGuard<'static, ()> {
    let guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    Device::flex().seed(seed);
    guard
}

#[derive(Module, Debug)]
struct Block {
    up: Linear,
    dropout: Dropout,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            up: LinearConfig::new(WIDTH, WIDTH).init(device),
            dropout: DropoutConfig::new(0.5).init(),
            down: LinearConfig::new(WIDTH, WIDTH).init(device),
        }
    }

    fn mask(&self, x: &Tensor<2>) -> Tensor<2> {
        self.dropout.forward(x.clone().detach().ones_like())
    }

    fn forward(&self, x: Tensor<2>, mask: Tensor<2>) -> Tensor<2> {
        self.down.forward(self.up.forward(x) * mask)
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn world(group: ProcessGroup) -> World {
    let place =
        LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() };
    World::new(group, place, DeviceKind::Cpu).unwrap()
}

fn ones(device: &Device) -> Tensor<2> {
    Tensor::ones([ROWS, WIDTH], device)
}

/// The gradients of all parameters, in bits.
fn gradients<M: Module>(model: &M, loss: &Tensor<1>) -> Vec<Vec<u8>> {
    struct Reader(Vec<Vec<u8>>, burn::tensor::Gradients);
    impl ModuleVisitor for Reader {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(&self.1).unwrap();
            self.0.push(gradient.into_data().into_parts().0.to_vec());
        }
    }
    let mut reader = Reader(Vec::new(), loss.backward());
    model.visit(&mut reader);
    reader.0
}

/// Masks in the order in which they were drawn.
type Masks = Arc<Mutex<Vec<TensorData>>>;

/// A step through segments: its gradients, and the masks of the first and of the second runs.
fn step(blocks: &Vec<Block>, device: &Device) -> (Vec<Vec<u8>>, Vec<TensorData>, Vec<TensorData>) {
    let masks = Masks::default();
    let output = blocks.iter().fold(ones(device), |x, block| {
        let masks = Arc::clone(&masks);
        recompute(block, x, move |block, x| {
            let mask = block.mask(&x);
            masks.lock().unwrap().push(mask.to_data());
            block.forward(x, mask)
        })
    });
    let gradients = gradients(blocks, &output.square().mean());
    let mut first = std::mem::take(&mut *masks.lock().unwrap());
    let mut second = first.split_off(blocks.len());
    // The backward pass begins at the end.
    second.reverse();
    (gradients, first, second)
}

#[test]
fn both_runs_drop_the_same_and_gradients_have_the_bits_of_the_pass_that_keeps_all() {
    let _turn = generator(1);
    let device = device();
    let blocks = vec![Block::new(&device), Block::new(&device), Block::new(&device)];
    let mut seen: Vec<TensorData> = Vec::new();
    for _ in 0..3 {
        let (found, first, second) = step(&blocks, &device);
        assert_eq!(first, second);
        let masked = blocks.iter().zip(&first).fold(ones(&device), |x, (block, mask)| {
            block.forward(x, Tensor::from_data(mask.clone(), &device))
        });
        assert_eq!(found, gradients(&blocks, &masked.square().mean()));
        seen.extend(first);
    }
    // The second runs of a step leave no trace in the draws of the next one.
    for (index, mask) in seen.iter().enumerate() {
        assert!(!seen[..index].contains(mask), "mask {index} was there before");
    }
}

#[test]
fn so_do_transformer_blocks_of_burn_and_segments_inside_segments() {
    let _turn = generator(2);
    let device = device();
    let config = TransformerEncoderConfig::new(WIDTH, WIDTH, 2, 1).with_dropout(0.3);
    let layer = || TransformerEncoderLayer::new(&config, &device);
    let layers = vec![layer(), layer(), layer()];
    // A second run with another result is a panic of the backward pass.
    let inner = |layers: &Vec<TransformerEncoderLayer>, x| {
        layers.iter().fold(x, |x: Tensor<3>, layer| {
            recompute(layer, x, |layer, x| layer.forward(x, None, None))
        })
    };
    let output = recompute(&layers, ones(&device).unsqueeze(), inner);
    let _gradients = gradients(&layers, &output.powi_scalar(3).mean());
}

/// A segment with dropout whose second run is as `options` say, and during which `meanwhile` happens.
fn with_dropout(options: Recompute, prob: f64, meanwhile: fn()) {
    let device = device();
    let mut block = Block::new(&device);
    block.dropout = DropoutConfig::new(prob).init();
    let runs = AtomicUsize::new(0);
    let output = options.run(&block, ones(&device), move |block, x| {
        if runs.fetch_add(1, Ordering::Relaxed) > 0 {
            meanwhile();
        }
        let mask = block.mask(&x);
        block.forward(x, mask)
    });
    output.sum().backward();
}

/// What another rank may do that is a thread of the same process.
fn draw_elsewhere() {
    let draw = || Tensor::<1>::random([1], Distribution::Default, &Device::flex());
    std::thread::spawn(draw).join().unwrap();
}

#[test]
#[should_panic(expected = "another thread of this process drew random numbers")]
fn draws_of_another_thread_are_found_out() {
    let _turn = generator(3);
    with_dropout(Recompute::default(), 0.5, draw_elsewhere);
}

#[test]
fn without_dropout_they_matter_to_nobody() {
    let _turn = generator(4);
    with_dropout(Recompute::default(), 0.0, draw_elsewhere);
    with_dropout(Recompute::default().with_rng_replay(RngReplay::None), 0.0, || ());
}

#[test]
#[should_panic(expected = "computed something else")]
fn dropout_that_is_denied_is_found_out() {
    let _turn = generator(5);
    with_dropout(Recompute::default().with_rng_replay(RngReplay::None), 0.5, || ());
}

#[test]
fn a_training_depends_on_its_seed_and_steps_only() {
    let _turn = generator(6);
    // Trains for two steps at a time; in between, draws that have nothing to do with it.
    let trained = |seed: u64, others: usize| {
        let bits = local(1, GroupOptions::default(), |group| {
            let world = world(group);
            let device = world.device().autodiff();
            world.seed_step(0, 0);
            let mut ddp = Ddp::new(vec![Block::new(&device), Block::new(&device)], &world).unwrap();
            let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
            for index in 0..4 {
                if index == 2 {
                    let _ = Tensor::<1>::random([others], Distribution::Default, &world.device());
                }
                world.seed_step(seed, index);
                let forward = |blocks: &Vec<Block>| {
                    let run = |block: &Block, x: Tensor<2>| {
                        let mask = block.mask(&x);
                        block.forward(x, mask)
                    };
                    let x = blocks.iter().fold(ones(&device), |x, block| recompute(block, x, run));
                    x.square().mean()
                };
                ddp.no_sync(forward).unwrap();
                let gradients = ddp.backward(forward).unwrap().gradients;
                ddp.step(&mut optimizer, 0.1, gradients).unwrap();
            }
            ddp.digest().unwrap().to_string()
        });
        bits.into_iter().next().unwrap()
    };
    let first = trained(7, 1);
    assert_eq!(trained(7, 9), first);
    assert_ne!(trained(8, 1), first);
}

/// Ranks of `tp` have the same activations, and drop the same of them.
#[test]
fn ranks_of_tp_draw_the_same_numbers_and_others_do_not() {
    let _turn = generator(7);
    let drawn = local(8, GroupOptions::default(), |group| {
        let world = world(group);
        let mesh = world.mesh("pp=2,dp=2,tp=2").unwrap();
        // Ranks that are threads share a generator: one after the other.
        let in_turn = |step| {
            let mut own = Vec::new();
            for turn in 0..8 {
                if world.rank() == Rank::new(turn) {
                    mesh.seed_step(7, step);
                    let range = Distribution::Default;
                    let numbers = Tensor::<1>::random([4], range, &world.device());
                    own = numbers.into_data().try_to_vec::<f32>().unwrap();
                }
                world.group().barrier().unwrap();
            }
            own
        };
        [in_turn(3), in_turn(4), in_turn(3)]
    });
    for [first, other_step, again] in &drawn {
        assert!(first == again && first != other_step);
    }
    for pair in drawn.chunks(2) {
        assert_eq!(pair[0], pair[1]);
    }
    for (left, right) in [(0, 2), (0, 4), (2, 4), (4, 6)] {
        assert_ne!(drawn[left][0], drawn[right][0], "{left} and {right}");
    }
}
