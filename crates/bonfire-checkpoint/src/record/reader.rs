//! A file on rank 0, read for all ranks one tensor at a time.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use bonfire_collective::ProcessGroup;
use burn::module::ParamId;
use burn::tensor::{Bytes, DType};
use burn_pack::{Reader, Scalar, Tensor as Packed};
use serde::{Deserialize, Serialize};

use super::sharded::ShardedTable;
use super::table::TensorTable;
use super::{Record, RecordError, WRITER, broadcast_value, dims, unusable};

/// Describes a tensor of a file, without its values.
#[derive(Debug, Serialize, Deserialize)]
pub struct TensorMetadata {
    /// Its path in a model, or the identity of a parameter and the optimizer's name of its state.
    pub name: String,
    /// The identity of its parameter where it was saved.
    pub id: Option<u64>,
    /// The shape of the values.
    pub shape: Vec<usize>,
    /// The data type of the values.
    pub dtype: DType,
}

impl From<&Packed> for TensorMetadata {
    fn from(tensor: &Packed) -> Self {
        Self {
            name: tensor.name.clone(),
            id: tensor.param_id,
            shape: dims(tensor),
            dtype: tensor.dtype,
        }
    }
}

/// The tensors of a file that rank 0 reads for all. All ranks call the same methods in the same order.
pub struct SharedReader<'a> {
    group: &'a ProcessGroup,
    all: Vec<TensorMetadata>,
    scalars: BTreeMap<String, Scalar>,
    metadata: BTreeMap<String, String>,
    tensors: Vec<Packed>,
}

impl<'a> SharedReader<'a> {
    /// Opens the file that rank 0 is given.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open(group: &'a ProcessGroup, file: Option<PathBuf>) -> Result<Self, RecordError> {
        let record = match file {
            Some(file) => Record::read(Reader::from_file_exact(file).map_err(unusable)?)?,
            None => Record::default(),
        };
        let all: Vec<_> = record.tensors.iter().map(TensorMetadata::from).collect();
        let (all, scalars, metadata) =
            broadcast_value(group, &(all, record.scalars, record.metadata))?;
        Ok(Self { group, all, scalars, metadata, tensors: record.tensors })
    }

    /// Returns its tensors, in the order of the file.
    pub fn all(&self) -> &[TensorMetadata] {
        &self.all
    }

    /// Returns the record without its tensors.
    pub fn values(&self) -> Record {
        Record {
            tensors: Vec::new(),
            scalars: self.scalars.clone(),
            metadata: self.metadata.clone(),
        }
    }

    /// Reads a tensor with its values. Every rank must call it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn tensor(&self, index: usize) -> Result<Packed, RecordError> {
        let TensorMetadata { name, id, shape, dtype } = &self.all[index];
        let mut bytes = match self.tensors.get(index) {
            Some(tensor) => tensor.to_bytes().map_err(unusable)?.to_vec(),
            None => vec![0; shape.iter().product::<usize>() * dtype.size()],
        };
        self.group.broadcast(&mut bytes, WRITER)?;
        let bytes = Bytes::from_bytes_vec(bytes);
        Ok(Packed::new(name.clone(), *dtype, shape.clone(), *id, bytes))
    }

    /// Reads the tensor of this name. Every rank must call it.
    ///
    /// # Errors
    /// [`RecordError`].
    ///
    /// # Panics
    /// If the file lacks the tensor.
    pub fn named(&self, name: &str) -> Result<Packed, RecordError> {
        let index = self.all.iter().position(|tensor| tensor.name == name);
        self.tensor(index.unwrap_or_else(|| panic!("the file has no tensor {name}")))
    }

    /// Reads this rank's shards of the tensors that its part of a model has. Every rank must call it, and reads all, in
    /// the order of the file.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn shards(
        &self,
        sharded: &ShardedTable,
        own: &TensorTable,
    ) -> Result<HashMap<ParamId, Packed>, RecordError> {
        let mut here = HashMap::new();
        for id in own.ids() {
            here.insert(sharded.name(id)?, id);
        }
        let mut kept = HashMap::new();
        for (index, tensor) in self.all.iter().enumerate() {
            let complete = self.tensor(index)?;
            if let Some(&id) = here.get(tensor.name.as_str()) {
                kept.insert(id, sharded.shard(id, complete)?);
            }
        }
        Ok(kept)
    }

    /// Describes how a model with tensors of these names and shapes differs.
    pub fn misfit<'e>(
        &self,
        here: impl Iterator<Item = (&'e str, &'e [usize])> + Clone,
    ) -> Option<String> {
        let elems = |shape: &[usize]| shape.iter().product::<usize>();
        let there = self.all.iter().map(|tensor| (tensor.name.as_str(), tensor));
        let there: HashMap<&str, &TensorMetadata> = there.collect();
        let differs = here.clone().find_map(|(name, shape)| match there.get(name) {
            None => Some(format!("it has no parameter {name}")),
            // A layer may save what it holds transposed.
            Some(tensor) if elems(&tensor.shape) != elems(shape) => Some(format!(
                "parameter {name} has shape {:?} there and {shape:?} here",
                tensor.shape
            )),
            Some(_) => None,
        });
        differs.or_else(|| {
            let mut all = self.all.iter();
            let more = all.find(|tensor| here.clone().all(|(name, _)| name != tensor.name))?;
            Some(format!("it has a parameter {} more", more.name))
        })
    }
}
