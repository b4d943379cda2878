//! Elements, and how they are reduced.

use std::ffi::c_int;

/// The sizes of the element types (`ncclDataType_t`), by their numbers.
pub(super) const KINDS: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];

/// A mean: a sum first.
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
    /// The elements of the next rank are added, or what the reduction does instead.
    Add(&'a [u8]),
    /// Those of so many ranks are there, which a mean divides by.
    Divide(usize),
}

impl Reduction {
    /// `None` for what NCCL has not, and for elements of 16 bits.
    pub(super) fn new(kind: c_int, op: c_int) -> Option<Self> {
        let is_known = (0..=MEAN).contains(&op) && matches!(kind, 0..=5 | 7 | 8);
        is_known.then_some(Self { kind, op })
    }

    /// Tells it from others.
    pub(super) fn number(self) -> u64 {
        self.kind as u64 * 16 + self.op as u64
    }

    /// Goes on with what is folded so far.
    pub(super) fn apply(self, folded: &mut [u8], step: Step<'_>) {
        match self.kind {
            0 => self.apply_as::<i8>(folded, step),
            1 => self.apply_as::<u8>(folded, step),
            2 => self.apply_as::<i32>(folded, step),
            3 => self.apply_as::<u32>(folded, step),
            4 => self.apply_as::<i64>(folded, step),
            5 => self.apply_as::<u64>(folded, step),
            7 => self.apply_as::<f32>(folded, step),
            8 => self.apply_as::<f64>(folded, step),
            other => unreachable!("`new` refuses elements of type {other}"),
        }
    }

    fn apply_as<T: Number>(self, folded: &mut [u8], step: Step<'_>) {
        let sums = folded.chunks_exact_mut(size_of::<T>());
        match step {
            Step::Add(brought) => {
                for (sum, value) in sums.zip(brought.chunks_exact(size_of::<T>())) {
                    T::read(sum).combine(T::read(value), self.op).write(sum);
                }
            }
            Step::Divide(ranks) if self.op == MEAN => {
                sums.for_each(|sum| T::read(sum).over(ranks).write(sum));
            }
            Step::Divide(_) => {}
        }
    }
}

/// An element, of as many bytes as it is given.
trait Number: Copy + PartialOrd {
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    /// By the number of an `ncclRedOp_t`.
    fn combine(self, other: Self, op: c_int) -> Self;
    fn over(self, ranks: usize) -> Self;
}

macro_rules! number {
    ($($type:ty: $add:expr, $multiply:expr);+ $(;)?) => {$(
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

            fn over(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }
    )+};
}

number! {
    i8: i8::wrapping_add, i8::wrapping_mul;
    u8: u8::wrapping_add, u8::wrapping_mul;
    i32: i32::wrapping_add, i32::wrapping_mul;
    u32: u32::wrapping_add, u32::wrapping_mul;
    i64: i64::wrapping_add, i64::wrapping_mul;
    u64: u64::wrapping_add, u64::wrapping_mul;
    f32: |a, b| a + b, |a, b| a * b;
    f64: |a, b| a + b, |a, b| a * b;
}
