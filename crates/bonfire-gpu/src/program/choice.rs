//! Which algorithm a large all-reduce takes: decided when the group is formed, from what the ranks measured,
//! by a pure function of it. All ranks have the same figures, so all decide alike.
//!
//! # The estimate
//!
//! The usual model of a latency and a time per byte (Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005), with a time per byte for each pair. For n ranks, S
//! bytes, b(i, j) seconds per byte that rank i reads from rank j, a = [`HOP`] for a message and the
//! launch behind it, and p = [`PACKET_HOP`] for one that has its flags among its data:
//!
//! | algorithm | seconds |
//! |---|---|
//! | one-shot | p + max over i of 2 S sum over j of b(i, j) |
//! | two-shot | 2 a + max over i of S/n sum over j of (b(i, j) + b(j, i)) |
//! | direct | 3 a + the same |
//! | ring | (2 (n - 1) + 1) a + 2 (n - 1) S/n max over i of b(i, i - 1) |
//! | chain of k pieces | (2 k + 2 n - 2) a + S max over i of (b(i, i - 1) + b(i, i + 1)) + (2 n - 3) S/k max of both |
//!
//! A barrier is one message of all to all, at once, and a launch of its own but in a two-shot. A one-shot rank
//! is sent everything by each peer, in packets of which half is data. A two-shot or direct rank reads its shard from each peer and writes it to each
//! peer, through one port. A ring is as fast as its slowest hop. A rank of a chain reads all from below and all from
//! above; the last summand is the time until the first piece has gone up and down.
//!
//! # Where it changes
//!
//! Among small buffers two-shot takes the place of one-shot from the power of two of bytes on from which it is
//! estimated to be as fast.
//!
//! Direct is left only where the pairs differ by more than [`EVEN`], and from a power of two of bytes on from which the
//! estimate says that it takes [`MARGIN`] times as long as the other, for that size and all larger ones. Two runs on
//! one machine measure figures that differ by some percent; neither limit is near where machines are.

use std::fmt;

use bonfire_collective::FoldOrder;
use bonfire_plan::{DType, Rank, ReduceOp, WorldSize};

use crate::options::CudaAlgorithm;
use crate::program::pair_bandwidths::PairBandwidths;
use crate::program::{part_elems, pieces};

/// Seconds for a message and the launch behind it. NCCL's model has 3.4 us over NVLink and 5.7 us over PCIe
/// for a hop of the protocol that has no flags among its data (`src/graph/tuning.cc`, 2.30).
const HOP: f64 = 5e-6;

/// The same for a one-shot, less what flags among the data save: NCCL's model has 0.5 us over NVLink and 1.0 us over
/// PCIe for a hop of the protocol that has them.
const PACKET_HOP: f64 = 2e-6;

/// Pairs of which none is faster than another by more than this are alike: all are behind one switch.
const EVEN: f64 = 2.0;

/// How many times as long direct must take by the estimate for another to be taken.
const MARGIN: f64 = 1.5;

/// The sizes that are looked at, as powers of two: 4 KiB to 16 GiB.
const SHIFTS: std::ops::RangeInclusive<u32> = 12..=34;

/// What is known of the ranks of a group when it is formed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ground {
    Asked(CudaAlgorithm),
    /// All ranks are on one device, or there is but one rank.
    OneDevice,
    /// Data go through host memory, where the group on the CPU chooses.
    Host,
    /// They are on several devices, as far apart as this.
    Measured(PairBandwidths),
}

/// Which algorithm the all-reduces of a group take that are too large for one kernel that waits, and the figures that
/// decided it: the same on all ranks. [`CudaGroup::choice`](crate::CudaGroup::choice) has it.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaChoice {
    ground: Ground,
    /// The bytes from which on it is taken.
    chain_from: Option<usize>,
    ring_from: Option<usize>,
    two_shot_from: Option<usize>,
}

/// What the bits of a result may follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freedom {
    /// The values alone, and one rounding of the whole sum: direct.
    Whole,
    /// The values alone, and each addition is one of the type's own: direct, and chains, which add in the same order.
    Canonical,
    /// The values and also the algorithm.
    Any,
}

impl Freedom {
    /// What a group with this order leaves to the sums of a type. Sums of 16-bit floats are made in 32 bits
    /// and rounded at the end, which only the direct algorithm can do.
    pub(crate) fn of(order: FoldOrder, dtype: DType, reduce: ReduceOp) -> Self {
        let is_wide = !matches!(dtype, DType::F16 | DType::BF16);
        match order {
            FoldOrder::Any => Self::Any,
            FoldOrder::Canonical if reduce.is_exact(dtype) => Self::Any,
            FoldOrder::Canonical if is_wide => Self::Canonical,
            FoldOrder::Canonical => Self::Whole,
        }
    }
}

impl CudaChoice {
    /// Decides for a group whose rings and chains have `lanes` lanes.
    pub(crate) fn new(ground: Ground, lanes: u32) -> Self {
        let two_shot_from = match &ground {
            Ground::Measured(pairs) => {
                let estimate = Estimate { pairs, lanes: 1 };
                from(|bytes| estimate.two_shot(bytes) <= estimate.one_shot(bytes))
            }
            _ => None,
        };
        let (chain_from, ring_from) = match &ground {
            Ground::Measured(pairs) if !is_even(pairs) => {
                let estimate = Estimate { pairs, lanes: lanes as usize };
                (
                    from(|bytes| estimate.chain(bytes) * MARGIN <= estimate.direct(bytes)),
                    from(|bytes| estimate.ring(bytes) * MARGIN <= estimate.direct(bytes)),
                )
            }
            _ => (None, None),
        };
        Self { ground, chain_from, ring_from, two_shot_from }
    }

    /// How fast the ranks read each other's memory, where that was measured: not if all share a device, data
    /// go through the host, or the options say which algorithm it is.
    pub fn bandwidths(&self) -> Option<&PairBandwidths> {
        match &self.ground {
            Ground::Measured(pairs) => Some(pairs),
            Ground::Asked(_) | Ground::OneDevice | Ground::Host => None,
        }
    }

    /// The bytes from which on a chain is taken where the order of additions must be that of the ranks.
    pub fn chain_from(&self) -> Option<usize> {
        self.chain_from
    }

    /// The bytes from which on a ring is taken where the order of additions is free.
    pub fn ring_from(&self) -> Option<usize> {
        self.ring_from
    }

    /// The bytes from which on a two-shot is taken where a one-shot could be: never if nothing was measured.
    pub fn two_shot_from(&self) -> Option<usize> {
        self.two_shot_from
    }

    /// Whether a two-shot is taken for that many bytes.
    pub(crate) fn prefers_two_shot(&self, bytes: usize) -> bool {
        self.two_shot_from.is_some_and(|from| bytes >= from)
    }

    /// The algorithm of an all-reduce of `bytes` bytes that no one-shot does.
    pub(crate) fn algorithm(&self, bytes: usize, freedom: Freedom) -> CudaAlgorithm {
        let reaches = |from: Option<usize>| from.is_some_and(|from| bytes >= from);
        match (&self.ground, freedom) {
            (Ground::Asked(CudaAlgorithm::OneShot | CudaAlgorithm::TwoShot), _) => {
                CudaAlgorithm::Direct
            }
            (Ground::Asked(asked), _) => *asked,
            (_, Freedom::Any) if reaches(self.ring_from) => CudaAlgorithm::Ring,
            (_, Freedom::Canonical) if reaches(self.chain_from) => CudaAlgorithm::Chain,
            _ => CudaAlgorithm::Direct,
        }
    }
}

/// One line for the log.
impl fmt::Display for CudaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = match &self.ground {
            Ground::Asked(asked) => {
                return write!(f, "all-reduce by {asked:?}, as CudaOptions::algorithm says");
            }
            Ground::OneDevice => return f.write_str("large all-reduce direct, on one device"),
            Ground::Host => return f.write_str("all-reduce through host memory"),
            Ground::Measured(pairs) => pairs,
        };
        write!(f, "large all-reduce direct")?;
        if let Some(bytes) = self.chain_from {
            write!(f, ", by a chain from {bytes} bytes")?;
        }
        if let Some(bytes) = self.ring_from {
            write!(f, ", by a ring from {bytes} bytes if in any order")?;
        }
        if let Some([(reader, owner, slowest), (.., fastest)]) = pairs.extremes() {
            write!(
                f,
                ": pairs at {slowest:.3} GB/s (rank {reader} reads rank {owner}) to {fastest:.3} GB/s"
            )?;
        }
        Ok(())
    }
}

/// Whether no pair is much faster than another.
fn is_even(pairs: &PairBandwidths) -> bool {
    pairs.extremes().is_none_or(|[slowest, fastest]| fastest.2 <= EVEN * slowest.2)
}

/// The smallest power of two of bytes from which on it holds for all.
fn from(holds: impl Fn(f64) -> bool) -> Option<usize> {
    let bytes = |shift: u32| 1_usize << shift;
    let held = SHIFTS.rev().take_while(|shift| holds(bytes(*shift) as f64));
    held.last().map(bytes)
}

struct Estimate<'a> {
    pairs: &'a PairBandwidths,
    lanes: usize,
}

impl Estimate<'_> {
    fn world_size(&self) -> WorldSize {
        self.pairs.world_size()
    }

    fn ranks(&self) -> f64 {
        self.world_size().len() as f64
    }

    /// Seconds per byte that a rank reads from the one behind it.
    fn hop(&self, rank: Rank) -> f64 {
        let behind = self.world_size().prev(rank);
        self.pairs.seconds_per_byte(rank, behind)
    }

    /// Seconds per byte of each shard that the slowest rank reads from all and writes to all.
    fn shards(&self) -> f64 {
        let both_ways = |i: Rank, j: Rank| {
            self.pairs.seconds_per_byte(i, j) + self.pairs.seconds_per_byte(j, i)
        };
        self.slowest(both_ways)
    }

    /// The most of what a rank has to do with all others, one after the other.
    fn slowest(&self, pair: impl Fn(Rank, Rank) -> f64) -> f64 {
        let ranks = || self.world_size().ranks();
        let port = |i: Rank| ranks().map(|j| pair(i, j)).sum::<f64>();
        ranks().map(port).fold(0.0, f64::max)
    }

    fn one_shot(&self, bytes: f64) -> f64 {
        let comes = |i: Rank, j: Rank| self.pairs.seconds_per_byte(i, j);
        PACKET_HOP + 2.0 * bytes * self.slowest(comes)
    }

    fn two_shot(&self, bytes: f64) -> f64 {
        2.0 * HOP + bytes / self.ranks() * self.shards()
    }

    fn direct(&self, bytes: f64) -> f64 {
        3.0 * HOP + bytes / self.ranks() * self.shards()
    }

    fn ring(&self, bytes: f64) -> f64 {
        let slowest = self.world_size().ranks().map(|rank| self.hop(rank));
        let hops = 2.0 * (self.ranks() - 1.0);
        let shard = bytes / self.ranks();
        (hops + 1.0) * HOP + hops * shard * slowest.fold(0.0, f64::max)
    }

    fn chain(&self, bytes: f64) -> f64 {
        let (world_size, ranks) = (self.world_size(), self.ranks());
        // Nothing goes between the last and the first.
        let last = Rank::new(world_size.get() - 1);
        let both = |rank: Rank| {
            let from_below = (rank.get() > 0).then(|| self.hop(rank));
            let above = world_size.next(rank);
            let from_above = (rank != last).then(|| self.pairs.seconds_per_byte(rank, above));
            [from_below.unwrap_or(0.0), from_above.unwrap_or(0.0)]
        };
        let port = |rank: Rank| both(rank).iter().sum::<f64>();
        let busiest = world_size.ranks().map(port).fold(0.0, f64::max);
        let slowest = world_size.ranks().flat_map(both).fold(0.0, f64::max);
        // Of elements of 4 bytes.
        let lane = part_elems((bytes / 4.0) as usize, self.lanes);
        let pieces = pieces(lane, world_size) as f64;
        let fill = 2.0 * ranks - 3.0;
        (2.0 * pieces + fill + 1.0) * HOP + bytes * (busiest + fill / pieces * slowest)
    }
}

#[cfg(test)]
mod tests;
