//! A model of which ranks have different shards: stages of a pipeline, or divided layers.
//!
//! The ranks that have the same shards, replicas, make one record of them on the first of them, the lead. The leads
//! then make one record of all: each tensor is complete, and has the name that it had before the model was cut. So the
//! result is the record of an uncut model. A tensor is sent when it is written, and no rank holds more than one.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{Blocks, Mutex, ProcessGroup, Rank, WorldSize};
use bonfire_plan::Cut;
use burn::module::ParamId;
use burn::tensor::DType;
use burn_pack::Tensor as Packed;

use super::index::{ShardIndex, ShardMetadata, split_identity};
use super::snapshot::{Gathers, Snapshot, all_gather_values};
use super::table::TensorTable;
use super::{Record, RecordError, RecordKind, WRITER, dims, selected, unusable, unwritable};
use crate::CheckpointError;

/// The way in which parameters are divided among ranks. Clones share their entries.
#[derive(Clone, Debug, Default)]
pub struct Cuts(Arc<Mutex<HashMap<ParamId, Cut>>>);

impl Cuts {
    /// Records how `parameter` is cut.
    pub fn note(&self, parameter: ParamId, cut: Cut) {
        self.0.lock().insert(parameter, cut);
    }

    /// Returns how `parameter` is cut, or `None` if it is not.
    pub fn get(&self, parameter: ParamId) -> Option<Cut> {
        self.0.lock().get(&parameter).copied()
    }
}

/// The division of parameters among ranks, and this rank's shard.
#[derive(Clone, Debug)]
pub struct TableSharding {
    /// The number of shards.
    pub shards: WorldSize,
    /// The shard of this rank.
    pub shard: Rank,
    /// The cuts of the parameters that are divided.
    pub cuts: Cuts,
}

/// A table of tensors of which this rank has some, or shards of them.
#[derive(Clone, Debug)]
pub struct ShardedTable {
    table: Arc<TensorTable>,
    sharding: TableSharding,
    replicas: ProcessGroup,
    /// The leads of all replicas, on these.
    leads: Option<ProcessGroup>,
}

impl ShardedTable {
    /// Joins the shards of all ranks of a group, where the ranks of `replicas` have the same as this one. Every rank
    /// must call it, with the same `table`.
    ///
    /// # Errors
    /// [`RecordError::Collective`].
    #[track_caller]
    pub fn new(
        table: Arc<TensorTable>,
        sharding: TableSharding,
        replicas: ProcessGroup,
        all: &ProcessGroup,
    ) -> Result<Self, RecordError> {
        let is_lead = replicas.rank() == WRITER;
        Ok(Self { leads: all.split(is_lead.then_some(0), 0)?, table, sharding, replicas })
    }

    /// Makes a copy for work beside the training, with groups that have no other users. Every rank must call it.
    ///
    /// # Errors
    /// [`RecordError::Collective`].
    #[track_caller]
    pub fn beside(&self, all: &ProcessGroup) -> Result<Self, RecordError> {
        let replicas = self.replicas.split(Some(0), 0)?.expect("every rank has a color");
        let (table, sharding) = (Arc::clone(&self.table), self.sharding.clone());
        Self::new(table, sharding, replicas, all)
    }

    /// Sets the timeouts to those of another group.
    #[must_use]
    pub fn with_timeout_of(mut self, group: &ProcessGroup) -> Self {
        self.replicas = self.replicas.with_timeout(group.timeout());
        self
    }

    /// Returns the tensors of the uncut model.
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// Returns the ranks that have the same shards as this one.
    pub fn replicas(&self) -> &ProcessGroup {
        &self.replicas
    }

    /// Returns true if this rank has the first shards: values that all ranks share are taken from these.
    pub fn has_first_shards(&self) -> bool {
        self.sharding.shard == Rank::new(0)
    }

    /// Returns the name that a parameter of this rank has in the table.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`] if it is not there.
    pub fn name(&self, parameter: ParamId) -> Result<&str, CheckpointError> {
        let row = self.table.index_of(parameter).ok_or_else(|| unknown(&parameter.to_string()))?;
        Ok(&self.table.rows[row].name)
    }

    /// Returns this rank's shard of a complete tensor of a file.
    ///
    /// # Errors
    /// [`CheckpointError::Unwritable`] for a tensor that has another shape than its parameter, which ranks divide.
    pub fn shard(&self, parameter: ParamId, tensor: Packed) -> Result<Packed, RecordError> {
        let TableSharding { shards, shard, ref cuts } = self.sharding;
        let row = self.table.index_of(parameter);
        let (Some(row), Some(cut)) = (row, cuts.get(parameter)) else {
            return Ok(tensor);
        };
        let (found, expected) = (dims(&tensor), &self.table.rows[row].shape);
        if found != *expected {
            return Err(indivisible(&tensor.name, &found, expected).into());
        }
        let shape = cut.part(&found, shards, shard);
        Ok(selected(tensor, cut.runs(&found, shards, shard), shape)?)
    }

    /// Joins the records of all leads to that of the uncut model or its optimizer's state. All leads call it, and the
    /// first of them writes.
    ///
    /// # Errors
    /// [`RecordError::Collective`]; [`RecordError::Checkpoint`] for a tensor that the table lacks, or that is not
    /// divided as its parameter is.
    ///
    /// # Panics
    /// On other ranks.
    #[track_caller]
    pub fn joined(
        &self,
        own: Record,
        kind: RecordKind,
    ) -> Result<Snapshot<Record, RecordError>, RecordError> {
        let leads =
            self.leads.as_ref().expect("a lead joins").with_timeout(self.replicas.timeout());
        let index = (self.sharding.shard.get(), self.index(&own, kind)?);
        let indices = all_gather_values(&leads, &index)?;
        let mut found: BTreeMap<(usize, &str), Vec<Shard<'_>>> = BTreeMap::new();
        for (lead, (shard, index)) in leads.world_size().ranks().zip(&indices) {
            for metadata in &index.shards {
                let shards = found.entry((metadata.row, metadata.suffix.as_str())).or_default();
                shards.push(Shard { lead, shard: Rank::new(*shard), metadata });
            }
        }
        let mut gathers = Gathers::new(&leads);
        let mut tensors = Vec::new();
        for ((row, suffix), shards) in found {
            let id = self.table.rows[row].id;
            let name = match kind {
                RecordKind::Model => self.table.rows[row].name.clone(),
                RecordKind::Optimizer => format!("{}{suffix}", id.val()),
            };
            let plan = self.plan(&name, row, &shards)?;
            let is_own = |tensor: &&Packed| self.key(tensor, kind) == Some((row, suffix));
            let own = own.tensors.iter().find(is_own);
            // Ranks that have the same have it from one of them.
            let own = own.filter(|_| plan.runs.contains_key(&leads.rank())).cloned();
            let leads = leads.clone();
            let (dtype, shape) = (plan.dtype, plan.shape.clone());
            tensors.push(gathers.add(name, dtype, shape, id.val(), move || {
                let bytes = match &own {
                    Some(own) => own.to_bytes().map_err(unusable)?.to_vec(),
                    None => Vec::new(),
                };
                let blocks = leads.gather_v::<u8>(&bytes, WRITER)?;
                Ok(blocks.map_or(Vec::new(), |blocks| plan.assemble(&blocks)))
            }));
        }
        let mut content = Record { tensors, ..own };
        for (_, index) in indices {
            index.add_values(&mut content, |row| self.table.rows[row].id);
        }
        Ok(Snapshot { content, gathers })
    }

    fn index(&self, own: &Record, kind: RecordKind) -> Result<ShardIndex, CheckpointError> {
        let shard = |tensor: &Packed| {
            let (row, suffix) = self.key(tensor, kind).ok_or_else(|| unknown(&tensor.name))?;
            Ok(ShardMetadata {
                row,
                suffix: suffix.to_owned(),
                dtype: tensor.dtype,
                shape: dims(tensor),
                cut: self.sharding.cuts.get(self.table.rows[row].id),
            })
        };
        let shards = own.tensors.iter().map(shard);
        let shards = shards.collect::<Result<_, CheckpointError>>()?;
        Ok(ShardIndex::new(own, shards, |id| self.table.index_of(id)))
    }

    /// The row of a tensor's parameter, and the optimizer's name of the tensor.
    fn key<'a>(&self, tensor: &'a Packed, kind: RecordKind) -> Option<(usize, &'a str)> {
        let (id, suffix) = match kind {
            RecordKind::Model => (ParamId::from(tensor.param_id?), ""),
            RecordKind::Optimizer => split_identity(&tensor.name)?,
        };
        Some((self.table.index_of(id)?, suffix))
    }

    /// The assembly of a tensor. All leads compute the same.
    fn plan(&self, name: &str, row: usize, found: &[Shard<'_>]) -> Result<Plan, RecordError> {
        let Shard { lead, metadata, .. } = found[0];
        let dtype = metadata.dtype;
        let Some(cut) = metadata.cut else {
            let all = 0..metadata.shape.iter().product();
            return Ok(Plan {
                dtype,
                shape: metadata.shape.clone(),
                runs: BTreeMap::from([(lead, vec![all])]),
            });
        };
        let (shape, shards) = (&self.table.rows[row].shape, self.sharding.shards);
        let mut runs = BTreeMap::new();
        for part in found {
            if part.metadata.shape != cut.part(shape, shards, part.shard) {
                return Err(indivisible(name, &part.metadata.shape, shape).into());
            }
            runs.insert(part.lead, cut.runs(shape, shards, part.shard).collect());
        }
        if runs.len() != shards.len() {
            let cause = format!("{} of {shards} ranks have their part of it", runs.len());
            return Err(unwritable(name, cause).into());
        }
        let shape = shape.clone();
        Ok(Plan { dtype, shape, runs })
    }
}

struct Shard<'a> {
    lead: Rank,
    shard: Rank,
    metadata: &'a ShardMetadata,
}

struct Plan {
    dtype: DType,
    shape: Vec<usize>,
    /// The elements that each lead sends, of those that are requested.
    runs: BTreeMap<Rank, Vec<Range<usize>>>,
}

impl Plan {
    fn assemble(&self, blocks: &Blocks<u8>) -> Vec<u8> {
        let size = self.dtype.size();
        let mut tensor = vec![0; self.shape.iter().product::<usize>() * size];
        for (lead, runs) in &self.runs {
            let mut rest = blocks.of(*lead);
            for run in runs {
                let (own, behind) = rest.split_at(run.len() * size);
                tensor[run.start * size..run.end * size].copy_from_slice(own);
                rest = behind;
            }
        }
        tensor
    }
}

fn unknown(name: &str) -> CheckpointError {
    unwritable(
        &format!("parameter {name}"),
        "the uncut model of the checkpoints has no such parameter; take TensorTable::of of the model that the parts \
         are made of",
    )
}

/// A tensor of a divided parameter that is not divided as the parameter is.
fn indivisible(name: &str, found: &[usize], shape: &[usize]) -> CheckpointError {
    unwritable(
        name,
        format!(
            "it has shape {found:?}, and belongs to a parameter of shape {shape:?} that ranks divide; take an \
             optimizer whose state has the shape of its parameters"
        ),
    )
}
