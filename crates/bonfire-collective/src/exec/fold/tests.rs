//! Folds compared with the reference, bit for bit.

use super::*;
use half::{bf16, f16};

/// The readable oracle for one element.
fn fold_one<T: Element>(operands: &[T], options: FoldOptions) -> T {
    let mut partial = operands[0].widen();
    for operand in &operands[1..] {
        let operand = operand.widen();
        partial = match options.reduce {
            ReduceOp::Sum | ReduceOp::Mean => T::sum(partial, operand),
            ReduceOp::Product => T::product(partial, operand),
            ReduceOp::Min => T::min(partial, operand),
            ReduceOp::Max => T::max(partial, operand),
            ReduceOp::And => T::and(partial, operand),
            ReduceOp::Or => T::or(partial, operand),
            ReduceOp::Xor => T::xor(partial, operand),
        };
    }
    if options.reduce == ReduceOp::Mean && options.stage == Stage::Final {
        partial = T::divide(partial, options.world_size.get());
    }
    T::narrow(partial)
}

fn of_ranks(ranks: u32, reduce: ReduceOp) -> FoldOptions {
    let world_size = WorldSize::new(ranks).unwrap();
    FoldOptions { reduce, stage: Stage::Final, world_size, streams: false }
}

fn check<T: Element + PartialEq + std::fmt::Debug>(make: impl Fn(usize) -> T) {
    for reduce in ReduceOp::ALL.iter().copied() {
        if !reduce.supports(T::DTYPE) {
            continue;
        }
        for len in [0, 1, BLOCK_ELEMS - 1, BLOCK_ELEMS, 2 * BLOCK_ELEMS + 3] {
            let options = of_ranks(3, reduce);
            let ranks: Vec<Vec<T>> = (0..3)
                .map(|rank| (0..len).map(|index| make(index * 7 + rank * 13)).collect())
                .collect();
            let mut target = ranks[1].clone();
            let operands =
                [Operand::Peer(&ranks[0][..]), Operand::Target, Operand::Peer(&ranks[2])];
            fold(&mut target, &operands, options);
            let expected = |index| fold_one(&[0, 1, 2].map(|rank| ranks[rank][index]), options);
            let expected: Vec<T> = (0..len).map(expected).collect();
            assert_eq!(target, expected, "{reduce} of {len}");
            check_views(&ranks, &expected, options);
            check_pair(&ranks, options);
        }
    }
}

/// Two operands, in both orders.
fn check_pair<T: Element + PartialEq + std::fmt::Debug>(ranks: &[Vec<T>], options: FoldOptions) {
    let options = FoldOptions { world_size: WorldSize::new(2).unwrap(), ..options };
    for first in [0, 1] {
        let (own, theirs) = (&ranks[0], &ranks[1]);
        let mut operands = [Operand::Target, Operand::Peer(&theirs[..])];
        operands.rotate_left(first);
        let mut target = own.clone();
        fold(&mut target, &operands, options);
        let pairs = own.iter().zip(theirs);
        let expected: Vec<T> = pairs
            .map(|(own, theirs)| {
                let mut pair = [*own, *theirs];
                pair.rotate_left(first);
                fold_one(&pair, options)
            })
            .collect();
        assert_eq!(target, expected, "{} of two", options.reduce);
    }
}

/// The same in the ranks' own buffers: for all of them, and for one.
fn check_views<T: Element + PartialEq + std::fmt::Debug>(
    ranks: &[Vec<T>],
    expected: &[T],
    options: FoldOptions,
) {
    let all: Vec<Rank> = options.world_size.ranks().collect();
    for targets in [&all[..], &all[1..2]] {
        let mut held = ranks.to_vec();
        let mut views: Vec<_> = held.iter_mut().map(|it| View::in_place(&mut it[..])).collect();
        fold_views(&mut views, &all, targets, options);
        for streams in [false, true] {
            let options = FoldOptions { streams, ..options };
            let mut apart = ranks.to_vec();
            fold_views(&mut views_of(ranks, &mut apart), &all, targets, options);
            assert_eq!(apart, held, "{} from one buffer to another", options.reduce);
        }
        for rank in &all {
            let expected = if targets.contains(rank) { expected } else { &ranks[rank.index()] };
            assert_eq!(held[rank.index()], expected, "{} on {rank}", options.reduce);
        }
    }
    let moved = FoldOptions { reduce: ReduceOp::Max, ..options };
    let mut held = ranks.to_vec();
    let mut views: Vec<_> = held.iter_mut().map(|it| View::in_place(&mut it[..])).collect();
    fold_views(&mut views, &all[2..], &all, moved);
    let mut apart = ranks.to_vec();
    apart.rotate_left(1);
    fold_views(&mut views_of(ranks, &mut apart), &all[2..], &all, moved);
    assert!(held.iter().chain(&apart).all(|buffer| *buffer == ranks[2]), "one source is a copy");
}

fn views_of<'a, T>(inputs: &'a [Vec<T>], targets: &'a mut [Vec<T>]) -> Vec<View<'a, T>> {
    let pairs = inputs.iter().zip(targets);
    pairs.map(|(input, target)| View { input: Some(input), target }).collect()
}

#[test]
fn blocks_fold_like_single_elements() {
    check(|seed| ((seed * 2_654_435_761) % 1000) as f32 / 7.0);
    check(|seed| ((seed * 2_654_435_761) % 1000) as f64 / 7.0);
    check(|seed| f16::from_f32((seed % 100) as f32 / 7.0));
    check(|seed| bf16::from_f32((seed % 100) as f32 / 7.0));
    check(|seed| seed as i32 - 50);
    check(|seed| -(seed as i64));
    check(|seed| (seed * 31) as u8);
    check(|seed| seed as u32);
    check(|seed| (seed % 250) as i8);
    check(|seed| (seed * 37) as i16);
    check(|seed| (seed * 37) as u16);
    check(|seed| (seed as u64).wrapping_mul(0x0123_4567_89ab_cdef));
    check(|seed| seed % 3 == 0);
}

#[test]
fn sixteen_bit_floats_are_rounded_once() {
    // 2048 + 1 is not a binary16, so rounding after each addition would lose both ones.
    let options = of_ranks(3, ReduceOp::Sum);
    let mut target = [f16::from_f32(2048.0)];
    let one = [f16::from_f32(1.0)];
    fold(&mut target, &[Operand::Target, Operand::Peer(&one), Operand::Peer(&one)], options);
    assert_eq!(target[0].to_f32(), 2050.0);
}

#[test]
fn a_partial_mean_is_not_divided() {
    let options = FoldOptions { stage: Stage::Partial, ..of_ranks(2, ReduceOp::Mean) };
    let mut target = [3.0_f32];
    fold(&mut target, &[Operand::Target, Operand::Peer(&[5.0])], options);
    assert_eq!(target, [8.0]);
}

#[test]
fn the_order_of_zeros_and_nans_leaves_no_trace() {
    let values = [0.0_f32, -0.0, f32::NAN, -f32::NAN, 1.0, -1.0];
    for reduce in [ReduceOp::Min, ReduceOp::Max] {
        let options = of_ranks(2, reduce);
        for (one, other) in values.iter().flat_map(|one| values.map(|other| (*one, other))) {
            let forth = fold_one(&[one, other], options);
            let back = fold_one(&[other, one], options);
            assert_eq!(forth.to_bits(), back.to_bits(), "{reduce} of {one} and {other}");
        }
        let zero = fold_one(&[0.0_f32, -0.0], options);
        assert_eq!(zero.is_sign_negative(), reduce == ReduceOp::Min, "{reduce}");
    }
}

#[test]
fn not_a_number_is_not_hidden_by_min_or_max() {
    for reduce in [ReduceOp::Min, ReduceOp::Max] {
        let options = of_ranks(2, reduce);
        for (mine, theirs) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut target = [mine];
            fold(&mut target, &[Operand::Target, Operand::Peer(&[theirs])], options);
            assert!(target[0].is_nan(), "{reduce} of {mine} and {theirs}");
        }
    }
}
