//! The element types that groups move and reduce.

use bonfire_plan::DType;
use bytemuck::Pod;
use half::{bf16, f16};

/// A type whose slices can be communicated. Sealed: the set is [`DType`].
pub trait Element: Pod + Send + Sync + sealed::Arithmetic + 'static {
    /// Its name on the wire.
    const DTYPE: DType;
}

pub(crate) mod sealed {
    use bytemuck::Pod;

    /// Arithmetic in the type that partial results are kept in: f32 for the 16-bit floats, the
    /// type itself otherwise.
    pub trait Arithmetic: Copy {
        /// Partial results.
        type Partial: Pod;

        fn widen(self) -> Self::Partial;
        fn narrow(partial: Self::Partial) -> Self;
        fn sum(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn min(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn max(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn product(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn and(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn or(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn xor(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        /// Integers are divided towards zero.
        fn divide(partial: Self::Partial, by: u32) -> Self::Partial;
    }
}

/// The smaller; NaN if either is, as PyTorch has it, so that an overflow on one rank is not hidden.
macro_rules! float_pick {
    ($left:ident, $right:ident, $better:tt) => {
        if $left.is_nan() || $left $better $right { $left } else { $right }
    };
}

macro_rules! float {
    ($type:ty, $partial:ty, $dtype:ident, $widen:expr, $narrow:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }

        impl sealed::Arithmetic for $type {
            type Partial = $partial;

            #[inline]
            fn widen(self) -> $partial {
                $widen(self)
            }
            #[inline]
            fn narrow(partial: $partial) -> Self {
                $narrow(partial)
            }
            #[inline]
            fn sum(left: $partial, right: $partial) -> $partial {
                left + right
            }
            #[inline]
            fn min(left: $partial, right: $partial) -> $partial {
                float_pick!(left, right, <)
            }
            #[inline]
            fn max(left: $partial, right: $partial) -> $partial {
                float_pick!(left, right, >)
            }
            #[inline]
            fn product(left: $partial, right: $partial) -> $partial {
                left * right
            }
            fn and(_: $partial, _: $partial) -> $partial {
                unreachable!("operations on bits of floats are refused before they start")
            }
            fn or(_: $partial, _: $partial) -> $partial {
                unreachable!("operations on bits of floats are refused before they start")
            }
            fn xor(_: $partial, _: $partial) -> $partial {
                unreachable!("operations on bits of floats are refused before they start")
            }
            #[inline]
            fn divide(partial: $partial, by: u32) -> $partial {
                partial / by as $partial
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }

        impl sealed::Arithmetic for $type {
            type Partial = $type;

            #[inline]
            fn widen(self) -> $type {
                self
            }
            #[inline]
            fn narrow(partial: $type) -> Self {
                partial
            }
            #[inline]
            fn sum(left: $type, right: $type) -> $type {
                left.wrapping_add(right)
            }
            #[inline]
            fn min(left: $type, right: $type) -> $type {
                Ord::min(left, right)
            }
            #[inline]
            fn max(left: $type, right: $type) -> $type {
                Ord::max(left, right)
            }
            #[inline]
            fn product(left: $type, right: $type) -> $type {
                left.wrapping_mul(right)
            }
            #[inline]
            fn and(left: $type, right: $type) -> $type {
                left & right
            }
            #[inline]
            fn or(left: $type, right: $type) -> $type {
                left | right
            }
            #[inline]
            fn xor(left: $type, right: $type) -> $type {
                left ^ right
            }
            #[inline]
            fn divide(partial: $type, by: u32) -> $type {
                // A group of 256 and more ranks cannot be a u8; its mean of u8 sums is 0 anyway.
                <$type>::try_from(by).map_or(0, |by| partial / by)
            }
        }
    };
}

float!(
    f32,
    f32,
    F32,
    std::convert::identity,
    std::convert::identity
);
float!(
    f64,
    f64,
    F64,
    std::convert::identity,
    std::convert::identity
);
float!(f16, f32, F16, f16::to_f32, f16::from_f32);
float!(bf16, f32, BF16, bf16::to_f32, bf16::from_f32);
integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);
integer!(u32, U32);
integer!(i8, I8);
integer!(i16, I16);
integer!(u16, U16);
integer!(u64, U64);
