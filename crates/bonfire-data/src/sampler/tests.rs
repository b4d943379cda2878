//! What every rank sees, compared over all ranks.

use proptest::prelude::*;

use super::*;

fn sampler(len: usize, world: u32, rank: u32, order: Order, rest: Remainder) -> DistributedSampler {
    DistributedSampler::of(Rank::new(rank), WorldSize::new(world).unwrap(), len)
        .with_order(order)
        .with_remainder(rest)
}

fn all_ranks(len: usize, world: u32, order: Order, rest: Remainder, epoch: u64) -> Vec<Vec<usize>> {
    (0..world).map(|rank| sampler(len, world, rank, order.clone(), rest).indices(epoch)).collect()
}

#[test]
fn eleven_samples_on_two_ranks_are_padded_from_the_start_and_assigned_in_turn() {
    let first = sampler(11, 2, 0, Order::Sequential, Remainder::Pad);
    assert_eq!(first.total_len(), 12);
    let shares = all_ranks(11, 2, Order::Sequential, Remainder::Pad, 0);
    assert_eq!(shares, [vec![0, 2, 4, 6, 8, 10], vec![1, 3, 5, 7, 9, 0]]);
}

#[test]
fn dropping_the_rest_leaves_five_each() {
    let shares = all_ranks(11, 2, Order::Sequential, Remainder::Drop, 0);
    assert_eq!(shares, [vec![0, 2, 4, 6, 8], vec![1, 3, 5, 7, 9]]);
}

#[test]
fn exact_shares_differ_by_one() {
    let shares = all_ranks(11, 2, Order::Sequential, Remainder::Exact, 0);
    assert_eq!(shares, [vec![0, 2, 4, 6, 8, 10], vec![1, 3, 5, 7, 9]]);
}

#[test]
fn fewer_samples_than_ranks_are_repeated_as_often_as_needed() {
    let shares = all_ranks(2, 5, Order::Sequential, Remainder::Pad, 0);
    assert_eq!(shares, [[0], [1], [0], [1], [0]]);
}

#[test]
fn no_samples_are_no_error() {
    for rest in [Remainder::Pad, Remainder::Drop, Remainder::Exact] {
        for share in all_ranks(0, 3, Order::Shuffled { seed: 1 }, rest, 0) {
            assert_eq!(share, Vec::<usize>::new());
        }
    }
}

#[test]
fn epochs_and_seeds_change_the_order_and_nothing_else_does() {
    let order =
        |seed, epoch| sampler(100, 1, 0, Order::Shuffled { seed }, Remainder::Pad).indices(epoch);
    assert_eq!(order(7, 3), order(7, 3));
    assert_ne!(order(7, 3), order(7, 4));
    assert_ne!(order(7, 3), order(8, 3));
    assert_ne!(order(7, 3), (0..100).collect::<Vec<_>>());
}

/// Written down once, so that neither a platform nor an update changes what a seed means.
#[test]
fn the_shuffle_is_what_it_always_was() {
    assert_eq!(shuffled(0..10, 42, 0), KNOWN_ORDER);
}
const KNOWN_ORDER: [usize; 10] = [1, 5, 9, 6, 3, 2, 0, 8, 4, 7];

#[test]
fn draws_are_as_frequent_as_their_weights() {
    let weights = SampleWeights::new(&[1.0, 0.0, 3.0, 0.0]).unwrap();
    let order = Order::Weighted { seed: 5, weights };
    let draws = 40_000;
    let shares = all_ranks(draws, 4, order.clone(), Remainder::Exact, 0);
    let mut counts = [0_usize; 4];
    shares.iter().flatten().for_each(|&index| counts[index] += 1);
    assert_eq!((counts[1], counts[3]), (0, 0));
    // Five standard deviations of a binomial count; the seed is fixed.
    let deviation = (draws as f64 * 0.25 * 0.75).sqrt();
    assert!((counts[0] as f64 - 10_000.0).abs() < 5.0 * deviation, "{counts:?}");
    // Draws are distributed like samples: the ranks do not draw the same.
    assert_ne!(shares[0], shares[1]);
    assert_ne!(shares, all_ranks(draws, 4, order.clone(), Remainder::Exact, 1));
    let alone = all_ranks(draws, 1, order, Remainder::Exact, 0).remove(0);
    let joined: Vec<usize> = (0..draws).map(|draw| shares[draw % 4][draw / 4]).collect();
    assert_eq!(alone, joined);
}

#[test]
fn balanced_weights_draw_all_classes_alike() {
    // Nine samples of class 2, one of class 0.
    let classes = [2, 2, 2, 2, 0, 2, 2, 2, 2, 2];
    let weights = SampleWeights::balanced(&classes).unwrap();
    let order = Order::Weighted { seed: 1, weights };
    let draws = sampler(10_000, 1, 0, order, Remainder::Exact).indices(0);
    let rare = draws.iter().filter(|&&index| index == 4).count() as f64;
    assert!((rare - 5000.0).abs() < 5.0 * 50.0, "{rare}");
}

#[test]
fn weights_that_say_nothing_are_errors() {
    use UnusableWeights::{NoSum, NotAWeight};
    let of = |weights: &[f64]| SampleWeights::new(weights).unwrap_err();
    assert_eq!(of(&[1.0, -1.0]), NotAWeight { index: 1, weight: -1.0 });
    assert!(matches!(of(&[f64::NAN]), NotAWeight { index: 0, .. }));
    assert_eq!(of(&[0.0, 0.0]), NoSum { sum: 0.0 });
    assert_eq!(of(&[]), NoSum { sum: 0.0 });
    assert_eq!(of(&[f64::MAX, f64::MAX]), NoSum { sum: f64::INFINITY });
    assert_eq!(SampleWeights::balanced(&[]).unwrap_err(), NoSum { sum: 0.0 });
}

/// A rank's share fits where the whole order would not.
#[test]
fn a_share_of_a_trillion_samples_takes_the_memory_of_a_share() {
    let (len, world) = (1 << 43, 1 << 31);
    let weights = SampleWeights::new(&[1.0, 2.0]).unwrap();
    for order in [Order::Sequential, Order::Weighted { seed: 1, weights }] {
        let share = sampler(len, world, 5, order, Remainder::Exact).indices(3);
        assert_eq!(share.len(), len / world as usize);
    }
}

proptest! {
    #[test]
    fn padded_draws_repeat_the_first(
        draws in 1_usize..40, world in 1_u32..9, offset in 0_usize..50,
    ) {
        let weights = SampleWeights::new(&[1.0, 2.0, 0.5, 3.0]).unwrap();
        let order = Order::Weighted { seed: 9, weights: weights.clone() };
        let mut rng = generator(9, 2);
        let all: Vec<usize> = (0..draws).map(|_| weights.draw(&mut rng)).collect();
        let shares: Vec<_> = (0..world)
            .map(|rank| sampler(draws, world, rank, order.clone(), Remainder::Pad))
            .map(|sampler| sampler.indices_after(2, offset))
            .collect();
        for (rank, share) in shares.iter().enumerate() {
            for (turn, index) in share.iter().enumerate() {
                let place = offset + turn * world as usize + rank;
                prop_assert_eq!(*index, all[place % draws]);
            }
        }
    }

    #[test]
    fn all_ranks_together_see_every_sample(
        len in 1_usize..300, world in 1_u32..17, seed: u64, epoch in 0_u64..5,
    ) {
        let order = Order::Shuffled { seed };
        let padded = all_ranks(len, world, order.clone(), Remainder::Pad, epoch);
        let share = len.div_ceil(world as usize);
        prop_assert!(padded.iter().all(|indices| indices.len() == share));
        let mut counts = vec![0_usize; len];
        padded.iter().flatten().for_each(|index| counts[*index] += 1);
        let most = (share * world as usize).div_ceil(len);
        prop_assert!(counts.iter().all(|count| (1..=most).contains(count)));

        let mut exact: Vec<usize> =
            all_ranks(len, world, order.clone(), Remainder::Exact, epoch).concat();
        exact.sort_unstable();
        prop_assert_eq!(exact, (0..len).collect::<Vec<_>>());

        let dropped = all_ranks(len, world, order, Remainder::Drop, epoch);
        let mut seen: Vec<usize> = dropped.concat();
        prop_assert!(dropped.iter().all(|indices| indices.len() == len / world as usize));
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), len / world as usize * world as usize);
    }

    #[test]
    fn the_length_is_that_of_the_indices(
        len in 0_usize..100, world in 1_u32..9, rank in 0_u32..8, epoch: u64,
    ) {
        prop_assume!(rank < world);
        for rest in [Remainder::Pad, Remainder::Drop, Remainder::Exact] {
            let sampler = sampler(len, world, rank, Order::Shuffled { seed: 5 }, rest);
            prop_assert_eq!(sampler.len(), sampler.indices(epoch).len());
        }
    }
}
