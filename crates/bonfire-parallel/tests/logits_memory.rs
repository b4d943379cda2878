//! How much memory the loss of a divided vocabulary takes: the most that a program ever had, which it asks the system for
//! in the end. So what is measured is a program of its own, this one started again, with its ranks as threads.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use bonfire_collective::GroupOptions;
use bonfire_parallel::{VocabParallelCrossEntropy, VocabParallelEmbedding};
use bonfire_testkit::{local, measured, print_figure, task};
use bonfire_train::{DeviceKind, LocalRank, Resident, World};
use burn::module::Param;
use burn::nn::Embedding;
use burn::tensor::{Int, Tensor};

const RANKS: u32 = 16;
const TOKENS: usize = 1024;
const VOCABULARY: usize = 16 * 1024;
const WIDTH: usize = 8;

/// The scores of all tokens for the whole vocabulary.
const SCORES_BYTES: u64 = (TOKENS * VOCABULARY * size_of::<f32>()) as u64;

fn pass(world: &World) {
    let device = world.device().autodiff();
    let table =
        Embedding { weight: Param::from_tensor(Tensor::ones([VOCABULARY, WIDTH], &device)) };
    let table = VocabParallelEmbedding::from_embedding(table, world).unwrap();
    // The whole table is gone on all ranks.
    world.group().barrier().unwrap();
    let x = Tensor::<2>::ones([TOKENS, WIDTH], &device).require_grad();
    let targets = Tensor::<1, Int>::arange(0..TOKENS as i64, &device);
    let loss = VocabParallelCrossEntropy::new().forward(&table, table.logits(x.clone()), targets);
    let gradients = loss.backward();
    assert_eq!(x.grad(&gradients).unwrap().dims(), [TOKENS, WIDTH]);
    // Nobody is done before all are.
    world.group().barrier().unwrap();
}

/// Of its part, a rank has a few copies at a time. If each had the scores of the whole vocabulary once, they would have as
/// many of them as there are ranks.
#[test]
fn no_rank_ever_has_all_scores() {
    if task().is_some() {
        local(RANKS, GroupOptions::default(), |group| {
            let local = LocalRank { local_rank: group.rank().get(), local_world_size: RANKS };
            pass(&World::new(group, local, DeviceKind::Cpu).unwrap());
        });
        return print_figure(Resident::of_this_process().unwrap().peak_bytes);
    }
    let scores = measured("no_rank_ever_has_all_scores", "pass") as f64 / SCORES_BYTES as f64;
    println!("all ranks together: {scores:.1} times the scores of the whole vocabulary");
    assert!(scores > 1.0, "they have a part each: {scores}");
    assert!(scores < f64::from(RANKS) - 2.0, "{scores} on {RANKS} ranks");
}
