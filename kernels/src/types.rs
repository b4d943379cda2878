//! Which types of CubeCL a kernel computes in.

use cubecl::ir::{ElemType, FloatKind, IntKind, UIntKind};

use crate::element::{Element, Fold};

/// The type of the buffers.
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
pub(crate) fn wide_float(element: Element) -> ElemType {
    assert!(element.is_float(), "{element} is no float");
    match element {
        Element::F64 => ElemType::Float(FloatKind::F64),
        _ => ElemType::Float(FloatKind::F32),
    }
}

/// The type that partial results of a fold are kept in. Where integers may wrap around it is
/// unsigned: C++ leaves the overflow of a signed type undefined.
pub(crate) fn partial(element: Element, fold: Fold) -> ElemType {
    if element.is_float() {
        return wide_float(element);
    }
    match fold {
        Fold::Min | Fold::Max => stored(element),
        Fold::Sum | Fold::Mean | Fold::Product | Fold::And | Fold::Or | Fold::Xor => {
            unsigned(element)
        }
    }
}

/// The type that a mean is divided in: wide enough for every divisor.
pub(crate) fn divided(element: Element) -> ElemType {
    match element {
        Element::F32 | Element::F64 | Element::F16 | Element::Bf16 => wide_float(element),
        Element::I8 | Element::I16 | Element::I32 => ElemType::Int(IntKind::I32),
        Element::I64 => ElemType::Int(IntKind::I64),
        Element::U8 | Element::U16 | Element::U32 => ElemType::UInt(UIntKind::U32),
        Element::U64 => ElemType::UInt(UIntKind::U64),
    }
}

/// The unsigned integer of the same size.
fn unsigned(element: Element) -> ElemType {
    ElemType::UInt(match element.bytes() {
        1 => UIntKind::U8,
        2 => UIntKind::U16,
        4 => UIntKind::U32,
        _ => UIntKind::U64,
    })
}
