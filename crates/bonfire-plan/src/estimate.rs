//! How long a plan takes by the closed form of its algorithm: no step list is made.
//!
//! Hockney's model ("The communication challenge for MPP", 1994) as used by Thakur, Rabenseifner and
//! Gropp, "Optimization of collective communication operations in MPICH" (2005): a round of frames
//! that wait for one another costs α, a byte through the busiest rank's link costs β, and folding a
//! byte costs γ. With S bytes, n ranks, and each message in one chunk:
//!
//! | plan | rounds · α | bytes · β | bytes · γ | source |
//! |---|---|---|---|---|
//! | all-reduce by ring | 2 (n - 1) | 2 (n-1)/n S | (n-1)/n S | Patarasuk and Yuan 2009 |
//! | by one shot | 1 | (n - 1) S | (n - 1) S | every rank sends to every other |
//! | by two shots | 2 | 2 (n-1)/n S | (n-1)/n S | the same, shard by shard |
//! | by halving and doubling, n = 2^d | 2 d | 2 (n-1)/n S | (n-1)/n S | Rabenseifner 2004 |
//! | by a double tree of depth d | 2 d | 2 S + (3 d - 3) S/2 | S | Sanders, Speck and Träff 2009 |
//! | by H hosts of g ranks | 2 H, and 2 between | 2 (g-1)/g S, and 2 (H-1)/H S between | (g-1)/g S + (H-1)/H S/g | two levels |
//! | by a chain of H hosts of g ranks, k chunks | 2 H k, and 2 (H-1) between | 2 (g-1)/g S, and 2 S between, S of 2 hosts | S | see its module |
//! | broadcast by a binomial tree | log2 n | log2 n S | 0 | Thakur et al. 2005 |
//!
//! Several chunks cost their rounds where a rank takes one before it puts the next (ring, direct and
//! pairwise plans), and stream where it does not (trees): of the double tree above, k chunks of each
//! half take 2 d + 2 (k - 1) rounds and (4 k + 3 d - 3) chunks' bytes.
//!
//! Between hosts, S counts what passes the port of the busiest host, which its ranks share: of two
//! shots, for example, g times what each of g ranks sends away.
//!
//! Of two levels and of a chain, some chunks cross between hosts while others are moved and folded within: the
//! longer of both counts.
//!
//! It leaves out copies and the cost of a frame as such. The simulator has those.

mod hosts;

use crate::collective::Blocks;
use crate::types::chunk_count;
use crate::{Algorithm, Collective, DType, ElemRange, Rank, ScheduleShape};

/// What a message over a link costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkCosts {
    /// Seconds until a message without data has arrived.
    pub alpha_s: f64,
    /// Seconds for each of its bytes.
    pub beta_s_per_byte: f64,
}

/// What communication and folding cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkFigures {
    /// Of a message between two ranks of one host.
    pub intra_host: LinkCosts,
    /// Of a message between ranks of two hosts; unused on one host.
    pub inter_host: LinkCosts,
    /// Seconds to fold one byte into another.
    pub gamma_s_per_byte: f64,
}

/// The seconds that the plan for `shape` takes.
///
/// Hosts count whatever the algorithm, so give the shape as it was before
/// [`ScheduleShape::normalized`]: an algorithm that does not look at hosts is taken to pay for links
/// between hosts wherever one of its rounds may cross.
///
/// ```
/// use std::num::NonZeroUsize;
///
/// use bonfire_plan::*;
///
/// let figures = LinkFigures {
///     intra_host: LinkCosts { alpha_s: 1e-6, beta_s_per_byte: 1e-10 },
///     ..LinkFigures::default()
/// };
/// let world_size = WorldSize::new(8)?;
/// let all_reduce = |algorithm, count| {
///     let shape = ScheduleShape {
///         collective: Collective::AllReduce,
///         algorithm,
///         world_size,
///         count,
///         chunk_elems_max: NonZeroUsize::new(1 << 20).unwrap(),
///         partition: Partition::Balanced,
///         hosts: Hosts::one(world_size),
///     };
///     estimate(&shape, DType::F32, &figures)
/// };
/// assert!(all_reduce(Algorithm::OneShot, 8) < all_reduce(Algorithm::Ring, 8));
/// assert!(all_reduce(Algorithm::OneShot, 1 << 20) > all_reduce(Algorithm::Ring, 1 << 20));
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
///
/// # Panics
/// When no plan for the shape exists: see [`Schedule::new`](crate::Schedule::new).
pub fn estimate(shape: &ScheduleShape, dtype: DType, figures: &LinkFigures) -> f64 {
    if let Err(error) = shape.validate() {
        panic!("an estimate is for a shape that has a plan: {error}");
    }
    let terms = Form::new(shape).terms();
    let elem_bytes = dtype.size_bytes() as f64;
    let latency = |traffic: Traffic, costs: LinkCosts| traffic.rounds * costs.alpha_s;
    let transfer =
        |traffic: Traffic, costs: LinkCosts| traffic.elems * elem_bytes * costs.beta_s_per_byte;
    let within = latency(terms.within, figures.intra_host)
        + transfer(terms.within, figures.intra_host)
        + terms.folded * elem_bytes * figures.gamma_s_per_byte;
    let crossing = transfer(terms.between, figures.inter_host);
    let work = if terms.overlaps { within.max(crossing) } else { within + crossing };
    latency(terms.between, figures.inter_host) + work
}

/// What the busiest rank has to do.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Terms {
    within: Traffic,
    between: Traffic,
    folded: f64,
    /// Whether some chunks cross between hosts while others are moved and folded within.
    overlaps: bool,
    /// Whether a rank puts a chunk before it has taken the one before it, so that chunks wait for ports alone.
    streams: bool,
    /// Rounds within hosts that the form counts though they pass beside others.
    hidden_rounds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Traffic {
    rounds: f64,
    /// Elements through a port, one way: a rank's within a host, and a host's between hosts.
    elems: f64,
}

/// The quantities that closed forms are made of.
struct Form<'a> {
    shape: &'a ScheduleShape,
    ranks: f64,
    count: f64,
    block: f64,
    /// All elements but a block of mean length.
    others: f64,
    chunks: f64,
    /// The ranks of the smallest host, and of the largest.
    host_ranks_min: f64,
    host_ranks_max: f64,
    hosts: f64,
}

impl<'a> Form<'a> {
    fn new(shape: &'a ScheduleShape) -> Self {
        let ranks = shape.world_size.len() as f64;
        let count = shape.count as f64;
        let block = match shape.collective {
            Collective::AllToAll => longest_pair(shape),
            _ => longest_block(shape),
        };
        let mut host_ranks = vec![0_u32; shape.hosts.host_count()];
        for host in shape.hosts.numbers() {
            host_ranks[host as usize] += 1;
        }
        let fewest = host_ranks.iter().min().expect("a world has a host");
        let most = host_ranks.iter().max().expect("a world has a host");
        Self {
            block: block as f64,
            chunks: chunk_count(ElemRange::up_to(block), shape.chunk_elems_max) as f64,
            shape,
            ranks,
            count,
            others: count - count / ranks,
            host_ranks_min: f64::from(*fewest),
            host_ranks_max: f64::from(*most),
            hosts: host_ranks.len() as f64,
        }
    }

    fn terms(&self) -> Terms {
        if self.ranks == 1.0 {
            return Terms::default();
        }
        match self.shape.algorithm {
            Algorithm::Ring => self.ring(),
            Algorithm::OneShot => self.one_shot(),
            Algorithm::TwoShot => self.two_shot(),
            Algorithm::Binomial => self.binomial(),
            Algorithm::Dissemination => {
                self.everywhere(log2_ceil(self.shape.world_size.get()), 0.0, 0.0)
            }
            Algorithm::HalvingDoubling => self.halving_doubling(),
            Algorithm::DoubleTree => self.double_tree(),
            Algorithm::Hierarchical => self.hierarchical(),
            Algorithm::ZeroCopy => self.zero_copy(),
            Algorithm::Chain => self.chain(),
            Algorithm::Pairwise => {
                // Beyond two ranks there is a round for each, in which some meet nobody.
                let meetings = if self.ranks > 2.0 { self.ranks } else { 1.0 };
                let rounds = meetings * self.chunks;
                self.spread(rounds, longest_row_or_column(self.shape), 0.0)
            }
        }
    }

    /// On the slowest links that there are.
    fn everywhere(&self, rounds: f64, elems: f64, folded: f64) -> Terms {
        let mut terms = Terms { folded, ..Terms::default() };
        *terms.side(self.hosts > 1.0) = Traffic { rounds, elems };
        terms
    }

    /// As [`Form::everywhere`], where every rank sends to all others alike.
    fn spread(&self, rounds: f64, elems: f64, folded: f64) -> Terms {
        let mut terms = self.rooted(rounds, elems, folded);
        terms.between.elems *= self.host_ranks_max;
        terms
    }

    /// As [`Form::everywhere`], where one rank has to do with all others alike.
    fn rooted(&self, rounds: f64, elems: f64, folded: f64) -> Terms {
        let away = elems * (self.ranks - self.host_ranks_min) / (self.ranks - 1.0);
        let mut terms = self.everywhere(rounds, 0.0, folded);
        terms.within.elems += elems - away;
        terms.between.elems += away;
        terms
    }

    fn ring(&self) -> Terms {
        let hops = self.ranks - 1.0;
        let (rounds, elems) = (hops * self.chunks, hops * self.block);
        match self.shape.collective {
            Collective::AllReduce => self.everywhere(2.0 * rounds, 2.0 * elems, elems),
            Collective::ReduceScatter => self.everywhere(rounds, elems, elems),
            _ => self.everywhere(rounds, elems, 0.0),
        }
    }

    fn one_shot(&self) -> Terms {
        let peers = self.ranks - 1.0;
        let (buffers, blocks) = (peers * self.count, peers * self.block);
        let buffer_chunks = self.chunks_of(self.shape.count);
        match self.shape.collective {
            Collective::AllReduce => self.spread(buffer_chunks, buffers, buffers),
            // The root takes everything; nobody waits before a put.
            Collective::Reduce { .. } => self.rooted(1.0, buffers, buffers),
            Collective::ReduceScatter => self.spread(self.chunks, blocks, blocks),
            Collective::AllGather => self.spread(self.chunks, blocks, 0.0),
            Collective::Gather { .. } | Collective::Scatter { .. } => {
                self.rooted(1.0, self.others, 0.0)
            }
            Collective::AllToAll => {
                self.spread(self.chunks, longest_row_or_column(self.shape), 0.0)
            }
            Collective::Exchange { first, second } => self.pair([first, second], buffer_chunks),
            Collective::Transfer { source, target } => self.pair([source, target], 1.0),
            Collective::Broadcast { .. } | Collective::Barrier => {
                unreachable!("one_shot has no plan for them")
            }
        }
    }

    fn pair(&self, pair: [Rank; 2], rounds: f64) -> Terms {
        let mut terms = Terms::default();
        *terms.side(self.crosses(pair)) = Traffic { rounds, elems: self.count };
        terms
    }

    fn two_shot(&self) -> Terms {
        let elems = 2.0 * (self.ranks - 1.0) * self.block;
        match self.shape.collective {
            Collective::AllReduce => self.spread(2.0 * self.chunks, elems, elems / 2.0),
            // The second hop of a chunk overlaps the first one of the next.
            Collective::Reduce { .. } => self.spread(self.chunks + 1.0, elems, elems / 2.0),
            _ => self.spread(self.chunks + 1.0, elems, 0.0),
        }
    }

    /// The root puts, or takes, the whole buffer once for each level.
    fn binomial(&self) -> Terms {
        let rounds = f64::from(self.shape.world_size.get().ilog2());
        let elems = log2_ceil(self.shape.world_size.get()) * self.count;
        match self.shape.collective {
            Collective::Reduce { .. } => self.everywhere(rounds, elems, elems),
            _ => self.everywhere(rounds, elems, 0.0),
        }
    }

    fn halving_doubling(&self) -> Terms {
        let corners = 1_u32 << self.shape.world_size.get().ilog2();
        let spares = self.shape.world_size.get() - corners;
        let rank = |corner: u32| Rank::new(corner + corner.min(spares));
        let (folds, gathers) = match self.shape.collective {
            Collective::AllReduce => (1.0, 1.0),
            Collective::ReduceScatter => (1.0, 0.0),
            _ => (0.0, 1.0),
        };
        let mut terms = Terms::default();
        let mut distance = 1;
        while distance < corners {
            let segment = match self.shape.collective {
                Collective::AllReduce => {
                    (self.count * f64::from(distance) / f64::from(corners)).ceil()
                }
                // The first corners stand in for spare ranks.
                _ => (f64::from(rank(distance).get()) * self.block).min(self.count),
            };
            let crosses =
                (0..corners).any(|corner| self.crosses([rank(corner), rank(corner ^ distance)]));
            let traffic = terms.side(crosses);
            traffic.rounds += (folds + gathers) * self.chunks_of(segment as usize);
            traffic.elems +=
                (folds + gathers) * segment * if crosses { self.host_ranks_max } else { 1.0 };
            terms.folded += folds * segment;
            distance *= 2;
        }
        if spares > 0 {
            let crosses =
                (0..spares).any(|corner| self.crosses([rank(corner), Rank::new(2 * corner + 1)]));
            let traffic = terms.side(crosses);
            traffic.rounds += 2.0;
            // One way the whole buffer, the other way the whole result or what is due of it.
            traffic.elems += match self.shape.collective {
                Collective::AllReduce => 2.0 * self.count,
                Collective::ReduceScatter => self.count + self.block,
                _ => self.count,
            };
            terms.folded += folds * self.count;
        }
        terms
    }

    fn double_tree(&self) -> Terms {
        let half = self.shape.count.div_ceil(2);
        let chunk = half.min(self.shape.chunk_elems_max.get()) as f64;
        let chunks = self.chunks_of(half);
        let depth = f64::from((self.shape.world_size.get() - 1).ilog2() + 1);
        // Every other frame of the root's is for the same tree.
        let last = 2.0 * (chunks - 1.0);
        let down = (last + 2.0 * depth) * chunk;
        let up = (last + depth + 1.0) * chunk;
        let rounds = depth + chunks - 1.0;
        let terms = match self.shape.collective {
            Collective::AllReduce => self.everywhere(2.0 * rounds, up + down, self.count),
            Collective::Reduce { .. } => self.everywhere(rounds, up, self.count),
            _ => self.everywhere(rounds, down, 0.0),
        };
        Terms { streams: true, ..terms }
    }

    fn zero_copy(&self) -> Terms {
        let shards = (self.ranks - 1.0) * self.block;
        let (written, folded) = match self.shape.collective {
            Collective::AllReduce => (shards, shards),
            Collective::ReduceScatter => (0.0, shards),
            Collective::Reduce { .. } => (self.block, shards),
            _ => (shards, 0.0),
        };
        self.everywhere(2.0 * log2_ceil(self.shape.world_size.get()), written, folded)
    }

    fn chunks_of(&self, elems: usize) -> f64 {
        chunk_count(ElemRange::up_to(elems), self.shape.chunk_elems_max) as f64
    }

    fn crosses(&self, pair: [Rank; 2]) -> bool {
        let [one, other] = pair.map(|rank| self.shape.hosts.number(rank));
        one != other
    }
}

impl Terms {
    /// What is between hosts, or within them.
    fn side(&mut self, crosses: bool) -> &mut Traffic {
        if crosses { &mut self.between } else { &mut self.within }
    }

    fn and(self, other: Self) -> Self {
        let and = |one: Traffic, other: Traffic| Traffic {
            rounds: one.rounds + other.rounds,
            elems: one.elems + other.elems,
        };
        Self {
            within: and(self.within, other.within),
            between: and(self.between, other.between),
            folded: self.folded + other.folded,
            ..self
        }
    }
}

fn longest_block(shape: &ScheduleShape) -> usize {
    let blocks = Blocks::new(shape);
    let lengths = shape.world_size.ranks().map(|rank| blocks.of(rank).len());
    lengths.max().expect("a world has ranks")
}

fn longest_pair(shape: &ScheduleShape) -> usize {
    let blocks = Blocks::new(shape);
    let ranks = || shape.world_size.ranks();
    let pairs = ranks().flat_map(|source| ranks().map(move |target| (source, target)));
    let others = pairs.filter(|(source, target)| source != target);
    let lengths = others.map(|(source, target)| blocks.between(source, target).len());
    lengths.max().unwrap_or_default()
}

/// The most that a rank of an all-to-all sends to others, or takes from them.
fn longest_row_or_column(shape: &ScheduleShape) -> f64 {
    let blocks = Blocks::new(shape);
    let ranks = || shape.world_size.ranks();
    let longest = ranks().map(|rank| {
        let peers = || ranks().filter(|&peer| peer != rank);
        let row: usize = peers().map(|peer| blocks.between(rank, peer).len()).sum();
        let column: usize = peers().map(|peer| blocks.between(peer, rank).len()).sum();
        row.max(column)
    });
    longest.max().expect("a world has ranks") as f64
}

/// In integers: a logarithm of floats may be off by its last bit, which would be a whole round, and not on all machines
/// alike, so that ranks would choose different algorithms.
fn log2_ceil(number: u32) -> f64 {
    f64::from(u32::BITS - number.saturating_sub(1).leading_zeros())
}

#[cfg(test)]
mod tests;
