//! Elements, and how they are reduced.
//!
//! Each combination of two is rounded to the type of the elements, those of 16 bits included, so that a sum of
//! three ranks rounds twice. A mean of floats is a sum of shares, each multiplied with the reciprocal of the
//! number of ranks, which is a number of that type; a mean of integers is a sum that is divided at the end.
//! So do the kernels of NCCL (`hostToDevRedOp` in its `enqueue.cc`); a switch that adds for it rounds less often,
//! and the order of the ranks may be any.

use std::ffi::c_int;

use half::{bf16, f16};

/// The sizes of the element types (`ncclDataType_t`), by their numbers.
pub(super) const KINDS: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];

/// A mean: a sum of shares, or a sum that is divided.
const MEAN: c_int = 4;

/// How elements of which type are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    kind: c_int,
    op: c_int,
}

/// A part of a reduction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'a> {
    /// They are what one of that many ranks brings: a mean of floats takes that share of them.
    Share(usize),
    /// The elements of the next rank are added, or what the reduction does instead.
    Add(&'a [u8]),
    /// Those of that many ranks are there, which a mean of integers divides by.
    Divide(usize),
}

impl Reduction {
    /// `None` for what NCCL has not.
    pub(super) fn new(kind: c_int, op: c_int) -> Option<Self> {
        let is_known = (0..=MEAN).contains(&op) && (0..KINDS.len() as c_int).contains(&kind);
        is_known.then_some(Self { kind, op })
    }

    /// A number that identifies it.
    pub(super) fn number(self) -> u64 {
        self.kind as u64 * 16 + self.op as u64
    }

    /// Applies a step to what is folded so far, or is about to be.
    pub(super) fn apply(self, folded: &mut [u8], step: Step<'_>) {
        match self.kind {
            0 => self.apply_as::<i8>(folded, step),
            1 => self.apply_as::<u8>(folded, step),
            2 => self.apply_as::<i32>(folded, step),
            3 => self.apply_as::<u32>(folded, step),
            4 => self.apply_as::<i64>(folded, step),
            5 => self.apply_as::<u64>(folded, step),
            6 => self.apply_as::<f16>(folded, step),
            7 => self.apply_as::<f32>(folded, step),
            8 => self.apply_as::<f64>(folded, step),
            9 => self.apply_as::<bf16>(folded, step),
            other => unreachable!("`new` refuses elements of type {other}"),
        }
    }

    fn apply_as<T: Number>(self, folded: &mut [u8], step: Step<'_>) {
        let elements = folded.chunks_exact_mut(size_of::<T>());
        let is_mean = self.op == MEAN;
        match step {
            Step::Add(brought) => {
                for (sum, value) in elements.zip(brought.chunks_exact(size_of::<T>())) {
                    T::read(sum).combine(T::read(value), self.op).write(sum);
                }
            }
            Step::Share(ranks) if is_mean => {
                elements.for_each(|own| T::read(own).share(ranks).write(own));
            }
            Step::Divide(ranks) if is_mean => {
                elements.for_each(|sum| T::read(sum).over(ranks).write(sum));
            }
            Step::Share(_) | Step::Divide(_) => {}
        }
    }
}

/// An element, of as many bytes as it is given.
trait Number: Copy + PartialOrd {
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    /// By the number of an `ncclRedOp_t`.
    fn combine(self, other: Self, op: c_int) -> Self;
    /// What a rank adds to the mean of that many.
    fn share(self, ranks: usize) -> Self;
    /// The mean of that many ranks, of the sum of their shares.
    fn over(self, ranks: usize) -> Self;
}

macro_rules! number {
    ($($type:ty: $add:expr, $multiply:expr, $share:expr, $over:expr);+ $(;)?) => {$(
        impl Number for $type {
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_ne_bytes(own)
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            fn combine(self, other: Self, op: c_int) -> Self {
                match op {
                    0 | MEAN => $add(self, other),
                    1 => $multiply(self, other),
                    2 if self < other => other,
                    3 if other < self => other,
                    _ => self,
                }
            }

            fn share(self, ranks: usize) -> Self {
                $share(self, ranks)
            }

            fn over(self, ranks: usize) -> Self {
                $over(self, ranks)
            }
        }
    )+};
}

macro_rules! integers {
    ($($type:ty)+) => {
        number! {$(
            $type: <$type>::wrapping_add, <$type>::wrapping_mul, |own, _| own, |sum, ranks| sum / ranks as $type;
        )+}
    };
}

macro_rules! floats {
    ($($type:ty: $reciprocal:expr);+ $(;)?) => {
        number! {$(
            $type: |a, b| a + b, |a, b| a * b, |own, ranks| own * $reciprocal(1.0 / ranks as f64), |sum, _| sum;
        )+}
    };
}

integers! { i8 u8 i32 u32 i64 u64 }

floats! {
    f16: |exact| f16::from_f32(exact as f32);
    bf16: |exact| bf16::from_f32(exact as f32);
    f32: |exact| exact as f32;
    f64: |exact| exact;
}
