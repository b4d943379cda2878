//! What is asked for: the collective, how values are folded, and by which algorithm.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::named_codes;
use crate::{DType, PlanError, Rank};

named_codes! {
    /// How the values of all ranks become one.
    pub enum ReduceOp as "reduce op" {
        /// Adds the values of all ranks; integers wrap, and truth values have no sum.
        Sum = 1, "sum";
        /// The sum, divided by the world size once the fold is complete.
        Mean = 2, "mean";
        /// The lowest value of all ranks; of truth values, whether all are true.
        Min = 3, "min";
        /// The highest value of all ranks; of truth values, whether any is true.
        Max = 4, "max";
        /// Multiplies the values of all ranks; integers wrap; of truth values, whether all are true.
        Product = 5, "product";
        /// Bits that are set everywhere; of truth values, whether all are true.
        And = 6, "and";
        /// Bits that are set anywhere; of truth values, whether any is true.
        Or = 7, "or";
        /// Bits that are set an odd number of times; of truth values, whether an odd number is true.
        Xor = 8, "xor";
    }
}

/// The order in which a plan folds the ranks' values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Every element is folded over ranks 0 to n - 1, in one step with one rounding; or there is
    /// nothing to fold. Its bits do not depend on the plan, the chunks or the element's place.
    Canonical,
    /// Every element is folded over ranks 0 to n - 1, but rounded to its type on the way. Where folds
    /// run in that type, the bits are those of [`Order::Canonical`].
    Rounded,
    /// The order is the same on all ranks and in all runs, but depends on the plan.
    Fixed,
}

impl ReduceOp {
    /// Whether values of `dtype` can be folded by this operation: bits are folded in integers and
    /// truth values only, and truth values have no sum and no mean.
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            Self::Sum | Self::Mean => !matches!(dtype, DType::Bool),
            Self::Min | Self::Max | Self::Product => true,
            Self::And | Self::Or | Self::Xor => !dtype.is_float(),
        }
    }

    /// As [`ReduceOp::supports`], as an error that names both.
    ///
    /// # Errors
    /// [`PlanError::UnsupportedReduce`] when it is not supported.
    pub const fn require(self, dtype: DType) -> Result<(), PlanError> {
        if self.supports(dtype) {
            Ok(())
        } else {
            Err(PlanError::UnsupportedReduce { op: self, dtype })
        }
    }

    /// Whether the bits of a fold of `dtype` are the same in every order: integers wrap, minimum
    /// and maximum pick, and bits do not carry. A mean divides once, at the end.
    ///
    /// This asks of an engine that its minimum and maximum of floats order all values: -0 below 0,
    /// and one and the same NaN whenever an operand is one.
    pub const fn is_exact(self, dtype: DType) -> bool {
        !dtype.is_float() || matches!(self, Self::Min | Self::Max)
    }
}

named_codes! {
    /// The shape of the communication. Ranks send codes to each other, so none is given twice.
    pub enum Algorithm as "algorithm" {
        /// Shards are sent round a ring, neighbour to neighbour: least bytes, most rounds.
        Ring = 1, "ring";
        /// Everyone sends everything to everyone that needs it, in one round.
        OneShot = 2, "one_shot";
        /// Direct in two rounds, the bytes of a ring: shards go to their owners, and from there to
        /// everyone that needs them.
        TwoShot = 3, "two_shot";
        /// Along a binomial tree of ranks.
        Binomial = 4, "binomial";
        /// Each round doubles the distance over which ranks learn of one another.
        Dissemination = 5, "dissemination";
        /// Recursive halving, then recursive doubling: the bytes of a ring in a logarithmic number of rounds.
        HalvingDoubling = 6, "halving_doubling";
        /// Two complementary binary trees, each of which carries half of the data.
        DoubleTree = 7, "double_tree";
        /// Within each host first, between hosts next, within each host again.
        Hierarchical = 8, "hierarchical";
        /// No frames with data: between two barriers, every rank reads and writes its peers' buffers where they are.
        ZeroCopy = 9, "zero_copy";
        /// A round for each rank, in which ranks meet in pairs.
        Pairwise = 10, "pairwise";
        /// From host to host in the order of the ranks, each of which folds its own onto what the one
        /// before has folded; results go back the same way.
        Chain = 11, "chain";
    }
}

impl Algorithm {
    /// The algorithms that implement `collective`; never empty.
    pub const fn candidates(collective: Collective) -> &'static [Self] {
        use Algorithm::*;
        match collective {
            Collective::AllReduce => &[
                Ring,
                OneShot,
                TwoShot,
                HalvingDoubling,
                DoubleTree,
                Hierarchical,
                ZeroCopy,
                Chain,
            ],
            Collective::ReduceScatter => {
                &[Ring, OneShot, HalvingDoubling, Hierarchical, ZeroCopy, Chain]
            }
            Collective::AllGather => &[Ring, OneShot, HalvingDoubling, Hierarchical, ZeroCopy],
            Collective::Broadcast { .. } => {
                &[Binomial, TwoShot, DoubleTree, Hierarchical, ZeroCopy]
            }
            Collective::Reduce { .. } => {
                &[Binomial, OneShot, TwoShot, DoubleTree, Hierarchical, ZeroCopy, Chain]
            }
            Collective::Barrier => &[Dissemination],
            Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::Transfer { .. }
            | Collective::Exchange { .. } => &[OneShot],
            Collective::AllToAll => &[Pairwise, OneShot],
        }
    }

    /// The order in which this algorithm folds in worlds of any size.
    ///
    /// In small worlds a plan may do better: two operands may always change places. What holds for
    /// one plan is in the verifier's [`Report`](crate::Report).
    pub const fn order(self, collective: Collective) -> Order {
        use Algorithm::*;
        match self {
            OneShot | TwoShot | ZeroCopy | Dissemination | Pairwise => Order::Canonical,
            Chain => Order::Rounded,
            Ring | Binomial | HalvingDoubling | DoubleTree | Hierarchical => {
                if collective.reduces() { Order::Fixed } else { Order::Canonical }
            }
        }
    }

    /// Whether its plans depend on which ranks share a host.
    pub const fn looks_at_hosts(self) -> bool {
        use Algorithm::*;
        match self {
            Hierarchical | Chain => true,
            Ring | OneShot | TwoShot | Binomial | Dissemination | HalvingDoubling | DoubleTree
            | ZeroCopy | Pairwise => false,
        }
    }

    /// Whether its plans for `collective` allow for blocks of any length.
    pub const fn takes_partition(self, collective: Collective) -> bool {
        match collective {
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll => !matches!(self, Self::ZeroCopy),
            _ => false,
        }
    }

    /// As [`Algorithm::order`], for values of a type whose folds may be the same in every order, or run in
    /// the type itself.
    ///
    /// ```
    /// use bonfire_plan::{Algorithm, Collective, DType, Order, ReduceOp};
    ///
    /// let ring = |op, dtype| Algorithm::Ring.order_of(Collective::AllReduce, op, dtype);
    /// assert_eq!(ring(ReduceOp::Sum, DType::F32), Order::Fixed);
    /// assert_eq!(ring(ReduceOp::Max, DType::F32), Order::Canonical);
    /// assert_eq!(ring(ReduceOp::Mean, DType::I64), Order::Canonical);
    /// let chain = |op, dtype| Algorithm::Chain.order_of(Collective::AllReduce, op, dtype);
    /// assert_eq!(chain(ReduceOp::Mean, DType::F32), Order::Canonical);
    /// assert_eq!(chain(ReduceOp::Mean, DType::BF16), Order::Rounded);
    /// ```
    pub const fn order_of(self, collective: Collective, op: ReduceOp, dtype: DType) -> Order {
        match self.order(collective) {
            Order::Rounded if !dtype.is_widened() => Order::Canonical,
            _ if op.is_exact(dtype) => Order::Canonical,
            order => order,
        }
    }
}

/// The operation that the ranks take part in.
///
/// A plan addresses one space of elements for all ranks; [`Schedule::extent`](crate::Schedule::extent)
/// says which part of it a rank has. Unless said otherwise every rank has all of it, `count`
/// elements, worked on in place. Blocks are those of the [`Partition`](crate::Partition).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank ends with the fold of all ranks' buffers.
    AllReduce,
    /// Rank r ends with the fold of block r; the rest of its buffer is unspecified.
    ReduceScatter,
    /// Rank r brings block r; every rank ends with all blocks.
    AllGather,
    /// Every rank ends with the root's buffer.
    Broadcast {
        /// The rank whose buffer all others receive.
        root: Rank,
    },
    /// No rank leaves before every rank has entered.
    Barrier,
    /// The root ends with the fold of all ranks' buffers; the other buffers are unspecified.
    Reduce {
        /// The only rank that ends with the result.
        root: Rank,
    },
    /// Rank r brings block r and has no other; the root ends with all blocks.
    Gather {
        /// The only rank that ends with all blocks.
        root: Rank,
    },
    /// The root brings all blocks; rank r ends with block r and has no other.
    Scatter {
        /// The only rank that brings data.
        root: Rank,
    },
    /// Every rank brings one block for every rank, and ends with one from every rank. The space is the matrix of
    /// blocks, row by row: rank r brings row r and ends with column r. `count` is the sum of all n * n blocks.
    AllToAll,
    /// One rank sends its buffer to another; no other rank takes part.
    Transfer {
        /// The rank that sends, in the group of the schedule.
        source: Rank,
        /// The rank that receives; a schedule refuses the source itself.
        target: Rank,
    },
    /// Two ranks send each other their buffers of `count` elements; no other rank takes part. The space has `2 *
    /// count` elements: first what `first` brings, then what `second` brings. `first` is the lower of the two ranks.
    Exchange {
        /// The rank whose elements are the first half of the space.
        first: Rank,
        /// The rank whose elements are the second half of the space.
        second: Rank,
    },
}

/// The ranks that a collective names, in the order in which they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamedRanks {
    /// The root, the source, or the first of a pair.
    pub first: Option<Rank>,
    /// The target, or the second of a pair.
    pub second: Option<Rank>,
}

impl Collective {
    const fn name_and_code(self) -> (&'static str, u8) {
        match self {
            Self::AllReduce => ("all_reduce", 1),
            Self::ReduceScatter => ("reduce_scatter", 2),
            Self::AllGather => ("all_gather", 3),
            Self::Broadcast { .. } => ("broadcast", 4),
            Self::Barrier => ("barrier", 5),
            Self::Reduce { .. } => ("reduce", 6),
            Self::Gather { .. } => ("gather", 7),
            Self::Scatter { .. } => ("scatter", 8),
            Self::AllToAll => ("all_to_all", 9),
            Self::Transfer { .. } => ("transfer", 10),
            Self::Exchange { .. } => ("exchange", 11),
        }
    }

    /// The name in messages and reports.
    pub const fn name(self) -> &'static str {
        self.name_and_code().0
    }

    /// The code on the wire; never 0. The ranks it names are sent beside it, see [`Collective::named`].
    pub const fn code(self) -> u8 {
        self.name_and_code().1
    }

    /// The root, if this collective has one.
    pub const fn root(self) -> Option<Rank> {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Gather { root }
            | Self::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether only two ranks take part.
    pub const fn is_point_to_point(self) -> bool {
        matches!(self, Self::Transfer { .. } | Self::Exchange { .. })
    }

    /// The ranks that this collective names.
    pub const fn named(self) -> NamedRanks {
        let (first, second) = match self {
            Self::Transfer { source, target } => (Some(source), Some(target)),
            Self::Exchange { first, second } => (Some(first), Some(second)),
            _ => (self.root(), None),
        };
        NamedRanks { first, second }
    }

    /// The collective with this wire code; `None` for a code nobody sends, or without the ranks that it needs.
    pub const fn from_parts(code: u8, named: NamedRanks) -> Option<Self> {
        let NamedRanks { first, second } = named;
        Some(match (code, first, second) {
            (1, None, None) => Self::AllReduce,
            (2, None, None) => Self::ReduceScatter,
            (3, None, None) => Self::AllGather,
            (4, Some(root), None) => Self::Broadcast { root },
            (5, None, None) => Self::Barrier,
            (6, Some(root), None) => Self::Reduce { root },
            (7, Some(root), None) => Self::Gather { root },
            (8, Some(root), None) => Self::Scatter { root },
            (9, None, None) => Self::AllToAll,
            (10, Some(source), Some(target)) => Self::Transfer { source, target },
            (11, Some(first), Some(second)) => Self::Exchange { first, second },
            _ => return None,
        })
    }

    /// Whether the data of several ranks is folded into one.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. })
    }

    /// Whether `rank` takes part: all ranks do, but for a transfer and an exchange.
    pub fn involves(self, rank: Rank) -> bool {
        match self {
            Self::Transfer { source, target } => rank == source || rank == target,
            Self::Exchange { first, second } => rank == first || rank == second,
            _ => true,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        let text = match *self {
            Self::Broadcast { root } | Self::Scatter { root } => format!("{name} from {root}"),
            Self::Reduce { root } | Self::Gather { root } => format!("{name} to {root}"),
            Self::Transfer { source, target } => format!("{name} from {source} to {target}"),
            Self::Exchange { first, second } => format!("{name} of {first} and {second}"),
            _ => return formatter.pad(name),
        };
        formatter.pad(&text)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn one_of_each() -> [Collective; 11] {
        let [root, first, second] = [3, 1, 2].map(Rank::new);
        [
            Collective::AllReduce,
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::Broadcast { root },
            Collective::Barrier,
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
            Collective::AllToAll,
            Collective::Transfer { source: second, target: first },
            Collective::Exchange { first, second },
        ]
    }

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
    fn collectives_come_back_with_the_ranks_they_name() {
        for collective in one_of_each() {
            let (code, named) = (collective.code(), collective.named());
            assert_eq!(Collective::from_parts(code, named), Some(collective));
            // A rank too few or too many is another operation, or none.
            for named in [
                NamedRanks { first: named.first.xor(Some(Rank::new(1))), ..named },
                NamedRanks { second: named.second.xor(Some(Rank::new(1))), ..named },
            ] {
                assert_eq!(Collective::from_parts(code, named), None, "{collective}");
            }
        }
        for code in [0, 12, u8::MAX] {
            assert_eq!(Collective::from_parts(code, NamedRanks::default()), None);
        }
    }

    #[test]
    fn bits_are_folded_in_integers_and_truth_values_only() {
        for &dtype in DType::ALL {
            for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
                assert_eq!(op.supports(dtype), !dtype.is_float(), "{op} of {dtype}");
            }
            for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
                assert!(op.supports(dtype), "{op} of {dtype}");
            }
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                assert_eq!(op.supports(dtype), dtype != DType::Bool, "{op} of {dtype}");
            }
        }
        let error = ReduceOp::Sum.require(DType::Bool).unwrap_err();
        let (op, dtype) = (ReduceOp::Sum, DType::Bool);
        assert_eq!(error, PlanError::UnsupportedReduce { op, dtype });
        assert_eq!(
            error.to_string(),
            "sum does not reduce bool; use one of: min, max, product, and, or, xor"
        );
        assert_eq!(ReduceOp::Xor.require(DType::U64), Ok(()));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "average".parse::<ReduceOp>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown reduce op `average`; choose sum, mean, min, max, product, and, or or xor"
        );
        let error = "produkt".parse::<ReduceOp>().unwrap_err().to_string();
        assert!(error.ends_with("; did you mean product?"), "{error}");
    }
}
