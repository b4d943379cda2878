//! Whether ranks must call an operation from the same line of their program.

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

bonfire_plan::named!(CallSites as "choice of call-sites" { Named = "named", Compared = "compared" });

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
