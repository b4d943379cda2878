//! Which algorithm an operation uses.
//!
//! What somebody asked for is used where it exists. Otherwise the choice is the cheapest by the measured figures of
//! the links, among those whose order of additions the options allow: under [`FoldOrder::Canonical`] the choice never
//! changes the bits of a result, not between sizes, bucket layouts or transports.
//!
//! Every rank must choose alike. A choice depends on nothing but what all ranks know to be the same:
//! the operation, the options, the hosts, and figures that they agreed on.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Collective, DType, Hosts, LinkCosts, LinkFigures, Order, Partition, Rank, ReduceOp,
    Schedule, ScheduleShape, WorldSize, estimate,
};
use foldhash::fast::FixedState;

use crate::options::{FoldOrder, GroupOptions};
use crate::transport::topology::Topology;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) collective: Collective,
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) partition: &'a Partition,
}

/// Operations that share one choice: of one collective, one kind of arithmetic, one kind of blocks,
/// and about one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    collective: u8,
    exact: bool,
    /// Whether folds run in another type than that of the elements.
    widened: bool,
    balanced: bool,
    /// Operations of `2^(size - 1)` bytes and more, below `2^size`.
    size: u32,
}

#[derive(Debug)]
pub(crate) struct Selector {
    me: Rank,
    world_size: WorldSize,
    topology: Topology,
    hosts: Hosts,
    options: GroupOptions,
    chunk_bytes: usize,
    figures: Option<LinkFigures>,
    choices: HashMap<Class, Algorithm, FixedState>,
}

impl Question<'_> {
    fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.size_bytes())
    }

    /// Whether the order of the fold leaves no trace in the result.
    fn is_exact(&self) -> bool {
        self.reduce.is_none_or(|reduce| reduce.is_exact(self.dtype))
    }

    /// Whether `algorithm` gives the bits of the fold over ranks 0 to n-1.
    fn is_canonical_by(&self, algorithm: Algorithm) -> bool {
        self.reduce.is_none_or(|reduce| {
            algorithm.order_of(self.collective, reduce, self.dtype) == Order::Canonical
        })
    }

    fn class(&self) -> Class {
        Class {
            collective: self.collective.code(),
            exact: self.is_exact(),
            widened: self.dtype.is_widened(),
            balanced: *self.partition == Partition::Balanced,
            size: usize::BITS - self.bytes().leading_zeros(),
        }
    }
}

impl Selector {
    pub(crate) fn new(
        me: Rank,
        topology: Topology,
        options: GroupOptions,
        chunk_bytes: usize,
    ) -> Self {
        let hosts = topology.hosts().to_vec();
        Self {
            me,
            world_size: WorldSize::new(hosts.len() as u32).expect("this rank is in the group"),
            hosts: Hosts::new(hosts),
            topology,
            options,
            chunk_bytes,
            figures: None,
            choices: HashMap::default(),
        }
    }

    pub(crate) fn world_size(&self) -> WorldSize {
        self.world_size
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn hosts(&self) -> Hosts {
        self.hosts.clone()
    }

    /// The figures that the ranks agreed on.
    pub(crate) fn learn(&mut self, mut figures: LinkFigures) {
        if self.hosts.host_count() > 1 {
            // No message takes longer within a host than between hosts. One that did waited for a core.
            let (intra, inter) = (&mut figures.intra_host, figures.inter_host);
            intra.alpha_s = intra.alpha_s.min(inter.alpha_s);
        }
        let [intra, inter] = [figures.intra_host, figures.inter_host].map(|link: LinkCosts| {
            let (latency, per_byte) = (link.alpha_s * 1e6, link.beta_s_per_byte * 1e9);
            format!("{latency:.2} us and {per_byte:.3} ns per byte")
        });
        let me = self.me;
        tracing::debug!(target: "bonfire", "rank {me}: links on a host take {intra}; between hosts {inter}");
        self.figures = Some(figures);
    }

    pub(crate) fn figures(&self) -> Option<LinkFigures> {
        self.figures
    }

    pub(crate) fn known(&self, question: &Question<'_>) -> Option<Algorithm> {
        self.choices.get(&question.class()).copied()
    }

    /// Whether the choice depends on figures that nobody has measured yet. The same on all ranks that
    /// are in the same operation.
    pub(crate) fn wants_figures(&self, question: &Question<'_>) -> bool {
        self.figures.is_none()
            && self.forced(question).is_none()
            && question.count > 0
            && self.world_size.get() > 1
            && self.allowed(question).len() > 1
    }

    pub(crate) fn select(&mut self, question: &Question<'_>) -> Algorithm {
        let class = question.class();
        let Some(algorithm) = self.choose(question, class) else {
            // No algorithm has a plan: this rank's caller asked for the impossible, and making a plan
            // says what is wrong. Not a choice to remember, for the other ranks do not know of it.
            return Algorithm::candidates(question.collective)[0];
        };
        self.choices.insert(class, algorithm);
        algorithm
    }

    fn choose(&self, question: &Question<'_>, class: Class) -> Option<Algorithm> {
        let allowed = self.allowed(question);
        let first = *allowed.first()?;
        if let Some(algorithm) = self.forced(question) {
            self.announce(question, class, algorithm, &"it was asked for");
            return Some(algorithm);
        }
        let (Some(figures), 2..) = (self.figures, allowed.len()) else {
            // One is left, or there is nothing to move, where one round is best.
            let one_round = allowed.iter().find(|one| **one == Algorithm::OneShot);
            return Some(*one_round.unwrap_or(&first));
        };
        let (count, dtype) = (self.middle(question, class), question.dtype);
        let mut estimated: Vec<(Algorithm, f64)> = allowed
            .into_iter()
            .map(|algorithm| {
                let shape = self.shape(question, count, algorithm);
                (algorithm, estimate(&shape, dtype, &figures))
            })
            .collect();
        // Stable, so all ranks take the same of equals.
        estimated.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (algorithm, _) = estimated[0];
        self.announce(question, class, algorithm, &Estimates(estimated));
        Some(algorithm)
    }

    /// What somebody asked for. Work in the ranks' own memory is chosen before, where it is possible.
    fn forced(&self, question: &Question<'_>) -> Option<Algorithm> {
        let forced = self.options.forced(question.collective);
        forced.filter(|algorithm| *algorithm != Algorithm::ZeroCopy)
    }

    /// The algorithms among which the options leave a choice; none if the shape is impossible.
    fn allowed(&self, question: &Question<'_>) -> Vec<Algorithm> {
        let possible = |algorithm: &Algorithm| {
            *algorithm != Algorithm::ZeroCopy
                && (self.hosts.host_count() > 1 || !algorithm.looks_at_hosts())
                && Schedule::new(self.shape(question, question.count, *algorithm)).is_ok()
        };
        let candidates = Algorithm::candidates(question.collective);
        let possible: Vec<Algorithm> = candidates.iter().copied().filter(possible).collect();
        let any = self.options.order == FoldOrder::Any;
        let canonical = |algorithm: &Algorithm| any || question.is_canonical_by(*algorithm);
        let allowed: Vec<Algorithm> = possible.iter().copied().filter(canonical).collect();
        if allowed.is_empty() { possible } else { allowed }
    }

    /// What operations of a class are estimated as: of the size in the middle, so that a choice does
    /// not depend on which operation of the class came first.
    fn middle(&self, question: &Question<'_>, class: Class) -> usize {
        if !class.balanced || class.size <= 1 {
            return question.count;
        }
        let middle = (3_usize << (class.size - 1)) / 2;
        let blocks = self.world_size.len().pow(2);
        (middle / question.dtype.size_bytes()).max(1).next_multiple_of(blocks)
    }

    fn shape(&self, question: &Question<'_>, count: usize, algorithm: Algorithm) -> ScheduleShape {
        ScheduleShape {
            collective: question.collective,
            algorithm,
            world_size: self.world_size,
            count,
            chunk_elems_max: chunk_elems(self.chunk_bytes, question.dtype),
            partition: question.partition.clone(),
            hosts: self.hosts.clone(),
        }
    }

    fn announce(
        &self,
        question: &Question<'_>,
        class: Class,
        algorithm: Algorithm,
        reason: &dyn fmt::Display,
    ) {
        if self.world_size.get() == 1 {
            return;
        }
        let (me, name) = (self.me, question.collective.name());
        let size = match class.size {
            0 => "nothing".to_owned(),
            size => format!("{} to {}", Size(1 << (size - 1)), Size(1_u128 << size)),
        };
        tracing::debug!(target: "bonfire", "rank {me}: {name} of {size} by {algorithm}: {reason}");
    }
}

pub(crate) fn chunk_elems(chunk_bytes: usize, dtype: DType) -> NonZeroUsize {
    NonZeroUsize::new(chunk_bytes / dtype.size_bytes())
        .expect("a chunk holds at least one element of every type")
}

struct Estimates(Vec<(Algorithm, f64)>);

impl fmt::Display for Estimates {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (algorithm, seconds)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(formatter, "{separator}{algorithm} {:.1} us", seconds * 1e6)?;
        }
        Ok(())
    }
}

struct Size(u128);

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes @ 0..1024 => write!(formatter, "{bytes} B"),
            bytes @ 1024..1_048_576 => write!(formatter, "{} KiB", bytes >> 10),
            bytes @ 1_048_576..1_073_741_824 => write!(formatter, "{} MiB", bytes >> 20),
            bytes => write!(formatter, "{} GiB", bytes >> 30),
        }
    }
}

#[cfg(test)]
mod tests;
