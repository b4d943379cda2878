//! Records of Burn that several ranks write together, and read together: one tensor after the other, so that no rank has
//! all of them in memory.
//!
//! Rank 0 of a group writes and reads. Of a record that it writes, it asks the others for a tensor when that is written:
//! [`Recorded`]. What it reads, it gives to all: [`Source`]. Where ranks have different parts of a model, [`Parts`] makes
//! the record of the whole of those of the parts, and parts of the tensors of the whole.

mod error;
mod gathers;
mod parts;
mod source;

use std::collections::BTreeMap;
use std::path::Path;

use bonfire_collective::Rank;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn_pack::{Reader, Scalar, Tensor, Writer};

pub use error::RecordError;
pub use gathers::{Gathers, Recorded, announced, told_by_all};
pub use parts::{Cuts, Naming, Parts, Place, Whole};
pub use source::{Described, Source};

use crate::CheckpointError;

/// Who writes and reads.
pub const WRITER: Rank = Rank::new(0);

/// Tensors for a file, and what else an optimizer keeps.
#[derive(Default)]
pub struct Record {
    /// With their names, and the identities of the parameters that they belong to.
    pub tensors: Vec<Tensor>,
    /// By name.
    pub scalars: BTreeMap<String, Scalar>,
    /// By name.
    pub metadata: BTreeMap<String, String>,
}

impl Record {
    /// What an optimizer keeps.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`].
    pub fn of(optimizer: &ModuleOptimizer) -> Result<Self, CheckpointError> {
        let bytes = optimizer.to_record().into_bytes().map_err(unusable)?;
        let reader = Reader::from_bytes(bytes).map_err(unusable)?;
        Ok(Self {
            scalars: reader.scalars().clone(),
            metadata: reader.metadata().clone(),
            tensors: reader.into_tensors().map_err(unusable)?,
        })
    }

    /// The same as Burn has it, with all values in memory.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`].
    pub fn into_optimizer_record(self) -> Result<OptimizerRecord, CheckpointError> {
        let bytes = self.writer().into_bytes().map_err(unusable)?;
        OptimizerRecord::from_bytes(bytes).map_err(unusable)
    }

    /// Writes a file; `what` is what an error calls it.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritten`].
    pub fn write(self, file: &Path, what: &str) -> Result<(), CheckpointError> {
        let written = self.writer().write_to_file_in_place(file);
        written.map_err(|cause| CheckpointError::Unwritten {
            what: what.to_owned(),
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

/// That the state of an optimizer cannot be put into a record, or taken from one.
pub fn unusable(cause: impl std::fmt::Display) -> CheckpointError {
    unwritable("the optimizer's state", cause)
}

fn unwritable(what: &str, cause: impl std::fmt::Display) -> CheckpointError {
    CheckpointError::Unwritable {
        what: what.to_owned(),
        cause: cause.to_string(),
    }
}
