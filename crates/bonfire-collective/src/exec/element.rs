//! The element types that groups move and reduce.

use bonfire_plan::{DType, Rank};
use bonfire_sys::window::View;
use bytemuck::{CheckedBitPattern, NoUninit, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::exec::fold::{self, FoldOptions, Operand};

/// A type whose slices can be communicated. Sealed: the set is [`DType`].
///
/// Which reductions a type has says [`ReduceOp::supports`](bonfire_plan::ReduceOp::supports).
pub trait Element:
    NoUninit + CheckedBitPattern + Zeroable + Send + Sync + sealed::Arithmetic + 'static
{
    /// Its name on the wire.
    const DTYPE: DType;
}

pub(crate) mod sealed {
    use bonfire_plan::Rank;
    use bonfire_sys::window::View;
    use bytemuck::{Pod, Zeroable};

    use crate::exec::fold::{FoldOptions, Operand};

    /// Arithmetic in the type that partial results are kept in: f32 for the 16-bit floats, the type itself otherwise.
    pub trait Arithmetic: Copy + Zeroable {
        type Partial: Pod;

        /// The type as memory that another rank may write: itself if any bytes are a value of it.
        type Plain: super::Element + Pod;

        /// The elements as [`Plain`](Self::Plain), if that is the type itself.
        fn as_plain(elements: &mut [Self]) -> Option<&mut [Self::Plain]>;

        fn widen(self) -> Self::Partial;
        fn narrow(partial: Self::Partial) -> Self;
        fn sum(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn product(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn min(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn max(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn and(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn or(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        fn xor(left: Self::Partial, right: Self::Partial) -> Self::Partial;
        /// Integers are divided towards zero.
        fn divide(partial: Self::Partial, by: u32) -> Self::Partial;

        /// [`fold`](crate::exec::fold::fold()) of this type, compiled once, in this crate: the crates that use groups
        /// would else each compile every reduction of every type.
        fn fold(target: &mut [Self], operands: &[Operand<'_, Self>], options: FoldOptions);

        /// [`fold_views`](crate::exec::fold::fold_views()) of this type, compiled likewise.
        fn fold_views(
            views: &mut [View<'_, Self>],
            sources: &[Rank],
            targets: &[Rank],
            options: FoldOptions,
        );

        /// [`widen`](Self::widen) for slices of one length.
        #[inline(always)]
        fn widen_all(elements: &[Self], partials: &mut [Self::Partial]) {
            for (partial, element) in partials.iter_mut().zip(elements) {
                *partial = element.widen();
            }
        }

        /// [`narrow`](Self::narrow) for slices of one length.
        #[inline(always)]
        fn narrow_all(partials: &[Self::Partial], elements: &mut [Self]) {
            for (element, partial) in elements.iter_mut().zip(partials) {
                *element = Self::narrow(*partial);
            }
        }
    }
}

/// The smaller or larger; NaN if either is, as PyTorch has it, so that an overflow on one rank is not
/// hidden. There is one NaN, and -0 is below +0: the bits do not depend on the order of the ranks.
macro_rules! float_pick {
    ($left:ident, $right:ident, $type:ty, $better:tt, $zero:expr) => {
        if $left.is_nan() || $right.is_nan() {
            <$type>::NAN
        } else if $left == $right {
            // Equal, but perhaps zeros of different signs.
            <$type>::from_bits($zero($left.to_bits(), $right.to_bits()))
        } else if $left $better $right {
            $left
        } else {
            $right
        }
    };
}

macro_rules! operations {
    ($partial:ty: $($name:ident |$left:ident, $right:ident| $result:expr;)+) => {$(
        #[inline(always)]
        fn $name($left: $partial, $right: $partial) -> $partial {
            $result
        }
    )+};
}

/// What every float does in the type of its partial results.
macro_rules! float_arithmetic {
    ($partial:ty) => {
        operations! { $partial:
            sum |left, right| left + right;
            product |left, right| left * right;
            min |left, right| float_pick!(left, right, $partial, <, |left, right| left | right);
            max |left, right| float_pick!(left, right, $partial, >, |left, right| left & right);
            and |_left, _right| panic!("{NO_BITS}");
            or |_left, _right| panic!("{NO_BITS}");
            xor |_left, _right| panic!("{NO_BITS}");
        }
        #[inline(always)]
        fn divide(partial: $partial, by: u32) -> $partial {
            partial / by as $partial
        }
    };
}

/// The group refuses these before anything moves.
const NO_BITS: &str = "ReduceOp::supports refuses bit operations on floats";

/// The folds of a type, in a place that is compiled with this crate.
macro_rules! folds {
    ($type:ty) => {
        fn fold(target: &mut [$type], operands: &[Operand<'_, $type>], options: FoldOptions) {
            fold::fold(target, operands, options);
        }

        fn fold_views(
            views: &mut [View<'_, $type>],
            sources: &[Rank],
            targets: &[Rank],
            options: FoldOptions,
        ) {
            fold::fold_views(views, sources, targets, options);
        }
    };
}

/// A number, of which any bytes are a value.
macro_rules! number {
    ($type:ty, $dtype:ident, $partial:ty, { $($arithmetic:tt)* }) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }

        impl sealed::Arithmetic for $type {
            type Partial = $partial;
            type Plain = $type;

            #[inline]
            fn as_plain(elements: &mut [$type]) -> Option<&mut [$type]> {
                Some(elements)
            }

            folds!($type);
            $($arithmetic)*
        }
    };
}

/// A number whose partial results are of its own type.
macro_rules! exact {
    ($type:ty, $dtype:ident, { $($arithmetic:tt)* }) => {
        number!($type, $dtype, $type, {
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(partial: $type) -> $type {
                partial
            }
            $($arithmetic)*
        });
    };
}

macro_rules! float {
    ($type:ty, $dtype:ident) => {
        exact!($type, $dtype, {
            float_arithmetic!($type);
        });
    };
}

macro_rules! half_float {
    ($type:ty, $dtype:ident) => {
        number!($type, $dtype, f32, {
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }
            #[inline(always)]
            fn narrow(partial: f32) -> $type {
                <$type>::from_f32(partial)
            }
            fn widen_all(elements: &[$type], partials: &mut [f32]) {
                elements.convert_to_f32_slice(partials);
            }
            fn narrow_all(partials: &[f32], elements: &mut [$type]) {
                elements.convert_from_f32_slice(partials);
            }
            float_arithmetic!(f32);
        });
    };
}

macro_rules! integer {
    ($type:ty, $dtype:ident) => {
        exact!($type, $dtype, {
            operations! { $type:
                sum |left, right| left.wrapping_add(right);
                product |left, right| left.wrapping_mul(right);
                min |left, right| Ord::min(left, right);
                max |left, right| Ord::max(left, right);
                and |left, right| left & right;
                or |left, right| left | right;
                xor |left, right| left ^ right;
            }
            #[inline(always)]
            fn divide(partial: $type, by: u32) -> $type {
                // A group of 256 and more ranks cannot be a u8; its mean of u8 sums is 0 anyway.
                <$type>::try_from(by).map_or(0, |by| partial / by)
            }
        });
    };
}

float!(f32, F32);
float!(f64, F64);
half_float!(f16, F16);
half_float!(bf16, BF16);
integer!(i8, I8);
integer!(i16, I16);
integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);
integer!(u16, U16);
integer!(u32, U32);
integer!(u64, U64);

impl Element for bool {
    const DTYPE: DType = DType::Bool;
}

/// Logic: product and min are `and`, max is `or`.
impl sealed::Arithmetic for bool {
    type Partial = u8;
    type Plain = u8;

    fn as_plain(_: &mut [bool]) -> Option<&mut [u8]> {
        None
    }

    folds!(bool);

    #[inline(always)]
    fn widen(self) -> u8 {
        u8::from(self)
    }
    #[inline(always)]
    fn narrow(partial: u8) -> bool {
        partial != 0
    }
    operations! { u8:
        sum |_left, _right| panic!("ReduceOp::supports refuses sums of bool");
        product |left, right| left & right;
        min |left, right| left & right;
        max |left, right| left | right;
        and |left, right| left & right;
        or |left, right| left | right;
        xor |left, right| left ^ right;
    }
    fn divide(_: u8, _: u32) -> u8 {
        panic!("ReduceOp::supports refuses means of bool")
    }
}
