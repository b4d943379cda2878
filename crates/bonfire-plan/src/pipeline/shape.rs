//! What is asked of a pipeline: which schedule, over how many ranks, stages and micro-batches.

use std::num::NonZeroU32;

use super::error::ShapeError;
use super::kind::Kind;
use crate::{Rank, WorldSize};

/// The most passes that a schedule may have: more than any training uses, and little memory.
const PASSES_MAX: u64 = 1 << 24;

/// What a schedule is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The order of the passes, and the placement of the stages.
    pub kind: Kind,
    /// The ranks of one pipeline, without its data-parallel copies.
    pub ranks: WorldSize,
    /// The stages on each rank.
    pub chunks: NonZeroU32,
    /// The micro-batches of a step, each for every stage.
    pub micro_batches: NonZeroU32,
}

impl Shape {
    /// Whether there is such a schedule.
    ///
    /// # Errors
    /// [`ShapeError`] with the rule that the shape breaks.
    pub fn check(&self) -> Result<(), ShapeError> {
        let (kind, chunks) = (self.kind, self.chunks.get());
        let is_possible = match kind {
            Kind::GPipe | Kind::OneForwardOneBackward | Kind::ZeroBubbleH1 => chunks == 1,
            Kind::Interleaved => chunks >= 2,
            Kind::ZeroBubbleV => chunks == 2,
        };
        if !is_possible {
            return Err(ShapeError::Chunks { kind, chunks });
        }
        let micro_batches = self.micro_batches.get();
        let passes = u64::from(self.ranks.get()) * u64::from(chunks);
        if passes.saturating_mul(3 * u64::from(micro_batches)) > PASSES_MAX {
            return Err(ShapeError::TooLong { limit: PASSES_MAX });
        }
        if kind == Kind::Interleaved && !micro_batches.is_multiple_of(self.round()) {
            let rounds = micro_batches / self.round();
            return Err(ShapeError::UnevenRounds { micro_batches, rounds });
        }
        Ok(())
    }

    /// The stages of the model.
    pub fn stages(&self) -> u32 {
        self.ranks.get() * self.chunks.get()
    }

    /// The rank that holds a stage.
    ///
    /// # Panics
    /// When there is no such stage.
    pub fn owner(&self, stage: u32) -> Rank {
        assert!(stage < self.stages(), "stage {stage} of {}", self.stages());
        let ranks = self.ranks.get();
        match self.kind {
            Kind::ZeroBubbleV if stage >= ranks => Rank::new(2 * ranks - 1 - stage),
            _ => Rank::new(stage % ranks),
        }
    }

    /// Micro-batches that go through one stage of a rank before the rank turns to its next one. As many as
    /// there are ranks, or a few more, so that rounds are equal.
    pub(super) fn round(&self) -> u32 {
        let micro_batches = self.micro_batches.get();
        let rounds = (micro_batches / self.ranks.get()).max(1);
        micro_batches / rounds
    }
}
