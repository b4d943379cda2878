//! One table per closed set of words: its names on the command line, its codes on the wire.
//!
//! Codes are part of the frame format: never renumber one, and never use 0, so that a zeroed
//! header is not mistaken for a valid one.

pub(crate) fn joined(items: &[impl std::fmt::Display], separator: &str) -> String {
    let texts: Vec<_> = items.iter().map(ToString::to_string).collect();
    texts.join(separator)
}

/// Defines a fieldless enum together with its names and wire codes.
macro_rules! named_codes {
    (
        $(#[$attribute:meta])*
        pub enum $Type:ident as $kind:literal {
            $($(#[$variant_attribute:meta])* $Variant:ident = $code:literal, $name:literal;)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum $Type {
            $($(#[$variant_attribute])* #[serde(rename = $name)] $Variant,)+
        }

        impl $Type {
            /// Every variant, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$Variant),+];

            /// The name on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }

            /// The code on the wire; never 0.
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$Variant => $code,)+
                }
            }

            /// The variant with this wire code, or `None` for a code nobody sends.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$Variant),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.name())
            }
        }

        impl std::str::FromStr for $Type {
            type Err = $crate::UnknownName;

            /// Accepts the names in any case, with `-` for `_`.
            fn from_str(given: &str) -> Result<Self, Self::Err> {
                let wanted = given.trim().to_ascii_lowercase().replace('-', "_");
                let found = Self::ALL.iter().copied().find(|value| value.name() == wanted);
                found.ok_or_else(|| $crate::UnknownName::new($kind, given, Self::ALL))
            }
        }
    };
}

pub(crate) use named_codes;
