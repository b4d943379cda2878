//! Whether ranks must call an operation from the same line of their program.

use std::fmt;
use std::str::FromStr;

use bonfire_plan::UnknownName;

/// What the lines count from which ranks call their operations.
///
/// Ranks that run one program may well reach the same operation from different lines: a root that
/// broadcasts what the others receive, a rank without data that keeps the others company. So errors
/// name the lines and no more. A program that never does that can have them compared: then two calls
/// that look alike, but belong to different places, are a mismatch before any data moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CallSites {
    /// Errors and records name them.
    #[default]
    Named,
    /// Ranks that call one operation from different lines get
    /// [`CollectiveError::Mismatch`](crate::CollectiveError::Mismatch).
    Compared,
}

impl CallSites {
    const ALL: [Self; 2] = [Self::Named, Self::Compared];

    /// The value of `BONFIRE_CALL_SITES` that selects it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Compared => "compared",
        }
    }
}

impl fmt::Display for CallSites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CallSites {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UnknownName::find("choice of call-sites", text, &Self::ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_refused() {
        for choice in CallSites::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "strict".parse::<CallSites>().unwrap_err().to_string();
        assert!(error.contains("named or compared"), "{error}");
    }
}
