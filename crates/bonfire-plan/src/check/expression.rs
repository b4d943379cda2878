//! Symbolic values: how an element came to be, without saying which numbers it was made of.
//!
//! Two elements with equal expressions have equal bits for every input, in every dtype. That is
//! why the order of a fold and each rounding are part of an expression. The two operands of one
//! fold may change places, because addition, minimum and maximum commute exactly; folds are never
//! regrouped, because floating-point addition does not associate.

use std::collections::HashMap;

use super::rank_set;
use crate::{Rank, Stage, WorldSize};

/// What one element holds: an expression, and what has been done to it since it was folded.
///
/// Packed into one word: the expression's number, then a bit for "rounded to the dtype after a
/// fold", then a bit for "final".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Value(u32);

impl Value {
    /// Data that was never written, or that the collective leaves unspecified.
    pub(super) const UNDEFINED: Self = Self(u32::MAX);
    const FINAL: u32 = 1;
    const ROUNDED: u32 = 2;
    const FLAG_BITS: u32 = 2;

    pub(super) const fn leaf(rank: Rank) -> Self {
        Self(rank.get() << Self::FLAG_BITS)
    }

    pub(super) fn is_undefined(self) -> bool {
        self == Self::UNDEFINED
    }

    pub(super) const fn is_final(self) -> bool {
        self.0 & Self::FINAL != 0
    }

    /// The value as a `Reduce` of `operands` operands stores it.
    ///
    /// A lone operand that is not finished passes through unchanged: converting it to the
    /// accumulation type and back is exact.
    pub(super) const fn stored(self, stage: Stage, operands: usize) -> Self {
        match stage {
            Stage::Final => Self(self.0 | Self::ROUNDED | Self::FINAL),
            Stage::Partial if operands > 1 => Self(self.0 | Self::ROUNDED),
            Stage::Partial => self,
        }
    }

    const fn expression(self) -> usize {
        (self.0 >> Self::FLAG_BITS) as usize
    }
}

/// Every distinct fold that occurred, by its operands; and whose data each expression holds.
pub(super) struct Expressions {
    world_size: WorldSize,
    folds: HashMap<[Value; 2], Value>,
    /// One set of ranks per expression, one after the other; the leaves come first.
    contributors: Vec<u64>,
    /// Each expression without the roundings in it.
    unrounded: Vec<Value>,
}

impl Expressions {
    pub(super) fn new(world_size: WorldSize) -> Self {
        let words = rank_set::words(world_size);
        let mut contributors = vec![0; world_size.len() * words];
        for (rank, set) in world_size.ranks().zip(contributors.chunks_exact_mut(words)) {
            rank_set::insert(set, rank);
        }
        Self {
            world_size,
            folds: HashMap::new(),
            contributors,
            unrounded: world_size.ranks().map(Value::leaf).collect(),
        }
    }

    /// The fold of two values, not yet rounded; or the rank whose data both of them hold.
    pub(super) fn fold(&mut self, left: Value, right: Value) -> Result<Value, Rank> {
        let operands = [left.min(right), left.max(right)];
        for operand in operands {
            let is_open = !operand.is_undefined() && !operand.is_final();
            assert!(is_open, "operands are checked before");
        }
        if let Some(&folded) = self.folds.get(&operands) {
            return Ok(folded);
        }
        let common = rank_set::first_common(self.contributors(left), self.contributors(right));
        if let Some(rank) = common {
            return Err(rank);
        }
        let mut contributors = self.contributors(left).to_vec();
        rank_set::unite(&mut contributors, self.contributors(right));
        let number = self.contributors.len() / contributors.len();
        let folded = Value((number << Value::FLAG_BITS) as u32);
        let packed = folded.expression();
        assert_eq!(packed, number, "a check holds at most 2^30 expressions");
        self.contributors.extend(contributors);
        self.folds.insert(operands, folded);
        self.unrounded.push(folded);
        let [one, other] = operands.map(|operand| self.unrounded[operand.expression()]);
        if [one.min(other), one.max(other)] != operands {
            self.unrounded[number] = self.fold(one, other)?;
        }
        Ok(folded)
    }

    /// The fold over ranks 0 to n - 1 in that order, in one step with one rounding.
    pub(super) fn canonical(&mut self) -> Value {
        let mut folded = Value::leaf(Rank::new(0));
        for rank in self.world_size.ranks().skip(1) {
            let more = self.fold(folded, Value::leaf(rank));
            folded = more.expect("the leaves are disjoint");
        }
        folded.stored(Stage::Final, self.world_size.len())
    }

    /// Whether two values are the same fold but for roundings on the way.
    pub(super) fn are_alike(&self, one: Value, other: Value) -> bool {
        let unrounded = |value: Value| self.unrounded[value.expression()];
        unrounded(one) == unrounded(other)
    }

    pub(super) fn first_missing(&self, value: Value) -> Option<Rank> {
        rank_set::first_missing(self.contributors(value), self.world_size)
    }

    pub(super) fn members(&self, value: Value) -> Vec<Rank> {
        rank_set::members(self.contributors(value), self.world_size).collect()
    }

    fn contributors(&self, value: Value) -> &[u64] {
        let words = rank_set::words(self.world_size);
        let start = value.expression() * words;
        &self.contributors[start..start + words]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves() -> (Expressions, [Value; 3]) {
        (Expressions::new(WorldSize::new(3).unwrap()), [0, 1, 2].map(|r| Value::leaf(Rank::new(r))))
    }

    #[test]
    fn operands_change_places_but_folds_are_not_regrouped() {
        let (mut expressions, [a, b, c]) = leaves();
        let ab = expressions.fold(a, b).unwrap();
        assert_eq!(expressions.fold(b, a), Ok(ab));
        let bc = expressions.fold(b, c).unwrap();
        assert_ne!(expressions.fold(ab, c), expressions.fold(a, bc));
        assert_eq!(expressions.fold(c, ab), expressions.fold(ab, c));
    }

    #[test]
    fn a_rounding_in_between_is_another_value() {
        let (mut expressions, [a, b, c]) = leaves();
        let ab = expressions.fold(a, b).unwrap();
        let at_once = expressions.fold(ab, c).unwrap();
        let in_two = expressions.fold(ab.stored(Stage::Partial, 2), c).unwrap();
        assert_ne!(at_once, in_two);
        assert_eq!(at_once.stored(Stage::Final, 3), expressions.canonical());
        assert_eq!(a.stored(Stage::Partial, 1), a);
        assert!(expressions.are_alike(in_two, at_once));
        let bc = expressions.fold(b, c).unwrap();
        let regrouped = expressions.fold(a, bc).unwrap();
        assert!(!expressions.are_alike(in_two, regrouped));
    }

    #[test]
    fn a_rank_is_not_folded_twice() {
        let (mut expressions, [a, b, c]) = leaves();
        let ab = expressions.fold(a, b).unwrap();
        let bc = expressions.fold(b, c).unwrap();
        assert_eq!(expressions.fold(ab, bc), Err(Rank::new(1)));
        assert_eq!(expressions.fold(a, a), Err(Rank::new(0)));
        assert_eq!(expressions.first_missing(ab), Some(Rank::new(2)));
        assert_eq!(expressions.members(bc), [1, 2].map(Rank::new));
    }
}
