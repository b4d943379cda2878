//! What an optimizer keeps, gathered from all ranks and cut into rows again.
//!
//! In a record of Burn the state of a parameter is tensors of its shape, under its identity. Where the
//! optimizer has stepped rows, they have this rank's rows of it.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, DType, Tensor};
use burn_pack::{Reader, Tensor as Packed, Writer};
use serde::{Deserialize, Serialize};

use super::Ddp;
use crate::TrainError;
use crate::error::checkpoint::CheckpointError;
use crate::parameters::ParameterTable;

/// A tensor of the state of a parameter that is cut, as rank 0 has it.
#[derive(Serialize, Deserialize)]
struct Field {
    parameter: usize,
    name: String,
    dtype: DType,
}

impl<M: Module> Ddp<M> {
    /// The optimizer with its state for whole parameters, for a checkpoint: an optimizer that has stepped rows
    /// keeps it for this rank's rows only. Every rank must call it. It takes the memory of the whole state, on
    /// every rank.
    ///
    /// Any placement, on any number of ranks, goes on from it: [`step`](Self::step) cuts it again.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if the state is not in Burn's form; [`TrainError::Collective`].
    #[track_caller]
    pub fn whole_optimizer(
        &mut self,
        optimizer: &ModuleOptimizer,
    ) -> Result<ModuleOptimizer, TrainError> {
        if !self.config.placement.is_sharded() {
            return Ok(optimizer.clone());
        }
        self.guarded(|ddp| ddp.gather_state(optimizer))
    }

    fn gather_state(&self, optimizer: &ModuleOptimizer) -> Result<ModuleOptimizer, TrainError> {
        let reader = read(optimizer)?;
        let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
        let own = reader.into_tensors().map_err(unusable)?;
        let ids = Ids::of(self.module(), &self.table);
        let (cut, mut all): (Vec<_>, Vec<_>) = own.into_iter().partition(|tensor| {
            let parameter = self.cut_parameter(tensor.param_id);
            parameter.is_some_and(|parameter| {
                let rows = self.shards.rows(parameter).len();
                has_rows(tensor, &self.table.get(parameter).shape, rows)
            })
        });
        // A rank may have no row of a parameter. Rank 0 has one of each.
        let fields: Vec<Field> = match self.group.rank().get() {
            0 => cut.iter().filter_map(|tensor| self.field(tensor)).collect(),
            _ => Vec::new(),
        };
        let fields = serde_json::to_vec(&fields).expect("names can always be written");
        let fields = self.group.all_gather_bytes(&fields)?;
        let fields: Vec<Field> = serde_json::from_slice(&fields[0]).map_err(unusable)?;
        for field in fields {
            let id = ids.0[field.parameter];
            let name = format!("{}.{}", id.val(), field.name);
            let rows = cut.iter().find(|tensor| tensor.name == name);
            let rows = match rows {
                Some(rows) => rows.to_bytes().map_err(unusable)?.to_vec(),
                None => Vec::new(),
            };
            let whole = self.group.all_gather_v(&rows)?.into_vec();
            let shape = self.table.get(field.parameter).shape.clone();
            let bytes = Bytes::from_bytes_vec(whole);
            let id = Some(id.val());
            all.push(Packed::new(name, field.dtype, shape, id, bytes));
        }
        let mut writer = Writer::new(all);
        for (name, value) in scalars {
            writer = writer.with_scalar(&name, value);
        }
        for (name, path) in paths {
            writer = writer.with_metadata(&name, &path);
        }
        loaded(optimizer, writer)
    }

    /// The optimizer with its state for this rank's rows, from one that may have it for whole parameters.
    pub(super) fn cut_state(
        &self,
        optimizer: &ModuleOptimizer,
    ) -> Result<Option<ModuleOptimizer>, TrainError> {
        let reader = read(optimizer)?;
        let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
        let mut is_cut = false;
        let mut kept = Vec::new();
        for tensor in reader.into_tensors().map_err(unusable)? {
            let Some(parameter) = self.cut_parameter(tensor.param_id) else {
                kept.push(tensor);
                continue;
            };
            let shape = &self.table.get(parameter).shape;
            if !has_rows(&tensor, shape, shape[0]) {
                kept.push(tensor);
                continue;
            }
            is_cut = true;
            let rows = self.shards.rows(parameter);
            if rows.is_empty() {
                continue;
            }
            let (name, dtype, mut shape, id, bytes) = tensor.into_parts().map_err(unusable)?;
            let row_bytes = bytes.len() / shape[0];
            let own = bytes[rows.start * row_bytes..rows.end * row_bytes].to_vec();
            shape[0] = rows.len();
            kept.push(Packed::new(
                name,
                dtype,
                shape,
                id,
                Bytes::from_bytes_vec(own),
            ));
        }
        if !is_cut {
            return Ok(None);
        }
        let mut writer = Writer::new(kept);
        for (name, value) in scalars {
            writer = writer.with_scalar(&name, value);
        }
        for (name, path) in paths {
            writer = writer.with_metadata(&name, &path);
        }
        loaded(optimizer, writer).map(Some)
    }

    fn cut_parameter(&self, id: Option<u64>) -> Option<usize> {
        let index = self.table.index_of(ParamId::from(id?))?;
        self.shards.is_cut(index).then_some(index)
    }

    fn field(&self, tensor: &Packed) -> Option<Field> {
        let (_, name) = tensor.name.split_once('.')?;
        Some(Field {
            parameter: self.cut_parameter(tensor.param_id)?,
            name: name.to_owned(),
            dtype: tensor.dtype,
        })
    }
}

/// Whether a tensor has so many rows of a parameter of this shape.
fn has_rows(tensor: &Packed, shape: &[usize], rows: usize) -> bool {
    let found: Vec<usize> = tensor.shape.iter().copied().collect();
    found.first() == Some(&rows) && found[1..] == shape[1..]
}

fn read(optimizer: &ModuleOptimizer) -> Result<Reader, TrainError> {
    let bytes = optimizer.to_record().into_bytes().map_err(unusable)?;
    Reader::from_bytes(bytes).map_err(unusable)
}

fn loaded(optimizer: &ModuleOptimizer, writer: Writer) -> Result<ModuleOptimizer, TrainError> {
    let bytes = writer.into_bytes().map_err(unusable)?;
    let record = OptimizerRecord::from_bytes(bytes).map_err(unusable)?;
    Ok(optimizer.clone().load_record(record))
}

fn unusable(cause: impl std::fmt::Display) -> TrainError {
    let error = CheckpointError::Unwritable {
        what: "the optimizer's state".to_owned(),
        cause: cause.to_string(),
    };
    error.into()
}

/// The identities of a model's trainable parameters, in the order of the table.
struct Ids(Vec<ParamId>);

impl Ids {
    fn of<M: Module>(module: &M, table: &ParameterTable) -> Self {
        struct Finder<'a>(&'a ParameterTable, Vec<ParamId>);
        impl ModuleVisitor for Finder<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.0.index_of(param.id).is_some() {
                    self.1.push(param.id);
                }
            }
        }
        let mut finder = Finder(table, Vec::new());
        module.visit(&mut finder);
        Self(finder.1)
    }
}
