//! The same training on different numbers of ranks: threads of this process, each with a network.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::time::Duration;

use bonfire::World;
use bonfire_testkit::Watchdog;
use common::Pictures;
use vision::config::Config;
use vision::data::Data;
use vision::train::{End, Trained, train};

/// Far beyond what the smallest training takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// Steps of the longest training here, 64 pictures in batches of 16.
const STEPS: usize = 8;

/// Trains on `ranks` ranks; every rank's end.
fn trained(ranks: u32, more: &str) -> Vec<Trained> {
    let _watchdog = Watchdog::start(more, LIMIT);
    let pictures = Pictures::new(64);
    let more = format!("OPTIM.MAX_EPOCH 2 TRAIN.PRINT_FREQ 1000 {more}");
    let pairs = pictures.pairs(&pictures.out_dir("run"), &more);
    let config = Config::load(None, &pairs).unwrap();
    let data = Data::open(&config).unwrap();
    let train = |world: World| train(&world, &config, &data);
    let ends = bonfire::spawn(ranks, train).unwrap();
    let ends = ends.into_iter().map(|end| match end {
        End::Trained(trained) => trained,
        End::Stopped { code } => panic!("stopped with {code}"),
    });
    ends.collect()
}

/// Two trainings on equal global batches differ by the order of summation only. A loss is a mean of
/// numbers near 1, each a few dozen roundings from exact; from one step to the next a difference at
/// most doubles, because a step changes the network by little.
fn tolerance(step: usize) -> f64 {
    32.0 * f64::from(f32::EPSILON) * 2_f64.powi(step as i32)
}

#[track_caller]
fn check_equal_losses(ranks: u32, batch: usize) {
    let alone = trained(1, "MODEL.SYNCBN true TRAIN.BATCH_SIZE 16");
    let more = format!("MODEL.SYNCBN true TRAIN.BATCH_SIZE {batch}");
    let together = trained(ranks, &more);
    let [alone, together] = [&alone[0].losses, &together[0].losses];
    assert_eq!((alone.len(), together.len()), (STEPS, STEPS));
    for (step, (alone, together)) in alone.iter().zip(together).enumerate() {
        let difference = (alone - together).abs();
        assert!(
            difference <= tolerance(step),
            "step {step} on {ranks} ranks: {together} against {alone}, {difference:e} apart"
        );
    }
}

#[test]
fn two_ranks_with_synchronised_norms_are_one_with_twice_the_batch() {
    check_equal_losses(2, 8);
}

#[test]
fn four_ranks_with_synchronised_norms_are_one_with_four_times_the_batch() {
    check_equal_losses(4, 4);
}

/// Without synchronisation each rank normalises with its own batch, which the tolerance tells apart.
#[test]
fn norms_of_single_ranks_are_something_else() {
    let [alone, together] = [(1, 16), (4, 4)]
        .map(|(ranks, batch)| trained(ranks, &format!("TRAIN.BATCH_SIZE {batch}")));
    let difference = (alone[0].losses[0] - together[0].losses[0]).abs();
    assert!(difference > 10.0 * tolerance(0), "{difference:e}");
}

#[test]
fn all_ranks_come_to_the_same_figures() {
    let all = trained(3, "TRAIN.BATCH_SIZE 6");
    assert_eq!(all[0].test.samples, 32, "each test picture counts once");
    for trained in &all {
        assert_eq!(trained.losses, all[0].losses);
        assert_eq!((trained.test, trained.best), (all[0].test, all[0].best));
    }
}
