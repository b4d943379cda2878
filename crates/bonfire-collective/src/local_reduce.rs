//! Reduction of several ranks' elements on this rank, in a fixed order.
//!
//! The reference is [`fold_one`]: take the sources left to right, keep the partial result in the
//! wide type, narrow once. [`fold`] does the same for slices, block by block, so that partial
//! results stay in the first-level cache; its bits do not depend on the block length.

use bonfire_plan::{ReduceOp, Stage, WorldSize};
use bytemuck::Zeroable;

use crate::Element;

/// Elements per block: 4 KiB of f32 partial results.
const BLOCK_ELEMS: usize = 1024;

/// One operand of a fold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, T> {
    /// The target's own content before the fold.
    Target,
    /// Elements from a peer, as many as the target has.
    Peer(&'a [T]),
}

/// How a fold combines and ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldOptions {
    pub(crate) reduce: ReduceOp,
    pub(crate) stage: Stage,
    pub(crate) world_size: WorldSize,
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
    match options.reduce {
        ReduceOp::Sum | ReduceOp::Mean => fold_with(target, operands, options, T::sum),
        ReduceOp::Min => fold_with(target, operands, options, T::min),
        ReduceOp::Max => fold_with(target, operands, options, T::max),
        ReduceOp::Product => fold_with(target, operands, options, T::product),
        ReduceOp::And => fold_with(target, operands, options, T::and),
        ReduceOp::Or => fold_with(target, operands, options, T::or),
        ReduceOp::Xor => fold_with(target, operands, options, T::xor),
    }
}

fn fold_with<T: Element>(
    target: &mut [T],
    operands: &[Operand<'_, T>],
    options: FoldOptions,
    combine: impl Fn(T::Partial, T::Partial) -> T::Partial,
) {
    let divisor = match (options.reduce, options.stage) {
        (ReduceOp::Mean, Stage::Final) if options.world_size.get() > 1 => {
            Some(options.world_size.get())
        }
        _ => None,
    };
    let mut partial = [T::Partial::zeroed(); BLOCK_ELEMS];
    let mut start = 0;
    for block in target.chunks_mut(BLOCK_ELEMS) {
        let partial = &mut partial[..block.len()];
        let range = start..start + block.len();
        start = range.end;
        for (index, operand) in operands.iter().enumerate() {
            let elements = match operand {
                Operand::Target => &*block,
                Operand::Peer(elements) => &elements[range.clone()],
            };
            if index == 0 {
                for (partial, element) in partial.iter_mut().zip(elements) {
                    *partial = element.widen();
                }
            } else {
                for (partial, element) in partial.iter_mut().zip(elements) {
                    *partial = combine(*partial, element.widen());
                }
            }
        }
        if let Some(divisor) = divisor {
            for partial in partial.iter_mut() {
                *partial = T::divide(*partial, divisor);
            }
        }
        for (element, partial) in block.iter_mut().zip(partial.iter()) {
            *element = T::narrow(*partial);
        }
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
                ReduceOp::Min => T::min(partial, operand),
                ReduceOp::Max => T::max(partial, operand),
                ReduceOp::Product => T::product(partial, operand),
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
        let supported = ReduceOp::ALL.iter().filter(|op| op.supports(T::DTYPE));
        for &reduce in supported {
            for len in [0, 1, BLOCK_ELEMS - 1, BLOCK_ELEMS, 2 * BLOCK_ELEMS + 3] {
                let options = FoldOptions {
                    reduce,
                    stage: Stage::Final,
                    world_size: WorldSize::new(3).unwrap(),
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
                for index in 0..len {
                    let expected = fold_one(
                        &[ranks[0][index], ranks[1][index], ranks[2][index]],
                        options,
                    );
                    assert_eq!(target[index], expected, "{reduce} element {index} of {len}");
                }
            }
        }
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
        check(|seed| seed as i8);
        check(|seed| seed as i16 - 50);
        check(|seed| (seed * 31) as u16);
        check(|seed| seed as u64);
    }

    #[test]
    fn sixteen_bit_floats_are_rounded_once() {
        // 2048 + 1 is not a binary16, so rounding after each addition would lose both ones.
        let options = FoldOptions {
            reduce: ReduceOp::Sum,
            stage: Stage::Final,
            world_size: WorldSize::new(3).unwrap(),
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
    fn not_a_number_is_not_hidden_by_min_or_max() {
        for reduce in [ReduceOp::Min, ReduceOp::Max] {
            let options = FoldOptions {
                reduce,
                stage: Stage::Final,
                world_size: WorldSize::new(2).unwrap(),
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
