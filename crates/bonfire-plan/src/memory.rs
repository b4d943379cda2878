//! How much memory each rank of a training takes, before there is one.
//!
//! What the ranks hold of parameters, gradients and the optimizer's state is read from the same
//! [`Layout`](crate::Layout) as the training reads it, and the buckets from the same
//! [assignment](crate::buckets::assign). What the reducer, the gathers and the step of the optimizer allocate besides is
//! counted here. Activations are the model's own, so somebody has to say or measure them.
//!
//! It is the memory of trainings whose gradients go through host memory. Temporary memory of one operation, such as
//! that of a matrix product, belongs to the activations.

mod held;
mod rank;
mod table;

use crate::buckets::Caps;
use crate::{Bytes, DType, Placement, ShardGroup, WorldSize};

pub use held::{Held, Phase, RankMemory};
pub use table::MemoryTable;

/// A parameter of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its path, such as `blocks.0.attention.query.weight`.
    pub name: String,
    /// Elements along each dimension, before it is sharded; empty for a scalar.
    pub shape: Vec<usize>,
    /// The type of its elements and of those of its gradient.
    pub dtype: DType,
    /// How many moments the optimizer keeps for each element, such as 2 for AdamW. Nothing where the parameter is
    /// frozen: it has no gradient and is never cut.
    ///
    /// A moment has 4 bytes, or 8 for elements of 64 bits; for elements of 16 bits there are 4 bytes more, which are
    /// the element in 32 bits.
    pub moments: Option<u32>,
}

impl Parameter {
    /// How many elements it has.
    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    /// What the optimizer keeps for an element, in bytes.
    fn state_bytes(&self) -> u64 {
        let size = self.dtype.size_bytes() as u64;
        let master = if size < 4 { 4 } else { 0 };
        u64::from(self.moments.unwrap_or(0)) * size.max(4) + master
    }
}

/// What a forward and a backward pass over one micro-batch take besides parameters: what is kept for the backward pass,
/// and what operations need for themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activations {
    /// Where gradients go into buckets as soon as they are there.
    pub alone: Bytes,
    /// Where gradients stay until the pass is over, as on a lone rank: the most that both take together.
    pub with_gradients: Bytes,
}

impl From<Bytes> for Activations {
    /// As where activations go as fast as gradients come.
    fn from(bytes: Bytes) -> Self {
        Self { alone: bytes, with_gradients: bytes }
    }
}

/// How parameters come into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Every rank makes the whole model, and then keeps its share.
    Whole,
    /// Each parameter is made and cut before the next one, as Burn's layers are that nothing has used yet.
    OneByOne,
}

/// Whether a rank ever has the whole model where parameters are sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// No rank ever has the whole model.
    Sharded,
    /// Between two steps, for an evaluation or an export.
    Whole,
}

/// A training whose memory is to be known, in any placement. Change what is to be otherwise than in
/// [`new`](Self::new).
///
/// ```
/// # mod bonfire {
/// #     pub use bonfire_plan as collective;
/// #     pub use bonfire_plan as ddp;
/// #     pub mod plan { pub use bonfire_plan::*; pub use bonfire_plan::memory::*; }
/// # }
/// use bonfire::collective::{DType, WorldSize};
/// use bonfire::ddp::Placement;
/// use bonfire::plan::{Bytes, Parameter, Training};
///
/// // 64 million parameters with AdamW on 8 ranks.
/// let matrix = |layer| Parameter {
///     name: format!("layers.{layer}.weight"),
///     shape: vec![4096, 4096],
///     dtype: DType::F32,
///     moments: Some(2),
/// };
/// let training = Training::new((0..4).map(matrix).collect(), WorldSize::new(8)?);
/// let memory = training.memory(Placement::zero3());
/// let (phase, held) = memory.peak();
/// assert_eq!(held.optimizer, Bytes::new(2 * 4 * (4 << 24) / 8));
/// println!("{} while {phase}", held.total());
/// # Ok::<(), bonfire_plan::PlanError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Training {
    /// Those of the whole model, in the order of its definition.
    pub parameters: Vec<Parameter>,
    /// Ranks that average their gradients with one another.
    pub ranks: WorldSize,
    /// How many of them are on each host: for placements within hosts, and for what ranks see of each other's
    /// memory. All of them in [`new`](Self::new).
    pub ranks_per_host: WorldSize,
    /// The largest buckets of gradients, in bytes.
    pub caps: Caps,
    /// Forward and backward passes of a step on each rank. With more than one, gradients are added up first.
    pub micro_batches: u64,
    /// Of one pass. None in [`new`](Self::new).
    pub activations: Activations,
    /// What a process has before there is a model: its code, threads, data. None in [`new`](Self::new). Where there
    /// are several ranks, each has 6 MiB more for threads, connections and the code of both.
    pub program: Bytes,
    /// Whether a rank first has all parameters, also those that are sharded later.
    pub start: Start,
    /// Whether the whole model is ever on one rank.
    pub evaluation: Evaluation,
}

impl Training {
    /// A training of these parameters on that many ranks of one host, with one micro-batch in each
    /// step, of a model that is made as a whole.
    pub fn new(parameters: Vec<Parameter>, ranks: WorldSize) -> Self {
        Self {
            parameters,
            ranks,
            ranks_per_host: ranks,
            caps: Caps::default(),
            micro_batches: 1,
            activations: Activations::default(),
            program: Bytes::default(),
            start: Start::Whole,
            evaluation: Evaluation::Sharded,
        }
    }

    /// Of all parameters of the model together.
    pub fn parameter_bytes(&self) -> Bytes {
        let bytes = |parameter: &Parameter| Bytes::of(parameter.elems() as u64, parameter.dtype);
        self.parameters.iter().map(bytes).sum()
    }

    /// What a rank holds in a placement: that with the most.
    pub fn memory(&self, placement: Placement) -> RankMemory {
        rank::fullest(self, placement)
    }

    /// The same for several placements, as a table, and which of them fit into that much memory.
    pub fn table(
        &self,
        placements: impl IntoIterator<Item = Placement>,
        limit: Option<Bytes>,
    ) -> MemoryTable {
        let rows = placements.into_iter();
        MemoryTable {
            ranks: self.ranks,
            parameters: self.parameters.iter().map(Parameter::elems).sum(),
            rows: rows.map(|placement| self.memory(placement)).collect(),
            limit,
        }
    }

    /// The ranks among which states are sharded: those of one copy.
    fn sharing(&self, placement: Placement) -> WorldSize {
        let ranks = match placement.among {
            ShardGroup::All => self.ranks.get(),
            ShardGroup::Host => self.ranks_per_host.get(),
            ShardGroup::Ranks(ranks) => ranks.get(),
        };
        WorldSize::new(ranks.min(self.ranks.get())).expect("no group of ranks is empty")
    }
}

#[cfg(test)]
mod tests;
