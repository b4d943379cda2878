//! Which types of CubeCL a kernel computes in, and what all kernels share.

use cubecl::ir::{ElemType, FloatKind, IntKind, UIntKind};
use cubecl::prelude::InputScalar;

use crate::element::{Element, FloatElement, Fold};

pub(crate) fn stored(element: Element) -> ElemType {
    match element {
        Element::F32 => ElemType::Float(FloatKind::F32),
        Element::F64 => ElemType::Float(FloatKind::F64),
        Element::F16 => ElemType::Float(FloatKind::F16),
        Element::Bf16 => ElemType::Float(FloatKind::BF16),
        Element::I8 => ElemType::Int(IntKind::I8),
        Element::I16 => ElemType::Int(IntKind::I16),
        Element::I32 => ElemType::Int(IntKind::I32),
        Element::I64 => ElemType::Int(IntKind::I64),
        Element::U8 => ElemType::UInt(UIntKind::U8),
        Element::U16 => ElemType::UInt(UIntKind::U16),
        Element::U32 => ElemType::UInt(UIntKind::U32),
        Element::U64 => ElemType::UInt(UIntKind::U64),
    }
}

/// The float that partial results of a float are kept in.
pub(crate) fn wide(float: FloatElement) -> ElemType {
    ElemType::Float(match float {
        FloatElement::F64 => FloatKind::F64,
        FloatElement::F32 | FloatElement::F16 | FloatElement::Bf16 => FloatKind::F32,
    })
}

/// The type that partial results of a fold are kept in. Where integers may wrap around it is
/// unsigned: C++ leaves the overflow of a signed type undefined.
pub(crate) fn partial(element: Element, fold: Fold) -> ElemType {
    match fold {
        _ if element.is_float() => divided(element),
        Fold::Min | Fold::Max => stored(element),
        Fold::Sum | Fold::Mean | Fold::Product | Fold::And | Fold::Or | Fold::Xor => {
            unsigned(element)
        }
    }
}

/// The type that a mean is divided in: wide enough for every divisor.
pub(crate) fn divided(element: Element) -> ElemType {
    match element {
        Element::F32 | Element::F16 | Element::Bf16 => ElemType::Float(FloatKind::F32),
        Element::F64 => ElemType::Float(FloatKind::F64),
        Element::I8 | Element::I16 | Element::I32 => ElemType::Int(IntKind::I32),
        Element::I64 => ElemType::Int(IntKind::I64),
        Element::U8 | Element::U16 | Element::U32 => ElemType::UInt(UIntKind::U32),
        Element::U64 => ElemType::UInt(UIntKind::U64),
    }
}

/// The divisor of a mean, with its type. One that the elements cannot hold gives a mean of zero on
/// the CPU: so does the largest number of a wider type.
pub(crate) fn divisor(element: Element, divisor: u32) -> (ElemType, InputScalar) {
    let divided = divided(element);
    let value = match element {
        Element::I8 if divisor > i8::MAX as u32 => i32::MAX as u32,
        Element::I16 if divisor > i16::MAX as u32 => i32::MAX as u32,
        Element::I32 => divisor.min(i32::MAX as u32),
        Element::U8 if divisor > u32::from(u8::MAX) => u32::MAX,
        Element::U16 if divisor > u32::from(u16::MAX) => u32::MAX,
        _ => divisor,
    };
    (divided, InputScalar::new(value, divided))
}

pub(crate) fn unsigned(element: Element) -> ElemType {
    ElemType::UInt(match element.bytes() {
        1 => UIntKind::U8,
        2 => UIntKind::U16,
        4 => UIntKind::U32,
        _ => UIntKind::U64,
    })
}

/// Who does the elements that do not fill a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tail {
    /// The kernel, through a scalar view of its buffers.
    Scalars,
    Absent,
}

impl Tail {
    /// Of a kernel that may be launched for any number of elements.
    pub(crate) fn of_width(width: usize) -> Self {
        if width > 1 { Self::Scalars } else { Self::Absent }
    }
}
