//! Records of Burn that several ranks write together, and read together.
//!
//! A checkpoint is a table of named tensors. Each row is a parameter, or the state that an optimizer has for one: the
//! parameter's identity and a suffix. Ranks have rows, or shards of them, in two ways at once:
//!
//! ```text
//!               one row of the file
//!      ________________|________________
//!     |                                 |
//!  shard of a lead                   shard of a lead        a layer that ranks divide: `ShardedTable` joins by `Cut`s
//!   ____|____                         ____|____
//!  |         |                       |         |
//!  rows of   rows of                 rows of   rows of      replicas that divide what they keep: `bonfire-train`
//!  rank 0    rank 1                  rank 2    rank 3        joins by its placement
//! ```
//!
//! To write, ranks exchange a [`ShardIndex`]: metadata without values. From these all make the same plan. Then rank 0
//! gathers one row after the other and appends it, so that no rank has all of them in memory: [`Snapshot`]. To read,
//! rank 0 sends one row after the other, and each rank keeps its shard: [`SharedReader`].

mod index;
mod reader;
mod sharded;
mod snapshot;
mod table;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bonfire_collective::{CollectiveError, Rank};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::Bytes;
use burn_pack::{Reader, Scalar, Tensor, Writer};

pub use index::{ShardIndex, ShardMetadata, split_identity};
pub use reader::{SharedReader, TensorMetadata};
pub use sharded::{Cuts, ShardedTable, TableSharding};
pub use snapshot::{Gathers, Snapshot, all_gather_values, broadcast_value};
pub use table::TensorTable;

use crate::CheckpointError;

/// The rank that writes and reads files.
pub const WRITER: Rank = Rank::new(0);

/// Ranks could not write or read a record together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A file or its content is at fault.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Another rank sends a value that this program cannot read.
    #[error(
        "rank {rank} sent a value that this program cannot read ({cause}); start the same build of the \
         program on every rank"
    )]
    OtherProgram {
        /// The rank that sent the value, in numbers of the group.
        rank: Rank,
        /// The message of the deserializer on this rank.
        cause: String,
    },
}

/// Tensors for a file, with an optimizer's other values.
#[derive(Default)]
pub struct Record {
    /// Tensors with their names, and the identities of their parameters.
    pub tensors: Vec<Tensor>,
    /// An optimizer's scalars, by their names.
    pub scalars: BTreeMap<String, Scalar>,
    /// Further texts for the file, by their names.
    pub metadata: BTreeMap<String, String>,
}

impl Record {
    /// Makes a record of an optimizer's state.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`].
    pub fn of(optimizer: &ModuleOptimizer) -> Result<Self, CheckpointError> {
        let bytes = optimizer.to_record().into_bytes().map_err(unusable)?;
        Self::read(Reader::from_bytes(bytes).map_err(unusable)?)
    }

    fn read(reader: Reader) -> Result<Self, CheckpointError> {
        Ok(Self {
            scalars: reader.scalars().clone(),
            metadata: reader.metadata().clone(),
            tensors: reader.into_tensors().map_err(unusable)?,
        })
    }

    /// Converts the record to Burn's type, with all values in memory.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`].
    pub fn into_optimizer_record(self) -> Result<OptimizerRecord, CheckpointError> {
        let bytes = self.writer().into_bytes().map_err(unusable)?;
        OptimizerRecord::from_bytes(bytes).map_err(unusable)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritten`].
    pub fn write(self, file: &Path, kind: RecordKind) -> Result<(), CheckpointError> {
        let written = self.writer().write_to_file_in_place(file);
        written.map_err(|cause| CheckpointError::Unwritten {
            what: match kind {
                RecordKind::Model => "the parameters".to_owned(),
                RecordKind::Optimizer => "the optimizer's state".to_owned(),
            },
            path: file.to_owned(),
            cause: cause.to_string(),
        })
    }

    fn writer(self) -> Writer {
        let mut writer = Writer::new(self.tensors);
        for (name, value) in self.scalars {
            writer = writer.with_scalar(&name, value);
        }
        for (name, value) in self.metadata {
            writer = writer.with_metadata(&name, &value);
        }
        writer
    }
}

/// What a record is of, which says how its tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A model: tensors have their paths in it, as Burn names them.
    Model,
    /// The state of an optimizer: tensors have the identity of a parameter, and the optimizer's name behind it.
    Optimizer,
}

/// Returns the error of an optimizer state that cannot be converted to or from a record.
pub fn unusable(cause: impl std::fmt::Display) -> CheckpointError {
    unwritable("the optimizer's state", cause)
}

fn unwritable(what: &str, cause: impl std::fmt::Display) -> CheckpointError {
    CheckpointError::Unwritable { what: what.to_owned(), cause: cause.to_string() }
}

/// Returns a tensor with the elements `runs` of another one, in their order.
///
/// # Errors
/// [`CheckpointError::Unwritable`].
pub fn selected(
    tensor: Tensor,
    runs: impl Iterator<Item = Range<usize>>,
    shape: Vec<usize>,
) -> Result<Tensor, CheckpointError> {
    let (name, dtype, _, id, bytes) = tensor.into_parts().map_err(unusable)?;
    let mut own = Vec::new();
    for run in runs {
        own.extend_from_slice(&bytes[run.start * dtype.size()..run.end * dtype.size()]);
    }
    let own = Bytes::from_bytes_vec(own);
    Ok(Tensor::new(name, dtype, shape, id, own))
}

fn dims(tensor: &Tensor) -> Vec<usize> {
    tensor.shape.iter().copied().collect()
}
