//! The element types that kernels work on, and their arithmetic on the CPU.
//!
//! [`Arithmetic`] is the reference that every kernel is held to. It is the arithmetic of
//! `bonfire-collective`, written down here once more because kernels import nothing of the
//! workspace: a kernel must give the same bits as the CPU transports.

use bytemuck::Pod;
use half::{bf16, f16};

/// What a buffer holds. Booleans are bytes of 0 and 1, so their kernels are those of [`U8`].
///
/// [`U8`]: Element::U8
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    F32,
    F64,
    /// 16-bit float with 11 significant bits; partial results are f32.
    F16,
    /// 16-bit float with the exponent of f32; partial results are f32.
    Bf16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Element {
    pub const ALL: [Self; 12] = {
        use Element::{Bf16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        [F32, F64, F16, Bf16, I8, I16, I32, I64, U8, U16, U32, U64]
    };

    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::Bf16)
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }
}

impl std::fmt::Display for Element {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatElement {
    F32,
    F64,
    F16,
    Bf16,
}

impl FloatElement {
    pub const ALL: [Self; 4] = [Self::F32, Self::F64, Self::F16, Self::Bf16];
}

impl From<FloatElement> for Element {
    fn from(float: FloatElement) -> Self {
        match float {
            FloatElement::F32 => Self::F32,
            FloatElement::F64 => Self::F64,
            FloatElement::F16 => Self::F16,
            FloatElement::Bf16 => Self::Bf16,
        }
    }
}

/// How elements are combined; a fold goes over the sources in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fold {
    /// Adds; integers wrap around on overflow.
    Sum,
    /// Sum divided by a number given at launch, integers towards zero.
    Mean,
    /// Multiplies; integers wrap around on overflow.
    Product,
    /// The smallest, -0 below +0; the one NaN that there is if any is NaN.
    Min,
    /// The largest, +0 above -0; the one NaN that there is if any is NaN.
    Max,
    And,
    Or,
    Xor,
}

impl Fold {
    pub const ALL: [Self; 8] = {
        use Fold::{And, Max, Mean, Min, Or, Product, Sum, Xor};
        [Sum, Mean, Product, Min, Max, And, Or, Xor]
    };

    #[must_use]
    pub const fn takes(self, element: Element) -> bool {
        match self {
            Self::And | Self::Or | Self::Xor => !element.is_float(),
            Self::Sum | Self::Mean | Self::Product | Self::Min | Self::Max => true,
        }
    }
}

/// The arithmetic of one element type, in the type that partial results are kept in: f32 for the
/// 16-bit floats, the type itself otherwise.
pub trait Arithmetic: Pod + PartialEq + std::fmt::Debug + Send + Sync {
    type Partial: Copy + std::fmt::Debug;
    const ELEMENT: Element;

    /// The element as a partial result; exact.
    fn widen(self) -> Self::Partial;
    /// The element nearest to a partial result, ties to even.
    fn narrow(partial: Self::Partial) -> Self;
    /// One step of a fold.
    ///
    /// # Panics
    /// If floats are to be combined bit by bit.
    fn combine(fold: Fold, left: Self::Partial, right: Self::Partial) -> Self::Partial;
    /// The end of [`Fold::Mean`]: correctly rounded for floats, towards zero for integers.
    fn divide(partial: Self::Partial, by: u32) -> Self::Partial;
}

macro_rules! float {
    ($type:ty, $partial:ty, $element:ident, $widen:expr, $narrow:expr) => {
        impl Arithmetic for $type {
            type Partial = $partial;
            const ELEMENT: Element = Element::$element;

            fn widen(self) -> $partial {
                $widen(self)
            }
            fn narrow(partial: $partial) -> Self {
                $narrow(partial)
            }
            fn combine(fold: Fold, left: $partial, right: $partial) -> $partial {
                let (a, b) = (left.to_bits(), right.to_bits());
                match fold {
                    Fold::Sum | Fold::Mean => left + right,
                    Fold::Product => left * right,
                    Fold::Min | Fold::Max if left.is_nan() || right.is_nan() => <$partial>::NAN,
                    // Equal, but perhaps zeros of different signs.
                    Fold::Min if left == right => <$partial>::from_bits(a | b),
                    Fold::Max if left == right => <$partial>::from_bits(a & b),
                    Fold::Min if left < right => left,
                    Fold::Max if left > right => left,
                    Fold::Min | Fold::Max => right,
                    Fold::And | Fold::Or | Fold::Xor => {
                        panic!("floats have no {fold:?}: ask Fold::takes first")
                    }
                }
            }
            fn divide(partial: $partial, by: u32) -> $partial {
                partial / by as $partial
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $element:ident) => {
        impl Arithmetic for $type {
            type Partial = $type;
            const ELEMENT: Element = Element::$element;

            fn widen(self) -> $type {
                self
            }
            fn narrow(partial: $type) -> Self {
                partial
            }
            fn combine(fold: Fold, left: $type, right: $type) -> $type {
                match fold {
                    Fold::Sum | Fold::Mean => left.wrapping_add(right),
                    Fold::Product => left.wrapping_mul(right),
                    Fold::Min => Ord::min(left, right),
                    Fold::Max => Ord::max(left, right),
                    Fold::And => left & right,
                    Fold::Or => left | right,
                    Fold::Xor => left ^ right,
                }
            }
            fn divide(partial: $type, by: u32) -> $type {
                // What does not fit the type is larger than every partial result.
                <$type>::try_from(by).map_or(0, |by| partial / by)
            }
        }
    };
}

use std::convert::identity;

float!(f32, f32, F32, identity, identity);
float!(f64, f64, F64, identity, identity);
float!(f16, f32, F16, f16::to_f32, f16::from_f32);
float!(bf16, f32, Bf16, bf16::to_f32, bf16::from_f32);
integer!(i8, I8);
integer!(i16, I16);
integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);
integer!(u16, U16);
integer!(u32, U32);
integer!(u64, U64);
