//! Reduction of several ranks' elements on this rank, in a fixed order.
//!
//! The reference is [`fold_one`]: take the sources left to right, keep the partial result in the
//! wide type, narrow once. [`fold`] does the same for slices, block by block, so that partial
//! results stay in the first-level cache; its bits do not depend on the block length.

use std::ops::Range;

use bonfire_plan::{Rank, ReduceOp, Stage, WorldSize};
use bonfire_sys::streaming;
use bonfire_sys::window::View;
use bytemuck::Zeroable;
use smallvec::SmallVec;

use crate::Element;

/// `$body` with `$combine` bound to the function that folds by `$reduce`, one instance for each.
macro_rules! with_combine {
    ($reduce:expr, $T:ty, |$combine:ident| $body:expr) => {
        match $reduce {
            ReduceOp::Sum | ReduceOp::Mean => with_combine!(@ $combine = <$T>::sum, $body),
            ReduceOp::Product => with_combine!(@ $combine = <$T>::product, $body),
            ReduceOp::Min => with_combine!(@ $combine = <$T>::min, $body),
            ReduceOp::Max => with_combine!(@ $combine = <$T>::max, $body),
            ReduceOp::And => with_combine!(@ $combine = <$T>::and, $body),
            ReduceOp::Or => with_combine!(@ $combine = <$T>::or, $body),
            ReduceOp::Xor => with_combine!(@ $combine = <$T>::xor, $body),
        }
    };
    (@ $combine:ident = $function:expr, $body:expr) => {{
        let $combine = $function;
        $body
    }};
}

/// Elements per block: 4 KiB of f32 partial results.
const BLOCK_ELEMS: usize = 1024;

/// One operand of a fold.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a, T> {
    /// The target's own content before the fold.
    Target,
    /// Elements from a peer, as many as the target has.
    Peer(&'a [T]),
}

impl<T> Operand<'_, T> {
    /// The elements `range`, of which the target has `block`.
    #[inline(always)]
    fn part<'b>(&'b self, range: Range<usize>, block: &'b [T]) -> &'b [T] {
        match self {
            Self::Target => block,
            Self::Peer(elements) => &elements[range],
        }
    }
}

/// How a fold combines and ends.
#[derive(Clone, Copy, Debug)]
pub struct FoldOptions {
    pub reduce: ReduceOp,
    pub stage: Stage,
    pub world_size: WorldSize,
    /// Whether a result that replaces nothing it was made of goes past the caches.
    pub streams: bool,
}

/// `target[i] = operands[0][i] op operands[1][i] op ...`, left to right.
///
/// # Panics
/// If an operand has another length than the target, or there is none.
pub(crate) fn fold<T: Element>(
    target: &mut [T],
    operands: &[Operand<'_, T>],
    options: FoldOptions,
) {
    assert!(!operands.is_empty(), "a fold needs at least one operand");
    for operand in operands {
        if let Operand::Peer(elements) = operand {
            assert_eq!(
                elements.len(),
                target.len(),
                "operand and target differ in length"
            );
        }
    }
    with_combine!(options.reduce, T, |combine| vectorized(
        #[inline(always)]
        || fold_with(target, operands, divisor(options), combine)
    ));
}

/// The fold of what `sources` bring, written to the targets of `targets`: both are places in `views`,
/// whose slices have one length.
///
/// # Panics
/// If there is no source.
pub(crate) fn fold_views<T: Element>(
    views: &mut [View<'_, T>],
    sources: &[Rank],
    targets: &[Rank],
    options: FoldOptions,
) {
    match *sources {
        [] => panic!("a fold needs at least one source"),
        [source] if divisor(options).is_none() => copy_view(views, source, targets),
        _ => with_combine!(options.reduce, T, |combine| vectorized(
            #[inline(always)]
            || {
                let streamed = options.streams
                    && stream_with(views, sources, targets, divisor(options), combine).is_some();
                if !streamed {
                    fold_views_with(views, sources, targets, divisor(options), combine);
                }
            }
        )),
    }
}

fn copy_view<T: Element>(views: &mut [View<'_, T>], source: Rank, targets: &[Rank]) {
    for target in targets {
        match views.get_disjoint_mut([source.index(), target.index()]) {
            Ok([from, to]) => to.target.copy_from_slice(from.source()),
            Err(_) => views[source.index()].settle(),
        }
    }
}

/// Runs `body`, which must be inlined, compiled for the widest vectors of this machine.
#[inline]
fn vectorized(body: impl FnOnce()) {
    pulp::Arch::new().dispatch(body);
}

fn divisor(options: FoldOptions) -> Option<u32> {
    let ranks = options.world_size.get();
    let mean = options.reduce == ReduceOp::Mean && options.stage == Stage::Final;
    (mean && ranks > 1).then_some(ranks)
}

#[inline(always)]
fn fold_with<T: Element>(
    target: &mut [T],
    operands: &[Operand<'_, T>],
    divisor: Option<u32>,
    combine: impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    if size_of::<T::Partial>() == size_of::<T>() {
        // Two ranks: the common case of a ring, and of two hosts.
        match *operands {
            [Operand::Target, Operand::Peer(theirs)] => {
                return fold_into(target, theirs, divisor, combine);
            }
            [Operand::Peer(theirs), Operand::Target] => {
                let swapped = |own, theirs| combine(theirs, own);
                return fold_into(target, theirs, divisor, swapped);
            }
            _ => {}
        }
    }
    let mut partial = [T::Partial::zeroed(); BLOCK_ELEMS];
    let mut scratch = partial;
    let mut start = 0;
    for block in target.chunks_mut(BLOCK_ELEMS) {
        let range = start..start + block.len();
        start = range.end;
        let partial = &mut partial[..block.len()];
        let parts = operands
            .iter()
            .map(|operand| operand.part(range.clone(), block));
        fold_block::<T>(partial, parts, &mut scratch, divisor, &combine);
        T::narrow_all(partial, block);
    }
}

#[inline(always)]
fn fold_views_with<T: Element>(
    views: &mut [View<'_, T>],
    sources: &[Rank],
    targets: &[Rank],
    divisor: Option<u32>,
    combine: impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    if let ([first, second], true) = (sources, size_of::<T::Partial>() == size_of::<T>())
        && let Ok([first, second]) = views.get_disjoint_mut([first.index(), second.index()])
        && targets == sources
        && first.input.is_none()
        && second.input.is_none()
    {
        return fold_pair(first.target, second.target, divisor, combine);
    }
    let len = views[sources[0].index()].target.len();
    let mut partial = [T::Partial::zeroed(); BLOCK_ELEMS];
    let mut scratch = partial;
    for start in (0..len).step_by(BLOCK_ELEMS) {
        let range = start..len.min(start + BLOCK_ELEMS);
        let partial = &mut partial[..range.len()];
        let parts = sources
            .iter()
            .map(|source| &views[source.index()].source()[range.clone()]);
        fold_block::<T>(partial, parts, &mut scratch, divisor, &combine);
        for target in targets {
            T::narrow_all(partial, &mut views[target.index()].target[range.clone()]);
        }
    }
}

/// As [`fold_views_with`], to memory that is not read and need not be in a cache. `None`, and nothing done,
/// if a rank has one buffer for its input and the result, or not any bytes are a value.
#[inline(always)]
fn stream_with<T: Element>(
    views: &mut [View<'_, T>],
    sources: &[Rank],
    targets: &[Rank],
    divisor: Option<u32>,
    combine: impl Fn(T::Partial, T::Partial) -> T::Partial,
) -> Option<()> {
    let (mut inputs, mut outputs) = (SmallVec::<[&[T]; 64]>::new(), SmallVec::<[_; 64]>::new());
    for (index, view) in views.iter_mut().enumerate() {
        inputs.push(view.input?);
        if targets.contains(&Rank::new(index as u32)) {
            outputs.push(bytemuck::cast_slice_mut(T::as_plain(view.target)?));
        }
    }
    let mut partial = [T::Partial::zeroed(); BLOCK_ELEMS];
    let (mut scratch, mut folded) = (partial, [T::zeroed(); BLOCK_ELEMS]);
    streaming::write(&mut outputs, &mut folded, |range, folded| {
        if let ([first, second], true) = (sources, size_of::<T::Partial>() == size_of::<T>()) {
            folded.copy_from_slice(&inputs[first.index()][range.clone()]);
            return fold_into(folded, &inputs[second.index()][range], divisor, &combine);
        }
        let partial = &mut partial[..range.len()];
        let parts = sources
            .iter()
            .map(|source| &inputs[source.index()][range.clone()]);
        fold_block::<T>(partial, parts, &mut scratch, divisor, &combine);
        T::narrow_all(partial, folded);
    });
    Some(())
}

/// Folds `parts` of one length, left to right.
#[inline(always)]
fn fold_block<'b, T: Element>(
    partial: &mut [T::Partial],
    mut parts: impl Iterator<Item = &'b [T]>,
    scratch: &mut [T::Partial],
    divisor: Option<u32>,
    combine: &impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    T::widen_all(parts.next().expect("at least one operand"), partial);
    for elements in parts {
        add::<T>(partial, elements, scratch, combine);
    }
    if let Some(divisor) = divisor {
        for partial in partial {
            *partial = T::divide(*partial, divisor);
        }
    }
}

/// `target[i] = combine(target[i], theirs[i])`, without partial results in memory. For types whose
/// partial results are the type itself.
#[inline(always)]
fn fold_into<T: Element>(
    target: &mut [T],
    theirs: &[T],
    divisor: Option<u32>,
    combine: impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    let pairs = target.iter_mut().zip(theirs);
    match divisor {
        None => pairs.for_each(|(target, theirs)| {
            *target = T::narrow(combine(target.widen(), theirs.widen()));
        }),
        Some(divisor) => pairs.for_each(|(target, theirs)| {
            let folded = combine(target.widen(), theirs.widen());
            *target = T::narrow(T::divide(folded, divisor));
        }),
    }
}

/// The fold of two buffers, written to both, without partial results in memory: as fast as memory is.
/// For types whose partial results are the type itself.
#[inline(always)]
fn fold_pair<T: Element>(
    first: &mut [T],
    second: &mut [T],
    divisor: Option<u32>,
    combine: impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    let pairs = first.iter_mut().zip(second);
    match divisor {
        None => pairs.for_each(|(first, second)| {
            let folded = T::narrow(combine(first.widen(), second.widen()));
            (*first, *second) = (folded, folded);
        }),
        Some(divisor) => pairs.for_each(|(first, second)| {
            let folded = combine(first.widen(), second.widen());
            let folded = T::narrow(T::divide(folded, divisor));
            (*first, *second) = (folded, folded);
        }),
    }
}

/// Folds one more operand into the partial results.
#[inline(always)]
fn add<T: Element>(
    partial: &mut [T::Partial],
    elements: &[T],
    scratch: &mut [T::Partial],
    combine: &impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    if size_of::<T::Partial>() == size_of::<T>() {
        for (partial, element) in partial.iter_mut().zip(elements) {
            *partial = combine(*partial, element.widen());
        }
        return;
    }
    // The 16-bit floats: conversion by whole slices has instructions of its own.
    let scratch = &mut scratch[..elements.len()];
    T::widen_all(elements, scratch);
    for (partial, element) in partial.iter_mut().zip(scratch) {
        *partial = combine(*partial, *element);
    }
}

#[cfg(test)]
mod tests {
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

    fn check<T: Element + PartialEq + std::fmt::Debug>(make: impl Fn(usize) -> T) {
        for reduce in ReduceOp::ALL.iter().copied() {
            if !reduce.supports(T::DTYPE) {
                continue;
            }
            for len in [0, 1, BLOCK_ELEMS - 1, BLOCK_ELEMS, 2 * BLOCK_ELEMS + 3] {
                let options = FoldOptions {
                    reduce,
                    stage: Stage::Final,
                    world_size: WorldSize::new(3).unwrap(),
                    streams: false,
                };
                let ranks: Vec<Vec<T>> = (0..3)
                    .map(|rank| (0..len).map(|index| make(index * 7 + rank * 13)).collect())
                    .collect();
                let mut target = ranks[1].clone();
                let operands = [
                    Operand::Peer(&ranks[0][..]),
                    Operand::Target,
                    Operand::Peer(&ranks[2]),
                ];
                fold(&mut target, &operands, options);
                let expected: Vec<T> = (0..len)
                    .map(|index| {
                        let operands = [ranks[0][index], ranks[1][index], ranks[2][index]];
                        fold_one(&operands, options)
                    })
                    .collect();
                assert_eq!(target, expected, "{reduce} of {len}");
                check_views(&ranks, &expected, options);
                check_pair(&ranks, options);
            }
        }
    }

    /// Two operands, in both orders.
    fn check_pair<T: Element + PartialEq + std::fmt::Debug>(
        ranks: &[Vec<T>],
        options: FoldOptions,
    ) {
        let options = FoldOptions {
            world_size: WorldSize::new(2).unwrap(),
            ..options
        };
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
            let mut views: Vec<_> = held
                .iter_mut()
                .map(|it| View::in_place(&mut it[..]))
                .collect();
            fold_views(&mut views, &all, targets, options);
            for streams in [false, true] {
                let options = FoldOptions { streams, ..options };
                let mut apart = ranks.to_vec();
                fold_views(&mut views_of(ranks, &mut apart), &all, targets, options);
                assert_eq!(apart, held, "{} from one buffer to another", options.reduce);
            }
            for rank in &all {
                let expected = if targets.contains(rank) {
                    expected
                } else {
                    &ranks[rank.index()]
                };
                assert_eq!(held[rank.index()], expected, "{} on {rank}", options.reduce);
            }
        }
        let moved = FoldOptions {
            reduce: ReduceOp::Max,
            ..options
        };
        let mut held = ranks.to_vec();
        let mut views: Vec<_> = held
            .iter_mut()
            .map(|it| View::in_place(&mut it[..]))
            .collect();
        fold_views(&mut views, &all[2..], &all, moved);
        let mut apart = ranks.to_vec();
        apart.rotate_left(1);
        fold_views(&mut views_of(ranks, &mut apart), &all[2..], &all, moved);
        assert!(
            held.iter().chain(&apart).all(|buffer| *buffer == ranks[2]),
            "one source is a copy"
        );
    }

    fn views_of<'a, T>(inputs: &'a [Vec<T>], targets: &'a mut [Vec<T>]) -> Vec<View<'a, T>> {
        let pairs = inputs.iter().zip(targets);
        pairs
            .map(|(input, target)| View {
                input: Some(input),
                target,
            })
            .collect()
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
        let options = FoldOptions {
            reduce: ReduceOp::Sum,
            stage: Stage::Final,
            world_size: WorldSize::new(3).unwrap(),
            streams: false,
        };
        let mut target = [f16::from_f32(2048.0)];
        let one = [f16::from_f32(1.0)];
        fold(
            &mut target,
            &[Operand::Target, Operand::Peer(&one), Operand::Peer(&one)],
            options,
        );
        assert_eq!(target[0].to_f32(), 2050.0);
    }

    #[test]
    fn a_partial_mean_is_not_divided() {
        let options = FoldOptions {
            reduce: ReduceOp::Mean,
            stage: Stage::Partial,
            world_size: WorldSize::new(2).unwrap(),
            streams: false,
        };
        let mut target = [3.0_f32];
        fold(
            &mut target,
            &[Operand::Target, Operand::Peer(&[5.0])],
            options,
        );
        assert_eq!(target, [8.0]);
    }

    #[test]
    fn the_order_of_zeros_and_nans_leaves_no_trace() {
        let values = [0.0_f32, -0.0, f32::NAN, -f32::NAN, 1.0, -1.0];
        for reduce in [ReduceOp::Min, ReduceOp::Max] {
            let options = FoldOptions {
                reduce,
                stage: Stage::Final,
                world_size: WorldSize::new(2).unwrap(),
                streams: false,
            };
            for (one, other) in values
                .iter()
                .flat_map(|one| values.map(|other| (*one, other)))
            {
                let forth = fold_one(&[one, other], options);
                let back = fold_one(&[other, one], options);
                assert_eq!(
                    forth.to_bits(),
                    back.to_bits(),
                    "{reduce} of {one} and {other}"
                );
            }
            let zero = fold_one(&[0.0_f32, -0.0], options);
            assert_eq!(zero.is_sign_negative(), reduce == ReduceOp::Min, "{reduce}");
        }
    }

    #[test]
    fn not_a_number_is_not_hidden_by_min_or_max() {
        for reduce in [ReduceOp::Min, ReduceOp::Max] {
            let options = FoldOptions {
                reduce,
                stage: Stage::Final,
                world_size: WorldSize::new(2).unwrap(),
                streams: false,
            };
            for (mine, theirs) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                let mut target = [mine];
                fold(
                    &mut target,
                    &[Operand::Target, Operand::Peer(&[theirs])],
                    options,
                );
                assert!(target[0].is_nan(), "{reduce} of {mine} and {theirs}");
            }
        }
    }
}
