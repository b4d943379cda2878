//! Records of Burn for whole parameters, from rows; and rows of what was read from one.
//!
//! In a record the state of a parameter is tensors of its shape, under its identity. Where the optimizer has
//! stepped rows, they have this rank's rows of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_collective::{CollectiveError, ProcessGroup, Rank};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bool, Bytes, DType, Int, Tensor, TensorData};
use burn_pack::{Reader, Scalar, Tensor as Packed, Writer};
use serde::{Deserialize, Serialize};

use super::Ddp;
use super::gather::Gatherer;
use crate::TrainError;
use crate::error::checkpoint::CheckpointError;

/// Who has rows of each parameter, and writes checkpoints.
const WRITER: Rank = Rank::new(0);

/// What became of the file of the writer.
type Written = Result<(), CheckpointError>;

/// A tensor of the state of a parameter that is cut, as rank 0 has it.
#[derive(Serialize, Deserialize)]
struct Field(usize, String, DType);

impl<M: Module> Ddp<M> {
    /// Writes the parameters as a record of Burn, on the writer, which has all of them in memory for it. The others
    /// give it their rows and have one whole parameter at a time. Every rank must call it.
    #[track_caller]
    pub(crate) fn write_model(&mut self, file: Option<&Path>) -> Result<Written, TrainError> {
        self.guarded(|ddp| {
            let mut collector = Collector {
                gatherer: ddp.gatherer.as_deref(),
                is_writer: file.is_some(),
                path: Vec::new(),
                tensors: Vec::new(),
                failure: None,
            };
            ddp.module().visit(&mut collector);
            if let Some(failure) = collector.failure {
                return Err(failure);
            }
            let writer = Writer::new(collector.tensors);
            Ok(file.map_or(Ok(()), |file| write(writer, file, "the parameters")))
        })
    }

    /// The optimizer's state for whole parameters as a record of Burn, on the writer; each tensor is gathered
    /// when the record is written. Every rank must call it: it returns on the others when all is written.
    ///
    /// `group` is as patient as the writer's disk is slow.
    #[track_caller]
    pub(crate) fn write_optimizer(
        &mut self,
        optimizer: &ModuleOptimizer,
        group: &ProcessGroup,
        file: Option<&Path>,
    ) -> Result<Written, TrainError> {
        self.guarded(|ddp| match ddp.config.placement.is_sharded() {
            true => ddp.write_rows(optimizer, group, file),
            false => Ok(file.map_or(Ok(()), |file| {
                write(packed(optimizer)?.writer(), file, STATE)
            })),
        })
    }

    fn write_rows(
        &self,
        optimizer: &ModuleOptimizer,
        group: &ProcessGroup,
        file: Option<&Path>,
    ) -> Result<Written, TrainError> {
        let own = packed(optimizer)?;
        let (cut, kept): (Vec<_>, Vec<_>) = own.tensors.into_iter().partition(|tensor| {
            let parameter = self.cut_parameter(tensor.param_id);
            parameter.is_some_and(|parameter| {
                let rows = self.shards.rows(parameter).len();
                has_rows(tensor, &self.table.get(parameter).shape, rows)
            })
        });
        // A rank may have no row of a parameter. Rank 0 has one of each.
        let fields: Vec<Field> = match group.rank() == WRITER {
            true => cut.iter().filter_map(|tensor| self.field(tensor)).collect(),
            false => Vec::new(),
        };
        let fields = serde_json::to_vec(&fields).expect("names can always be written");
        let fields = group.all_gather_bytes(&fields)?;
        let fields: Vec<Field> = serde_json::from_slice(&fields[0]).map_err(unusable)?;
        let ids = self.table.ids();
        let mut rows = Vec::new();
        for field in &fields {
            let name = format!("{}.{}", ids[field.0].val(), field.1);
            let own = cut.iter().find(|tensor| tensor.name == name);
            rows.push(match own {
                Some(own) => own.to_bytes().map_err(unusable)?,
                None => Bytes::from_bytes_vec(Vec::new()),
            });
        }
        let Some(file) = file else {
            for rows in &rows {
                group.gather_v::<u8>(rows, WRITER)?;
            }
            return Ok(Ok(()));
        };
        let gathering = Arc::new(Gathering {
            group: group.clone(),
            rows,
            state: Mutex::new((0, None)),
        });
        let gathered = (0..)
            .zip(fields)
            .map(|(index, Field(parameter, name, dtype))| {
                let id = ids[parameter].val();
                let shape = self.table.get(parameter).shape.clone();
                let len = shape.iter().product::<usize>() * dtype.size();
                let gathering = Arc::clone(&gathering);
                let gather = move || gathering.gather(index);
                let name = format!("{id}.{name}");
                Packed::deferred(name, dtype, shape, Some(id), len, gather)
            });
        let record = Record {
            tensors: kept.into_iter().chain(gathered).collect(),
            ..own
        };
        let written = write(record.writer(), file, STATE);
        // The other ranks give all of theirs, whatever became of the file.
        gathering.rest()?;
        Ok(written)
    }

    /// The optimizer with its state for this rank's rows, from one that may have it for whole parameters.
    pub(super) fn cut_state(
        &self,
        optimizer: &ModuleOptimizer,
    ) -> Result<Option<ModuleOptimizer>, TrainError> {
        let record = packed(optimizer)?;
        let mut is_cut = false;
        let mut kept = Vec::new();
        for tensor in record.tensors {
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
        let record = Record {
            tensors: kept,
            ..record
        };
        let bytes = record.writer().into_bytes().map_err(unusable)?;
        let record = OptimizerRecord::from_bytes(bytes).map_err(unusable)?;
        Ok(Some(optimizer.clone().load_record(record)))
    }

    fn cut_parameter(&self, id: Option<u64>) -> Option<usize> {
        let index = self.table.index_of(ParamId::from(id?))?;
        self.shards.is_cut(index).then_some(index)
    }

    fn field(&self, tensor: &Packed) -> Option<Field> {
        let (_, name) = tensor.name.split_once('.')?;
        let parameter = self.cut_parameter(tensor.param_id)?;
        Some(Field(parameter, name.to_owned(), tensor.dtype))
    }
}

/// Whether a tensor has so many rows of a parameter of this shape.
fn has_rows(tensor: &Packed, shape: &[usize], rows: usize) -> bool {
    let found: Vec<usize> = tensor.shape.iter().copied().collect();
    found.first() == Some(&rows) && found[1..] == shape[1..]
}

/// What an optimizer keeps.
struct Record {
    tensors: Vec<Packed>,
    scalars: BTreeMap<String, Scalar>,
    metadata: BTreeMap<String, String>,
}

fn packed(optimizer: &ModuleOptimizer) -> Result<Record, CheckpointError> {
    let bytes = optimizer.to_record().into_bytes().map_err(unusable)?;
    let reader = Reader::from_bytes(bytes).map_err(unusable)?;
    Ok(Record {
        scalars: reader.scalars().clone(),
        metadata: reader.metadata().clone(),
        tensors: reader.into_tensors().map_err(unusable)?,
    })
}

impl Record {
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

const STATE: &str = "the optimizer's state";

fn write(writer: Writer, file: &Path, what: &str) -> Result<(), CheckpointError> {
    let written = writer.write_to_file_in_place(file);
    written.map_err(|cause| unwritable(what, cause))
}

/// Gathers rows on the writer, one tensor after the other.
struct Gathering {
    group: ProcessGroup,
    /// This rank's.
    rows: Vec<Bytes>,
    /// How many tensors have been gathered, and why no more are.
    state: Mutex<(usize, Option<CollectiveError>)>,
}

impl Gathering {
    /// The tensor of an index. They are asked for in order.
    fn gather(&self, index: usize) -> Result<Bytes, burn_pack::Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = index + 1;
        match self.group.gather_v::<u8>(&self.rows[index], WRITER) {
            Ok(blocks) => {
                let blocks = blocks.expect("the writer has what is gathered");
                Ok(Bytes::from_bytes_vec(blocks.into_vec()))
            }
            Err(error) => {
                let cause = error.to_string();
                state.1 = Some(error);
                Err(burn_pack::Error::IoError(cause))
            }
        }
    }

    /// What the file was not asked for.
    fn rest(&self) -> Result<(), CollectiveError> {
        let (done, failure) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = failure.take() {
            return Err(failure);
        }
        for rows in &self.rows[*done..] {
            self.group.gather_v::<u8>(rows, WRITER)?;
        }
        Ok(())
    }
}

/// Takes the parameters of a model in the form in which Burn saves them.
struct Collector<'a> {
    gatherer: Option<&'a Gatherer>,
    is_writer: bool,
    path: Vec<String>,
    tensors: Vec<Packed>,
    failure: Option<TrainError>,
}

impl Collector<'_> {
    fn add(&mut self, id: ParamId, data: impl FnOnce() -> TensorData) {
        if self.is_writer {
            let (bytes, shape, dtype) = data().into_parts();
            let path = self.path.join(".");
            let tensor = Packed::new(path, dtype, shape, Some(id.val()), bytes);
            self.tensors.push(tensor);
        }
    }
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gatherer = self.gatherer;
        let cut = gatherer.and_then(|gatherer| Some((gatherer, gatherer.index_of(param.id)?)));
        let Some((gatherer, index)) = cut else {
            return self.add(param.id, || param.transform_for_save().val().into_data());
        };
        if self.failure.is_some() {
            return;
        }
        let (id, rows, mapper) = param.clone().consume();
        match gatherer.untracked(index, rows.inner()) {
            Ok(whole) => self.add(id, || {
                let whole = Param::from_mapped_value(id, whole, mapper);
                whole.transform_for_save().val().into_data()
            }),
            Err(failure) => self.failure = Some(failure),
        }
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, || param.transform_for_save().val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, || param.transform_for_save().val().into_data());
    }
}

fn unusable(cause: impl std::fmt::Display) -> CheckpointError {
    unwritable(STATE, cause)
}

fn unwritable(what: &str, cause: impl std::fmt::Display) -> CheckpointError {
    CheckpointError::Unwritable {
        what: what.to_owned(),
        cause: cause.to_string(),
    }
}
