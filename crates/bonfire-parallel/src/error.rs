//! Errors of ranks that have parts of one model.

use bonfire_collective::{CollectiveError, Rank, WorldSize};
use bonfire_train::{TrainError, World};

/// An operation on parts of tensors failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A tensor cannot be cut into equal parts.
    #[error(
        "dimension {dim} of {what} has {size} entries, which {ranks} ranks cannot divide into equal parts; \
         make it a multiple of {ranks}, or change the number of ranks on this axis of the mesh"
    )]
    Indivisible {
        /// The tensor or parameter, such as `a tensor`.
        what: &'static str,
        /// The dimension to be divided, from 0.
        dim: usize,
        /// The entries along it, in one of its sections.
        size: usize,
        /// The number of ranks that share the tensor.
        ranks: WorldSize,
    },
    /// A sequence cannot be cut into two equal chunks per rank.
    #[error(
        "dimension {dim} has {length} tokens on {ranks} ranks, which are not {chunks} equal chunks: each rank has two; make \
         the sequence a multiple of {chunks} tokens, or change the number of ranks on cp"
    )]
    Odd {
        /// The dimension of tokens, from 0.
        dim: usize,
        /// The number of tokens on all ranks together.
        length: usize,
        /// The number of ranks that share the sequence.
        ranks: WorldSize,
        /// The number of chunks, two for each rank.
        chunks: usize,
    },
    /// Ranks attend to each other's tokens with tensors of different shapes or types.
    #[error(
        "rank {rank} attends with {found}, and rank 0 with {expected}; give all ranks as many tokens of the same \
         batches"
    )]
    OtherShape {
        /// The rank that differs from the first.
        rank: Rank,
        /// The type, shape and mask on that rank.
        found: String,
        /// The type, shape and mask on rank 0.
        expected: String,
    },
    /// A vocabulary has fewer entries than there are ranks.
    #[error("a vocabulary of {size} cannot be divided among {ranks} ranks: each needs an entry")]
    SmallVocabulary {
        /// The number of entries in the complete vocabulary.
        size: usize,
        /// The number of ranks that were to share it.
        ranks: WorldSize,
    },
    /// A target is not an entry of the vocabulary.
    #[error(
        "the target {target} is not in the vocabulary, 0 to {last}; give a target that does not count to \
         VocabParallelCrossEntropy::with_ignored"
    )]
    OutsideVocabulary {
        /// The target that is furthest outside on its side.
        target: i64,
        /// The highest target that is in the vocabulary.
        last: usize,
    },
    /// A parameter already has a reparameterization.
    #[error(
        "parameter {parameter} has a reparameterization already ({name}), and Burn has one for each; give \
         sequence_parallel only what has none"
    )]
    Reparameterized {
        /// The path of the first such parameter.
        parameter: String,
        /// The name of its reparameterization, such as `lora`.
        name: String,
    },
    /// Ranks cannot add values of this type.
    #[error("tensors of type {dtype} cannot be sent between ranks; use f32, f64, f16 or bf16")]
    UnsupportedDtype {
        /// The type of the tensor's elements, as Burn prints it.
        dtype: String,
    },
    /// A tensor cannot be read from its device. The group has ended.
    #[error("cannot read a tensor from its device: {cause}")]
    Unreadable {
        /// The error of the backend, as text.
        cause: String,
    },
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A device failed in an operation between ranks. The group has ended.
    #[error(transparent)]
    Device(Box<TrainError>),
}

impl From<TrainError> for ParallelError {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Collective(error) => error.into(),
            TrainError::UnreadableTensor { cause, .. } => Self::Unreadable { cause },
            error => Self::Device(Box::new(error)),
        }
    }
}

pub(crate) fn unreadable(cause: &impl std::fmt::Debug) -> ParallelError {
    ParallelError::Unreadable { cause: format!("{cause:?}") }
}

impl From<ParallelError> for TrainError {
    fn from(error: ParallelError) -> Self {
        match error {
            ParallelError::Collective(error) => error.into(),
            ParallelError::Device(error) => *error,
            error => Self::Forward(Box::new(error)),
        }
    }
}

/// Ends a forward pass that returns no `Result` if an operation over `world` failed; a [`Ddp`](bonfire_train::Ddp)
/// that runs it returns the failure.
///
/// # Panics
/// With the failure, which the pass cannot return, and without the report of the panic hook.
pub fn or_end_pass<T>(result: Result<T, ParallelError>, world: &World) -> T {
    result.unwrap_or_else(|error| {
        let text = format!("a layer that is divided among ranks: {error}");
        world.fail(error);
        std::panic::resume_unwind(Box::new(text))
    })
}
