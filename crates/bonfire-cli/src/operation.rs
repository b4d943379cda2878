//! The operations that can be measured and simulated: their names, and the factors of nccl-tests.

use bonfire_plan::{Collective, Rank};
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Every rank ends with the reduction of all ranks' data
    AllReduce,
    /// Every rank ends with its block of that reduction
    ReduceScatter,
    /// Every rank ends with the blocks of all ranks
    AllGather,
    /// Every rank ends with the data of the root
    Broadcast,
    /// The root ends with the reduction of all ranks' data
    Reduce,
    /// The root ends with the blocks of all ranks
    Gather,
    /// Every rank ends with its block of the root's data
    Scatter,
    /// Every rank ends with the blocks that all ranks have for it
    AllToAll,
    /// Ranks 0 and 1, 2 and 3, and so on exchange their data
    SendRecv,
    /// No data: returns once every rank has called it
    Barrier,
}

impl Operation {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::from_str(&name.replace('_', "-"), true).ok()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            // What nccl-tests call it; the group has a name for what a pair does.
            Self::SendRecv => "send_recv",
            other => other.collective(Rank::new(0)).name(),
        }
    }

    /// What the ranks of a group do together. Pairs of ranks that exchange do not know of each other,
    /// so the first stands for all.
    pub(crate) const fn collective(self, root: Rank) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllGather => Collective::AllGather,
            Self::Broadcast => Collective::Broadcast { root },
            Self::Reduce => Collective::Reduce { root },
            Self::Gather => Collective::Gather { root },
            Self::Scatter => Collective::Scatter { root },
            Self::AllToAll => Collective::AllToAll,
            Self::SendRecv => Collective::Exchange { first: Rank::new(0), second: Rank::new(1) },
            Self::Barrier => Collective::Barrier,
        }
    }

    pub(crate) fn reduces(self) -> bool {
        self.collective(Rank::new(0)).reduces()
    }

    pub(crate) fn has_root(self) -> bool {
        self.collective(Rank::new(0)).root().is_some()
    }

    /// The blocks that make up the size of one message.
    pub(crate) fn blocks_per_message(self, ranks: usize) -> usize {
        use Operation::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => 1,
            ReduceScatter | AllGather | Gather | Scatter | AllToAll => ranks,
            Self::Barrier => 0,
        }
    }

    /// busbw / algbw, as nccl-tests has it: the bytes that must cross each rank's link, per byte of
    /// message, so that the result can be compared with the bandwidth of the hardware.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        use Operation::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let share = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            ReduceScatter | AllGather | Gather | Scatter | AllToAll => share,
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
            Self::Barrier => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_has_the_factors_of_nccl_tests() {
        let factors = |ranks| {
            Operation::value_variants()
                .iter()
                .map(|operation| (operation.name(), operation.bus_factor(ranks)))
                .collect::<Vec<_>>()
        };
        let expected = [
            ("all_reduce", 1.75),
            ("reduce_scatter", 0.875),
            ("all_gather", 0.875),
            ("broadcast", 1.0),
            ("reduce", 1.0),
            ("gather", 0.875),
            ("scatter", 0.875),
            ("all_to_all", 0.875),
            ("send_recv", 1.0),
            ("barrier", 0.0),
        ];
        assert_eq!(factors(8), expected);
        assert_eq!(factors(1)[0], ("all_reduce", 0.0));
    }

    #[test]
    fn every_operation_is_found_by_its_name() {
        for &operation in Operation::value_variants() {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
        }
        assert_eq!(Operation::from_name("all-reduce"), Some(Operation::AllReduce));
        assert_eq!(Operation::from_name("reduce_all"), None);
    }

    #[test]
    fn names_are_those_of_collectives() {
        for &operation in Operation::value_variants() {
            let collective = operation.collective(Rank::new(0));
            let expected = match operation {
                // What nccl-tests call it; the group has a name for what a pair does.
                Operation::SendRecv => "exchange",
                other => other.name(),
            };
            assert_eq!(collective.name(), expected);
            assert_eq!(collective.reduces(), operation.reduces());
        }
    }
}
