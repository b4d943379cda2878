//! Algorithms that the user who starts a program asks for, in place of what the program would use.

use std::fmt;
use std::str::FromStr;

use bonfire_plan::{Algorithm, Collective, Rank, UnknownName};

const ANY: Rank = Rank::new(0);

/// One collective of each kind; whom it names does not matter here.
const KINDS: [Collective; 11] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast { root: ANY },
    Collective::Barrier,
    Collective::Reduce { root: ANY },
    Collective::Gather { root: ANY },
    Collective::Scatter { root: ANY },
    Collective::AllToAll,
    Collective::Transfer { source: ANY, target: ANY },
    Collective::Exchange { first: ANY, second: ANY },
];

/// Which algorithm to use for which collective; from text like `ring`, for all collectives that have
/// such an algorithm, or `all_reduce=ring,all_gather=one_shot`, or both, where the second wins.
///
/// ```
/// # mod bonfire { pub mod collective { pub use bonfire_collective::*; } }
/// use bonfire::collective::AlgorithmOverrides;
///
/// let overrides: AlgorithmOverrides = "ring, all-gather=one_shot".parse()?;
/// assert_eq!(overrides.to_string(), "ring,all_gather=one_shot");
/// // There is no ring for barriers.
/// assert!("barrier=ring".parse::<AlgorithmOverrides>().is_err());
/// # Ok::<(), bonfire_collective::OverrideError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmOverrides {
    everywhere: Option<Algorithm>,
    by_kind: [Option<Algorithm>; KINDS.len()],
}

/// The text asks for algorithms that do not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// The word before `=` is no collective, or the word after it, or the only one, is no algorithm.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// The collective exists, but not with this algorithm.
    #[error("there is no {algorithm} for {collective}; it has: {}", list(.candidates))]
    Unsupported {
        /// The collective before `=`, with underscores between words.
        collective: &'static str,
        /// The algorithm after `=`, which other collectives have.
        algorithm: Algorithm,
        /// The algorithms that can be given to this collective.
        candidates: &'static [Algorithm],
    },
    /// A collective is given two algorithms, or there are two words without a collective.
    #[error("{what} is given twice")]
    Twice {
        /// The collective, or `a default for all collectives`.
        what: &'static str,
    },
}

fn list(algorithms: &[Algorithm]) -> String {
    let names: Vec<&str> = algorithms.iter().map(|one| one.name()).collect();
    names.join(", ")
}

impl AlgorithmOverrides {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The algorithm asked for, if `collective` has it.
    pub(crate) fn of(&self, collective: Collective) -> Option<Algorithm> {
        let kind = KINDS.iter().position(|kind| kind.code() == collective.code());
        let own = kind.and_then(|kind| self.by_kind[kind]);
        let default = self
            .everywhere
            .filter(|algorithm| Algorithm::candidates(collective).contains(algorithm));
        own.or(default)
    }

    fn set(&mut self, item: &str) -> Result<(), OverrideError> {
        let Some((name, algorithm)) = item.split_once('=') else {
            let what = "a default for all collectives";
            return put(&mut self.everywhere, item.parse()?, what);
        };
        let name = name.trim().to_ascii_lowercase().replace('-', "_");
        let Some(kind) = KINDS.iter().position(|kind| kind.name() == name) else {
            return Err(UnknownName::new("collective", &name, KINDS.map(Collective::name)).into());
        };
        let algorithm = algorithm.parse()?;
        let collective = KINDS[kind].name();
        let candidates = Algorithm::candidates(KINDS[kind]);
        if !candidates.contains(&algorithm) {
            return Err(OverrideError::Unsupported { collective, algorithm, candidates });
        }
        put(&mut self.by_kind[kind], algorithm, collective)
    }
}

fn put(
    place: &mut Option<Algorithm>,
    algorithm: Algorithm,
    what: &'static str,
) -> Result<(), OverrideError> {
    match place.replace(algorithm) {
        Some(_) => Err(OverrideError::Twice { what }),
        None => Ok(()),
    }
}

impl FromStr for AlgorithmOverrides {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut overrides = Self::default();
        if !text.trim().is_empty() {
            for item in text.split(',') {
                overrides.set(item)?;
            }
        }
        Ok(overrides)
    }
}

impl fmt::Display for AlgorithmOverrides {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = self.everywhere.map(|algorithm| algorithm.to_string());
        let own = KINDS.iter().zip(self.by_kind).filter_map(|(kind, own)| {
            let algorithm = own?;
            Some(format!("{}={algorithm}", kind.name()))
        });
        let items: Vec<String> = default.into_iter().chain(own).collect();
        formatter.write_str(&items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> AlgorithmOverrides {
        text.parse().unwrap()
    }

    #[test]
    fn a_word_is_for_every_collective_that_has_it() {
        let ring = parse("ring");
        assert_eq!(ring.of(Collective::AllReduce), Some(Algorithm::Ring));
        assert_eq!(ring.of(Collective::Barrier), None);
        assert!(parse(" ").is_empty() && !ring.is_empty());
    }

    #[test]
    fn a_collective_of_its_own_wins_wherever_it_stands() {
        for text in ["ring,all_gather=one_shot", "All-Gather=One-Shot , RING"] {
            let overrides = parse(text);
            assert_eq!(overrides.of(Collective::AllGather), Some(Algorithm::OneShot));
            assert_eq!(overrides.of(Collective::AllReduce), Some(Algorithm::Ring));
            assert_eq!(parse(&overrides.to_string()), overrides);
        }
    }

    #[test]
    fn every_kind_can_be_named_and_comes_back() {
        for kind in KINDS {
            for algorithm in Algorithm::candidates(kind) {
                let text = format!("{}={algorithm}", kind.name());
                let overrides = parse(&text);
                assert_eq!(overrides.of(kind), Some(*algorithm));
                assert_eq!(overrides.to_string(), text);
            }
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_right() {
        for (text, expected) in [
            ("rings", "choose ring, one_shot"),
            ("all_reduce", "unknown algorithm"),
            ("sum=ring", "unknown collective `sum`; choose all_reduce,"),
            ("barrier=ring", "no ring for barrier; it has: dissemination"),
            ("ring,one_shot", "a default for all collectives is given twice"),
            ("all_reduce=ring,all_reduce=ring", "all_reduce is given twice"),
            ("ring,", "unknown algorithm"),
            ("all_reduce=", "unknown algorithm"),
        ] {
            let error = text.parse::<AlgorithmOverrides>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
