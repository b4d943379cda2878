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
/// Panics if an operand has another length than the target, or there is none.
pub(crate) fn fold<T: Element>(
    target: &mut [T],
    operands: &[Operand<'_, T>],
    options: FoldOptions,
) {
    assert!(!operands.is_empty(), "a fold needs at least one operand");
    for operand in operands {
        if let Operand::Peer(elements) = operand {
            assert_eq!(elements.len(), target.len(), "operand and target differ in length");
        }
    }
    with_combine!(options.reduce, T, |combine| vectorized(
        #[inline(always)]
        || fold_with(target, operands, divisor(options), combine)
    ));
}

/// The fold of what `sources` bring, written to the targets of `targets`: both are places in `views`, whose slices
/// have one length. Panics if there is no source.
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
        let parts = operands.iter().map(|operand| operand.part(range.clone(), block));
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
        let parts = sources.iter().map(|source| &views[source.index()].source()[range.clone()]);
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
        let parts = sources.iter().map(|source| &inputs[source.index()][range.clone()]);
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
mod tests;
