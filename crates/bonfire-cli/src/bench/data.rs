//! Test data that looks random and whose reduction is known exactly.

use std::convert::identity;

use bonfire_collective::{Element, ReduceOp};
use bytemuck::Pod;
use half::{bf16, f16};

use super::layout::{Origin, Place};
use crate::operation::Operation;

/// Elements verified at once: their expected values stay in a first-level cache.
const CHUNK_ELEMS: usize = 1024;

/// An element type that small whole numbers fit into.
pub(super) trait Value: Element + Pod + PartialEq {
    /// Numbers brought by ranks are below this: every partial sum of up to 127 ranks is exact.
    fn limit(ranks: usize) -> u32;

    /// The element that is `number`; integers wrap.
    fn from_number(number: u32) -> Self;

    /// The mean of `of` numbers with this sum, as this type has it: integers are cut towards zero.
    fn mean(sum: u32, of: usize) -> Self;
}

/// The largest limit for which the sum over all ranks is at most `sum_max`.
fn limit_for(sum_max: usize, ranks: usize) -> u32 {
    (sum_max / ranks).clamp(2, 1 << 12) as u32
}

macro_rules! float_values {
    ($($type:ty, $real:ty, $sum_max:expr, $from:expr;)+) => {$(
        impl Value for $type {
            fn limit(ranks: usize) -> u32 {
                limit_for($sum_max, ranks)
            }
            fn from_number(number: u32) -> Self {
                $from(number as $real)
            }
            fn mean(sum: u32, of: usize) -> Self {
                $from(sum as $real / of as $real)
            }
        }
    )+};
}

macro_rules! integer_values {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn limit(ranks: usize) -> u32 {
                limit_for(<$type>::MAX.min(1 << (<$type>::BITS - 2)) as usize, ranks)
            }
            fn from_number(number: u32) -> Self {
                number as $type
            }
            fn mean(sum: u32, of: usize) -> Self {
                (sum / of as u32) as $type
            }
        }
    )+};
}

float_values! {
    f32, f32, 1 << 24, identity;
    f64, f64, 1 << 24, identity;
    f16, f32, 1 << 11, f16::from_f32;
    bf16, f32, 1 << 8, bf16::from_f32;
}
integer_values!(i8, i16, i32, i64, u8, u16, u32, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) operation: Operation,
    pub(super) place: Place,
    pub(super) redop: ReduceOp,
    pub(super) count: usize,
    /// Which operation of the run it is.
    pub(super) slot: usize,
}

impl Data {
    pub(super) fn fill<T: Value>(self, input: &mut [T]) {
        let numbers = Numbers::new::<T>(self, self.place.me);
        for (index, element) in input.iter_mut().enumerate() {
            *element = T::from_number(numbers.at(index));
        }
    }

    /// How many elements of this rank's result are not what they must be.
    pub(super) fn count_wrong<T: Value>(self, output: &[T]) -> u64 {
        let blocks = self.operation.blocks(self.place).output;
        assert_eq!(
            output.len(),
            blocks * self.count,
            "a result of {blocks} blocks of {}",
            self.count
        );
        let mut wrong = 0;
        for (block, elements) in output.chunks(self.count.max(1)).enumerate() {
            let Some(origin) = self.operation.origin(self.place, block) else {
                continue;
            };
            for (index, chunk) in elements.chunks(CHUNK_ELEMS).enumerate() {
                let expected = self.expected::<T>(origin, index * CHUNK_ELEMS);
                let differ = chunk.iter().zip(&expected).filter(|(a, b)| a != b);
                wrong += differ.count() as u64;
            }
        }
        wrong
    }

    /// A chunk of a result, from its element `first` on.
    fn expected<T: Value>(self, origin: Origin, first: usize) -> [T; CHUNK_ELEMS] {
        let (block, only) = match origin {
            Origin::Fold { block } => (block, None),
            Origin::Copy { rank, block } => (block, Some(rank)),
        };
        let first = block * self.count + first;
        let mut folded = [0; CHUNK_ELEMS];
        let numbers = Numbers::new::<T>(self, only.unwrap_or(0));
        self.add(&mut folded, numbers, first, |_, new| new);
        if only.is_some() {
            return folded.map(T::from_number);
        }
        for rank in 1..self.place.ranks {
            let numbers = Numbers::new::<T>(self, rank);
            match self.redop {
                ReduceOp::Sum | ReduceOp::Mean => {
                    self.add(&mut folded, numbers, first, u32::wrapping_add);
                }
                ReduceOp::Min => self.add(&mut folded, numbers, first, u32::min),
                ReduceOp::Max => self.add(&mut folded, numbers, first, u32::max),
                ReduceOp::Product => self.add(&mut folded, numbers, first, u32::wrapping_mul),
                ReduceOp::And => self.add(&mut folded, numbers, first, |a, b| a & b),
                ReduceOp::Or => self.add(&mut folded, numbers, first, |a, b| a | b),
                ReduceOp::Xor => self.add(&mut folded, numbers, first, |a, b| a ^ b),
            }
        }
        match self.redop {
            ReduceOp::Mean => folded.map(|sum| T::mean(sum, self.place.ranks)),
            _ => folded.map(T::from_number),
        }
    }

    #[inline]
    fn add(
        self,
        folded: &mut [u32; CHUNK_ELEMS],
        numbers: Numbers,
        first: usize,
        fold: impl Fn(u32, u32) -> u32,
    ) {
        for (index, element) in folded.iter_mut().enumerate() {
            *element = fold(*element, numbers.at(first + index));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    seed: u32,
    limit: u32,
}

impl Numbers {
    fn new<T: Value>(data: Data, rank: usize) -> Self {
        let seed = (rank as u32)
            .wrapping_mul(0x85eb_ca6b)
            .wrapping_add((data.slot as u32).wrapping_mul(0xc2b2_ae35));
        let limit = match data.redop {
            // Zeros and ones, whose product is exact in every type.
            ReduceOp::Product => 2,
            _ => T::limit(data.place.ranks),
        };
        Self { seed, limit }
    }

    /// A hash of the index, scaled to the range. Cheap enough for a vector unit.
    #[inline]
    fn at(self, index: usize) -> u32 {
        let mixed = (index as u32 ^ self.seed).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
        ((mixed >> 16) * self.limit) >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: usize = 3;

    fn data(operation: Operation, me: usize, redop: ReduceOp) -> Data {
        Data {
            operation,
            place: Place { me, ranks: RANKS, root: 1 },
            redop,
            count: 2 * CHUNK_ELEMS + 5,
            slot: 7,
        }
    }

    /// The inputs of all ranks for an all-reduce.
    fn inputs<T: Value>(redop: ReduceOp) -> Vec<Vec<T>> {
        let filled = |me| {
            let data = data(Operation::AllReduce, me, redop);
            let mut input = vec![T::zeroed(); data.count];
            data.fill(&mut input);
            input
        };
        (0..RANKS).map(filled).collect()
    }

    #[test]
    fn the_fold_of_what_ranks_bring_is_what_is_expected() {
        for (redop, fold) in [
            (ReduceOp::Sum, (|a, b| a + b) as fn(f64, f64) -> f64),
            (ReduceOp::Min, f64::min),
            (ReduceOp::Max, f64::max),
            (ReduceOp::Product, |a, b| a * b),
        ] {
            let inputs = inputs::<f64>(redop);
            let count = inputs[0].len();
            let folded = |index: usize| {
                let brought = inputs.iter().map(|input| input[index]);
                brought.reduce(fold).unwrap()
            };
            let mut output: Vec<f64> = (0..count).map(folded).collect();
            let data = data(Operation::AllReduce, 0, redop);
            assert_eq!(data.count_wrong(&output), 0, "{redop}");
            output[CHUNK_ELEMS + 1] += 1.0;
            output[count - 1] -= 1.0;
            assert_eq!(data.count_wrong(&output), 2, "{redop}");
        }
    }

    #[test]
    fn integers_have_the_mean_cut_towards_zero() {
        let inputs = inputs::<u8>(ReduceOp::Mean);
        let mean = |index| {
            let sum: u32 = inputs.iter().map(|input: &Vec<u8>| u32::from(input[index])).sum();
            (sum / RANKS as u32) as u8
        };
        let output: Vec<u8> = (0..inputs[0].len()).map(mean).collect();
        let data = data(Operation::AllReduce, 0, ReduceOp::Mean);
        assert_eq!(data.count_wrong(&output), 0);
    }

    #[test]
    fn ranks_and_operations_bring_different_numbers_that_use_the_range() {
        let inputs = inputs::<f32>(ReduceOp::Sum);
        assert_ne!(inputs[0], inputs[1]);
        let next = Data { slot: 8, ..data(Operation::AllReduce, 0, ReduceOp::Sum) };
        let mut later = vec![0.0; next.count];
        next.fill(&mut later);
        assert_ne!(inputs[0], later);
        let limit = f32::limit(RANKS) as f32;
        let largest = inputs[0].iter().copied().fold(0.0, f32::max);
        assert!(largest < limit && largest > 0.9 * limit, "{largest} of {limit}");
    }
}
