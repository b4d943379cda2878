//! The element types of the one-shot kernel.

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Scalar {
    F32,
    F64,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Scalar {
    /// Its size.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Its macros in the kernel: the type in memory, the type of partial results, and the type to add
    /// and multiply in, which wraps where it is unsigned.
    pub(super) fn defines(self) -> Vec<String> {
        let (store, partial, wrap, kind) = match self {
            Self::F32 => ("float", "float", "float", "FLOAT"),
            Self::F64 => ("double", "double", "double", "FLOAT"),
            Self::F16 => ("unsigned short", "float", "float", "F16"),
            Self::BF16 => ("unsigned short", "float", "float", "BF16"),
            Self::I8 => ("signed char", "signed char", "unsigned int", "INTEGER"),
            Self::I16 => ("short", "short", "unsigned int", "INTEGER"),
            Self::I32 => ("int", "int", "unsigned int", "INTEGER"),
            Self::I64 => ("long long", "long long", "unsigned long long", "INTEGER"),
            Self::U8 => ("unsigned char", "unsigned char", "unsigned int", "INTEGER"),
            Self::U16 => (
                "unsigned short",
                "unsigned short",
                "unsigned int",
                "INTEGER",
            ),
            Self::U32 => ("unsigned int", "unsigned int", "unsigned int", "INTEGER"),
            Self::U64 => (
                "unsigned long long",
                "unsigned long long",
                "unsigned long long",
                "INTEGER",
            ),
        };
        let mut defines = vec![
            format!("STORE={store}"),
            format!("PARTIAL={partial}"),
            format!("WRAP={wrap}"),
            format!("KIND_{kind}=1"),
        ];
        if self == Self::F64 {
            defines.push("WIDE=1".to_owned());
        }
        defines
    }
}
