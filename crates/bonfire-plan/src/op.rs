//! What is asked for: the collective, how values are folded, and by which algorithm.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Rank;
use crate::names::named_codes;

named_codes! {
    /// How the values of all ranks become one.
    pub enum ReduceOp as "reduce op" {
        /// The sum.
        Sum = 1, "sum";
        /// The sum, divided by the world size once the fold is complete.
        Mean = 2, "mean";
        /// The smallest.
        Min = 3, "min";
        /// The largest.
        Max = 4, "max";
    }
}

named_codes! {
    /// The shape of the communication.
    pub enum Algorithm as "algorithm" {
        /// Shards travel round a ring, neighbour to neighbour: least bytes, most rounds.
        Ring = 1, "ring";
        /// Everyone sends everything to everyone that needs it, in one round.
        OneShot = 2, "one_shot";
        /// A direct reduce-scatter, then a direct all-gather: two rounds, the bytes of a ring.
        TwoShot = 3, "two_shot";
        /// A binomial tree.
        Binomial = 4, "binomial";
        /// Each round doubles the distance at which ranks hear of one another.
        Dissemination = 5, "dissemination";
    }
}

impl Algorithm {
    /// The algorithms that implement `collective`; never empty.
    pub const fn candidates(collective: Collective) -> &'static [Self] {
        match collective {
            Collective::AllReduce => &[Self::Ring, Self::OneShot, Self::TwoShot],
            Collective::ReduceScatter | Collective::AllGather => &[Self::Ring, Self::OneShot],
            Collective::Broadcast { .. } => &[Self::Binomial],
            Collective::Barrier => &[Self::Dissemination],
        }
    }
}

/// The operation that all ranks take part in.
///
/// Every rank has one buffer of `count` elements, worked on in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with the fold of all ranks' buffers.
    AllReduce,
    /// Rank r ends with the fold of its own balanced shard; the rest of its buffer is unspecified.
    ReduceScatter,
    /// Rank r brings its own balanced shard; every rank ends with all of them.
    AllGather,
    /// Every rank ends with the root's buffer.
    Broadcast {
        /// The rank whose buffer is sent.
        root: Rank,
    },
    /// No rank leaves before every rank has entered.
    Barrier,
}

impl Collective {
    /// The name in messages and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Barrier => "barrier",
        }
    }

    /// The code on the wire; never 0. The root travels beside it, see [`Collective::root`].
    pub const fn code(self) -> u8 {
        match self {
            Self::AllReduce => 1,
            Self::ReduceScatter => 2,
            Self::AllGather => 3,
            Self::Broadcast { .. } => 4,
            Self::Barrier => 5,
        }
    }

    /// The root, if this collective has one.
    pub const fn root(self) -> Option<Rank> {
        match self {
            Self::Broadcast { root } => Some(root),
            Self::AllReduce | Self::ReduceScatter | Self::AllGather | Self::Barrier => None,
        }
    }

    /// The collective with this wire code. A broadcast needs its root; the others ignore it.
    pub const fn from_parts(code: u8, root: Option<Rank>) -> Option<Self> {
        match (code, root) {
            (1, _) => Some(Self::AllReduce),
            (2, _) => Some(Self::ReduceScatter),
            (3, _) => Some(Self::AllGather),
            (4, Some(root)) => Some(Self::Broadcast { root }),
            (5, _) => Some(Self::Barrier),
            _ => None,
        }
    }

    /// Whether the data of several ranks is folded into one.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root() {
            Some(root) => formatter.pad(&format!("{} from {root}", self.name())),
            None => formatter.pad(self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, PlanError};

    #[test]
    fn names_and_codes_come_back() {
        macro_rules! comes_back {
            ($($Type:ty),+) => {$(
                for &value in <$Type>::ALL {
                    assert_eq!(<$Type>::from_code(value.code()), Some(value));
                    assert_eq!(value.name().parse(), Ok(value));
                    assert_eq!(value.to_string().to_uppercase().replace('_', "-").parse(), Ok(value));
                }
                assert_eq!(<$Type>::from_code(0), None);
                assert_eq!(<$Type>::from_code(u8::MAX), None);
            )+};
        }
        comes_back!(DType, ReduceOp, Algorithm);
    }

    #[test]
    fn collectives_come_back_with_their_root() {
        let root = Rank::new(3);
        for collective in [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root },
            Collective::Barrier,
        ] {
            let (code, root) = (collective.code(), collective.root());
            assert_eq!(Collective::from_parts(code, root), Some(collective));
        }
        assert_eq!(Collective::from_parts(4, None), None);
        assert_eq!(Collective::from_parts(0, Some(root)), None);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "product".parse::<ReduceOp>().unwrap_err();
        assert!(matches!(
            error,
            PlanError::UnknownName {
                kind: "reduce op",
                ..
            }
        ));
        assert_eq!(
            error.to_string(),
            "unknown reduce op `product`; use one of: sum, mean, min, max"
        );
    }
}
