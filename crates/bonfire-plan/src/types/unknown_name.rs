//! A name that does not exist, and the one that was probably meant.

use std::fmt::Display;

/// A name that is none of the choices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{given}`; choose {}{}", listed(.choices), hint(.given, .choices))]
#[non_exhaustive]
pub struct UnknownName {
    /// What it would name, such as `dtype`.
    pub what: &'static str,
    /// The text that was read, as the message quotes it.
    pub given: String,
    /// What can be given instead, in the order of the message.
    pub choices: Vec<String>,
}

impl UnknownName {
    /// The error of a text that names none of the choices.
    pub fn new(what: &'static str, given: &str, choices: impl IntoIterator<Item: Display>) -> Self {
        Self {
            what,
            given: given.to_owned(),
            choices: choices.into_iter().map(|one| one.to_string()).collect(),
        }
    }

    /// Finds the choice that is displayed as `given`.
    ///
    /// # Errors
    /// [`UnknownName`] if there is none.
    pub fn find<T: Copy + Display>(
        what: &'static str,
        given: &str,
        choices: &[T],
    ) -> Result<T, Self> {
        let mut known = choices.iter().copied();
        let found = known.find(|choice| choice.to_string() == given);
        found.ok_or_else(|| Self::new(what, given, choices))
    }
}

/// Gives the variants of an enum their names: for `name`, `Display` and `FromStr`.
#[macro_export]
macro_rules! named {
    ($Type:ty as $kind:literal { $($Variant:ident = $name:literal),+ }) => {
        impl $Type {
            /// All of them, in the order of messages.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// The name on command lines, in variables of the environment and in logs.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $Type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::UnknownName::find($kind, text, &Self::ALL)
            }
        }
    };
}

fn listed(names: &[String]) -> String {
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Without quotation marks, which readers of the text take for those of names.
fn hint(given: &str, choices: &[String]) -> String {
    nearest(given, choices.iter().map(String::as_str))
        .map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Finds the known name that is most like `name`, if any is like it.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let lower = name.to_lowercase();
    let near = known.map(|name| {
        let known = name.to_lowercase();
        let likeness = strsim::jaro_winkler(&lower, &known);
        (strsim::damerau_levenshtein(&lower, &known), likeness, name)
    });
    let (distance, _, known) =
        near.min_by(|one, other| one.0.cmp(&other.0).then(other.1.total_cmp(&one.1)))?;
    (2 * distance <= name.chars().count().max(2)).then(|| known.to_owned())
}
