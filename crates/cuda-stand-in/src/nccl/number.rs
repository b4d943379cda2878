//! Elements, and how they are reduced.

use std::ffi::c_int;
use std::slice;

use super::operation::Data;

/// The sizes of the element types (`ncclDataType_t`), by their numbers.
pub(super) const KINDS: [usize; 10] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2];

/// How elements of which type are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    kind: c_int,
    op: c_int,
}

impl Reduction {
    /// `None` for what NCCL has not, and for elements of 16 bits.
    pub(super) fn new(kind: c_int, op: c_int) -> Option<Self> {
        let is_known = (0..5).contains(&op) && matches!(kind, 0..=5 | 7 | 8);
        is_known.then_some(Self { kind, op })
    }

    /// Reduces what the ranks bring, in their order, to the targets. All are equally long and stay allocated
    /// until this returns; nothing else touches them meanwhile.
    pub(super) fn run(self, sources: &[Data], targets: &[Data]) {
        match self.kind {
            0 => self.run_as::<i8>(sources, targets),
            1 => self.run_as::<u8>(sources, targets),
            2 => self.run_as::<i32>(sources, targets),
            3 => self.run_as::<u32>(sources, targets),
            4 => self.run_as::<i64>(sources, targets),
            5 => self.run_as::<u64>(sources, targets),
            7 => self.run_as::<f32>(sources, targets),
            8 => self.run_as::<f64>(sources, targets),
            other => unreachable!("`new` refuses elements of type {other}"),
        }
    }

    fn run_as<T: Number>(self, sources: &[Data], targets: &[Data]) {
        let mut folded: Vec<T> = Vec::new();
        for source in sources {
            let count = source.bytes / size_of::<T>();
            // SAFETY: the caller's memory, which is allocated and not written meanwhile; every bit pattern is a
            // number; NCCL demands that elements are aligned.
            let values = unsafe { slice::from_raw_parts(source.address as *const T, count) };
            if folded.is_empty() {
                folded = values.to_vec();
                continue;
            }
            for (sum, value) in folded.iter_mut().zip(values) {
                *sum = sum.combine(*value, self.op);
            }
        }
        if self.op == 4 {
            folded
                .iter_mut()
                .for_each(|sum| *sum = sum.over(sources.len()));
        }
        for target in targets {
            assert_eq!(target.bytes, folded.len() * size_of::<T>());
            // SAFETY: as above; nothing refers to the sources any more, one of which the target may be.
            let values =
                unsafe { slice::from_raw_parts_mut(target.address as *mut T, folded.len()) };
            values.copy_from_slice(&folded);
        }
    }
}

/// An element.
trait Number: Copy + PartialOrd {
    /// By the number of an `ncclRedOp_t`; a mean is a sum first.
    fn combine(self, other: Self, op: c_int) -> Self;
    fn over(self, ranks: usize) -> Self;
}

macro_rules! number {
    ($($type:ty: $add:expr, $multiply:expr);+ $(;)?) => {$(
        impl Number for $type {
            fn combine(self, other: Self, op: c_int) -> Self {
                match op {
                    0 | 4 => $add(self, other),
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
