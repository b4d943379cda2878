//! The element types that a collective moves.

use super::names::named_codes;

named_codes! {
    /// The type of one element.
    pub enum DType as "dtype" {
        /// 32-bit IEEE float; folded in its own type.
        F32 = 1, "f32";
        /// 64-bit IEEE float; folded in its own type.
        F64 = 2, "f64";
        /// 16-bit IEEE float; folded in `f32`.
        F16 = 3, "f16";
        /// 16-bit brain float; folded in `f32`.
        BF16 = 4, "bf16";
        /// 32-bit signed integer; sums and products wrap.
        I32 = 5, "i32";
        /// 64-bit signed integer; sums and products wrap.
        I64 = 6, "i64";
        /// 8-bit unsigned integer; sums and products wrap.
        U8 = 7, "u8";
        /// 32-bit unsigned integer; sums and products wrap.
        U32 = 8, "u32";
        /// 8-bit signed integer; sums and products wrap.
        I8 = 9, "i8";
        /// 16-bit signed integer; sums and products wrap.
        I16 = 10, "i16";
        /// 16-bit unsigned integer; sums and products wrap.
        U16 = 11, "u16";
        /// 64-bit unsigned integer; sums and products wrap.
        U64 = 12, "u64";
        /// A truth value; one byte, 0 or 1.
        Bool = 13, "bool";
    }
}

impl DType {
    /// The bytes that one element occupies.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether sums of this type are rounded, so that their bits depend on the order of a fold.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }

    /// Whether folds of this type run in a wider one and are rounded when they are written.
    pub const fn is_widened(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }
}
