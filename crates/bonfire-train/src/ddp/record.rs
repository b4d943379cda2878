//! Makes records of Burn for complete parameters from rows, and rows from records.
//!
//! In a record the state of a parameter is tensors of its shape, under its identity. If the optimizer steps rows, they
//! have this rank's rows of it.

pub(crate) mod restore;

use std::sync::Arc;

use bonfire_checkpoint::record::{
    Gathers, Record, ShardIndex, ShardMetadata, ShardedTable, Snapshot, WRITER, all_gather_values,
    split_identity, unusable,
};
use bonfire_collective::{ProcessGroup, ReduceOp};
use bonfire_plan::Division;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bool, Bytes, DType, Int, Tensor, TensorData};
use burn_pack::Tensor as Packed;

use super::Ddp;
use super::gather::Gatherer;
use crate::TrainError;
use crate::parameters::ModulePath;
use crate::parameters::shard_groups::ShardGroups;
use crate::parameters::shards::Shards;

/// The path of other ranks' rows to the writer.
pub(crate) struct Route {
    group: ProcessGroup,
    shards: Arc<Shards>,
    gatherer: Option<Arc<Gatherer>>,
}

impl<M: Module> Ddp<M> {
    /// The group with the timeout of operations before which rank 0 reads or writes files.
    #[cfg(feature = "weights")]
    pub(crate) fn file_group(&self) -> ProcessGroup {
        crate::world::timeouts::with_file_timeout(&self.group, self.module())
    }

    /// The path of rows to the writer while the training waits, in a group with the timeout of a slow disk.
    pub(crate) fn route(&self, group: &ProcessGroup) -> Route {
        Route {
            group: group.clone(),
            shards: Arc::clone(&self.shards),
            gatherer: self.gatherer.clone(),
        }
    }

    /// The path of rows beside the training, in a separate group of the same ranks. Every rank must call it.
    #[track_caller]
    pub(crate) fn route_beside(&self, group: &ProcessGroup) -> Result<Route, TrainError> {
        let groups = ShardGroups::new(self.config.placement, group)?;
        let shards = Arc::new(self.shards.over(groups));
        Ok(Route {
            group: group.clone(),
            gatherer: self.gatherer.as_ref().map(|gatherer| gatherer.beside(Arc::clone(&shards))),
            shards,
        })
    }

    /// All tensors of the model, for files; each parameter is gathered when its values are read.
    pub(crate) fn snapshot_model(&self, route: &Route) -> Snapshot<Vec<NamedTensor>, TrainError> {
        let mut collector = Collector {
            gatherer: route.gatherer.as_ref(),
            path: ModulePath::default(),
            tensors: Vec::new(),
            gathers: Gathers::new(&route.group),
        };
        self.module().visit(&mut collector);
        Snapshot { content: collector.tensors, gathers: collector.gathers }
    }

    /// The optimizer's state for complete parameters, as Burn records it; each tensor is gathered when the record is
    /// written. A rank needs memory for a copy of its part of the state. Every rank must call it.
    #[track_caller]
    pub(crate) fn snapshot_optimizer(
        &self,
        optimizer: &ModuleOptimizer,
        route: &Route,
    ) -> Result<Snapshot<Record, TrainError>, TrainError> {
        let group = &route.group;
        let mut gathers = Gathers::new(group);
        if !self.config.placement.is_sharded() {
            let content = match group.rank() {
                WRITER => Record::of(optimizer)?,
                _ => Record::default(),
            };
            return Ok(Snapshot { content, gathers });
        }
        let own = Record::of(optimizer)?;
        let indices = all_gather_values(group, &self.shard_index(&own))?;
        let ids = self.table.ids();
        let (cut, mut tensors): (Vec<_>, Vec<_>) = own.tensors.into_iter().partition(|tensor| {
            let rows = |parameter| self.shards.rows(parameter).len();
            self.divided(tensor, rows).is_some()
        });
        for metadata in indices.iter().flat_map(|index| &index.shards) {
            let id = ids[metadata.row].val();
            let name = format!("{id}{}", metadata.suffix);
            // Before its first step an optimizer may have more than this rank's part.
            let has_part = !self.shards.rows(metadata.row).is_empty();
            let own = cut.iter().find(|tensor| has_part && tensor.name == name);
            let rows = match own {
                Some(own) => own.to_bytes().map_err(unusable)?,
                None => Bytes::from_bytes_vec(Vec::new()),
            };
            let shards = route.shards.groups().shards().with_timeout(group.timeout());
            let (dtype, shape) = (metadata.dtype, metadata.shape.clone());
            tensors.push(gathers.add(name, dtype, shape, id, move || {
                let whole = shards.gather_v::<u8>(&rows, WRITER)?;
                Ok(whole.map_or(Vec::new(), |blocks| blocks.into_vec()))
            }));
        }
        let mut content = Record { tensors, scalars: own.scalars, metadata: own.metadata };
        for index in indices {
            index.add_values(&mut content, |parameter| ids[parameter]);
        }
        Ok(Snapshot { content, gathers })
    }

    /// Describes the state of the parameters that this rank is the first to have a part of, in complete shapes.
    fn shard_index(&self, own: &Record) -> ShardIndex {
        let parameter_of = |id: ParamId| {
            let parameter = self.cut_parameter(Some(id.val()));
            parameter.filter(|&parameter| self.shards.speaks_for(parameter))
        };
        let shard = |tensor: &Packed| {
            let rows = |parameter| self.shards.rows(parameter).len();
            self.divided(tensor, rows)?;
            let (id, suffix) = split_identity(&tensor.name)?;
            let row = parameter_of(id)?;
            let shape = match self.shards.division(row) {
                Division::Rows => self.table.get(row).shape.clone(),
                Division::Owned(_) | Division::Whole => tensor.shape.iter().copied().collect(),
            };
            Some(ShardMetadata {
                row,
                suffix: suffix.to_owned(),
                dtype: tensor.dtype,
                shape,
                cut: None,
            })
        };
        let shards = own.tensors.iter().filter_map(shard).collect();
        ShardIndex::new(own, shards, parameter_of)
    }

    fn tensors_of_state(
        &self,
        optimizer: &ModuleOptimizer,
        group: &ProcessGroup,
        sharded: Option<&ShardedTable>,
    ) -> Result<usize, TrainError> {
        let state = Record::of(optimizer)?;
        let is_counted_here = sharded.is_none_or(ShardedTable::has_first_shards);
        let counted = state.tensors.iter().filter(|tensor| {
            let cut = self.cut_parameter(tensor.param_id);
            let is_first = cut
                .map_or(self.group.rank() == WRITER, |parameter| self.shards.speaks_for(parameter));
            is_first && is_counted_here
        });
        let mut count = [counted.count() as u64];
        group.all_reduce(&mut count, ReduceOp::Sum)?;
        Ok(count[0] as usize)
    }

    /// The parameter of a tensor of state of which the ranks have different parts, where a state like the parameter
    /// has `rows` rows.
    pub(super) fn divided(&self, tensor: &Packed, rows: impl Fn(usize) -> usize) -> Option<usize> {
        let parameter = self.cut_parameter(tensor.param_id)?;
        let is_divided = match self.shards.division(parameter) {
            Division::Owned(_) => true,
            Division::Rows | Division::Whole => {
                has_rows(tensor, &self.table.get(parameter).shape, rows(parameter))
            }
        };
        is_divided.then_some(parameter)
    }

    pub(super) fn cut_state(
        &self,
        optimizer: &ModuleOptimizer,
    ) -> Result<Option<ModuleOptimizer>, TrainError> {
        let record = Record::of(optimizer)?;
        let all = |parameter: usize| self.table.get(parameter).shape[0];
        let is_more = |tensor: &Packed| {
            let parameter = self.divided(tensor, all);
            parameter.is_some_and(|parameter| self.shards.rows(parameter).len() < all(parameter))
        };
        if !record.tensors.iter().any(is_more) {
            return Ok(None);
        }
        let mut kept = Vec::new();
        for tensor in record.tensors {
            kept.extend(self.own_rows(tensor)?);
        }
        let record = Record { tensors: kept, ..record };
        let record = record.into_optimizer_record()?;
        Ok(Some(optimizer.clone().load_record(record)))
    }

    pub(super) fn cut_parameter(&self, id: Option<u64>) -> Option<usize> {
        let index = self.table.index_of(ParamId::from(id?))?;
        self.shards.is_cut(index).then_some(index)
    }
}

pub(super) fn has_rows(tensor: &Packed, shape: &[usize], rows: usize) -> bool {
    let found: Vec<usize> = tensor.shape.iter().copied().collect();
    found.first() == Some(&rows) && found[1..] == shape[1..]
}

pub(crate) fn record_of(named: Vec<NamedTensor>) -> Record {
    Record { tensors: named.into_iter().map(|named| named.tensor).collect(), ..Record::default() }
}

/// A tensor of a model, in the form in which Burn saves it.
pub(crate) struct NamedTensor {
    pub(crate) tensor: Packed,
    #[cfg_attr(
        not(feature = "weights"),
        allow(dead_code, reason = "only files for other programs have other names")
    )]
    pub(crate) path: ModulePath,
}

struct Collector<'a> {
    gatherer: Option<&'a Arc<Gatherer>>,
    path: ModulePath,
    tensors: Vec<NamedTensor>,
    gathers: Gathers<TrainError>,
}

impl Collector<'_> {
    fn push(&mut self, tensor: Packed) {
        let path = self.path.clone();
        self.tensors.push(NamedTensor { tensor, path });
    }

    fn add(&mut self, id: ParamId, data: TensorData) {
        let (bytes, shape, dtype) = data.into_parts();
        let (name, id) = (self.path.to_string(), Some(id.val()));
        self.push(Packed::new(name, dtype, shape, id, bytes));
    }

    fn add_later<const D: usize>(&mut self, id: ParamId, tensor: Tensor<D>) {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let len = shape.num_elements() * dtype.size();
        let read = move || {
            let data = tensor
                .clone()
                .try_into_data()
                .map_err(|cause| burn_pack::Error::IoError(cause.to_string()))?;
            Ok(data.into_parts().0)
        };
        let (name, id) = (self.path.to_string(), Some(id.val()));
        self.push(Packed::deferred(name, dtype, shape, id, len, read));
    }
}

impl ModuleVisitor for Collector<'_> {
    crate::parameters::follow_path!(path);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let cut = self.gatherer.and_then(|gatherer| Some((gatherer, gatherer.index_of(param.id)?)));
        let Some((gatherer, index)) = cut else {
            let saved = param.transform_for_save().val();
            return match saved.dtype() {
                DType::QFloat(_) => self.add(param.id, saved.into_data()),
                _ => self.add_later(param.id, saved),
            };
        };
        let gatherer = Arc::clone(gatherer);
        let (id, rows, mapper) = param.clone().consume();
        let rows = rows.inner();
        let shape = gatherer.shape(index);
        let shape = saved_shape(shape, |probe| {
            let probe = Tensor::<D>::zeros(probe, (&rows.device(), rows.dtype()));
            let probe = Param::from_mapped_value(id, probe, mapper.clone());
            probe.transform_for_save().val().dims().to_vec()
        });
        let (name, dtype) = (self.path.to_string(), rows.dtype());
        let tensor = self.gathers.add(name, dtype, shape, id.val(), move || {
            let whole = gatherer.untracked(index, rows.clone())?;
            let whole = Param::from_mapped_value(id, whole, mapper.clone());
            let (bytes, ..) = whole.transform_for_save().val().into_data().into_parts();
            Ok(bytes.to_vec())
        });
        self.push(tensor);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id, param.transform_for_save().val().into_data());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id, param.transform_for_save().val().into_data());
    }
}

/// The shape of a parameter as it is saved, perhaps transposed: found by saving one of a few rows.
fn saved_shape(whole: &[usize], saved: impl FnOnce(Vec<usize>) -> Vec<usize>) -> Vec<usize> {
    let rows = (1..).find(|rows| !whole[1..].contains(rows)).expect("some number is no dimension");
    let mut probe = whole.to_vec();
    probe[0] = rows;
    let mut shape = saved(probe);
    for dim in shape.iter_mut().filter(|dim| **dim == rows) {
        *dim = whole[0];
    }
    shape
}
