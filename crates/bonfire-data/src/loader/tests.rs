//! Batches of epochs, whole and resumed.

use bonfire_collective::{Rank, WorldSize};

use proptest::prelude::*;

use super::*;
use crate::Remainder;

fn loader(len: usize, batch_size: usize, last_batch: LastBatch) -> Loader {
    let sampler = DistributedSampler::of(Rank::new(1), WorldSize::new(2).unwrap(), len);
    let loader = Loader::of(sampler, batch_size).with_shuffle(11);
    loader.with_last_batch(last_batch)
}

#[test]
fn the_epoch_advances_by_itself() {
    let mut loader = loader(20, 4, LastBatch::Keep);
    let first: Vec<_> = loader.next_epoch().collect();
    assert_eq!(loader.epoch(), 1);
    let second: Vec<_> = loader.next_epoch().collect();
    assert_ne!(first, second);
    assert_eq!(loader.with_epoch(0).next_epoch().collect::<Vec<_>>(), first);
}

#[test]
fn a_short_last_batch_is_kept_or_dropped() {
    let sizes = |last_batch| {
        let batches = loader(20, 4, last_batch).next_epoch();
        assert_eq!(batches.len(), loader(20, 4, last_batch).batches_per_epoch());
        batches.map(|batch| batch.len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(LastBatch::Keep), [4, 4, 2]);
    assert_eq!(sizes(LastBatch::Drop), [4, 4]);
}

#[test]
fn the_batches_are_the_share_in_order() {
    let mut loader = loader(21, 3, LastBatch::Keep);
    let indices = loader.sampler.indices(0);
    assert_eq!(loader.next_epoch().flatten().collect::<Vec<_>>(), indices);
}

/// All ranks of a world, each with a share of the same data.
fn ranks(len: usize, world: u32, batch_size: usize, remainder: Remainder) -> Vec<Loader> {
    (0..world)
        .map(|rank| {
            let world_size = WorldSize::new(world).unwrap();
            let sampler = DistributedSampler::of(Rank::new(rank), world_size, len);
            let loader = Loader::of(sampler, batch_size).with_shuffle(3);
            loader.with_remainder(remainder)
        })
        .collect()
}

/// The samples of so many steps of all ranks, and where they got to.
fn run(loaders: &mut [Loader], steps: usize) -> (Vec<usize>, SamplerState) {
    let mut epochs: Vec<EpochBatches> = loaders.iter_mut().map(Loader::next_epoch).collect();
    let mut seen = Vec::new();
    for _ in 0..steps {
        for epoch in &mut epochs {
            seen.extend(epoch.next().unwrap_or_default());
        }
    }
    (seen, epochs[0].state())
}

proptest! {
    #[test]
    fn another_world_goes_on_with_what_is_left(
        len in 1_usize..200, before in 1_u32..6, after in 1_u32..6,
        batch in 1_usize..9, other_batch in 1_usize..9, steps in 0_usize..12,
    ) {
        let (mut seen, state) = run(&mut ranks(len, before, batch, Remainder::Exact), steps);
        let state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        let mut resumed: Vec<Loader> = ranks(len, after, other_batch, Remainder::Exact)
            .into_iter()
            .map(|loader| loader.resuming(&state).unwrap())
            .collect();
        prop_assert!(resumed.iter().all(|loader| loader.epoch() == resumed[0].epoch()));
        if resumed[0].epoch() == 0 {
            seen.extend(run(&mut resumed, len).0);
        }
        // Every sample once, whichever loader returned it.
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..len).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_world_goes_on_as_if_nothing_had_been(
        len in 1_usize..200, world in 1_u32..6, batch in 1_usize..9, steps in 0_usize..12,
    ) {
        for remainder in [Remainder::Pad, Remainder::Drop, Remainder::Exact] {
            let mut whole = ranks(len, world, batch, remainder);
            let (_, state) = run(&mut whole.clone(), steps);
            for loader in &mut whole {
                let mut resumed = loader.clone().resuming(&state).unwrap();
                let mut left: Vec<_> = loader.next_epoch().skip(steps).collect();
                if resumed.epoch() == 0 {
                    prop_assert_eq!(resumed.batches_left(), left.len());
                    let again: Vec<_> = resumed.next_epoch().collect();
                    prop_assert_eq!(&again, &left);
                    left.clear();
                }
                prop_assert!(left.is_empty() || remainder == Remainder::Exact);
                prop_assert_eq!(
                    loader.next_epoch().collect::<Vec<_>>(),
                    resumed.next_epoch().collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn the_state_of_other_data_is_refused() {
    let state = loader(20, 4, LastBatch::Keep).next_epoch().state();
    let error = loader(21, 4, LastBatch::Keep).resuming(&state).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("20 samples shuffled with seed 11"), "{text}");
    assert!(text.contains("21 samples shuffled with seed 11"), "{text}");
}

#[test]
fn a_finished_epoch_resumes_with_the_next() {
    for last_batch in [LastBatch::Keep, LastBatch::Drop] {
        let mut whole = loader(21, 4, last_batch);
        let mut first = whole.next_epoch();
        first.by_ref().for_each(drop);
        let mut resumed = loader(21, 4, last_batch).resuming(&first.state()).unwrap();
        assert_eq!(resumed.epoch(), 1);
        assert!(resumed.next_epoch().eq(whole.next_epoch()));
    }
}
