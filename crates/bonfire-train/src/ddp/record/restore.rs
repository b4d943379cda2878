//! The tensors of a checkpoint, put into a model and its optimizer one at a time.
//!
//! Rank 0 reads and the others get the bytes from it. Each rank keeps its part: complete parameters, or its rows of
//! them. So no rank ever has more in memory than its part and one tensor.

#[cfg(feature = "weights")]
mod import;

use std::collections::HashMap;
use std::iter;
use std::ops::Range;
use std::path::PathBuf;

use bonfire_checkpoint::record::{
    Record, ShardedTable, SharedReader, TensorTable, selected, split_identity, unusable,
};
use bonfire_collective::ProcessGroup;
use bonfire_optim::Offload;
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use burn_pack::Tensor as Packed;

use crate::TrainError;
use crate::ddp::{Ddp, MODULE_PRESENT};
use crate::parameters::shards::{Shards, filed, rows_of, trained};
use crate::parameters::{ModulePath, ParameterTable};

/// What does not fit, the model or the optimizer, and why.
type Misfit = (&'static str, String);

impl<M: Module> Ddp<M> {
    /// Puts the tensors of two files, which rank 0 has, into the model and, if `with_optimizer`, its optimizer, unless
    /// they belong to others. Returns the number of the optimizer's tensors. Every rank must call it; ranks that have
    /// shards of the model in the files take those.
    ///
    /// The timeout of `group` covers the disk of rank 0.
    #[track_caller]
    pub(crate) fn restore(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        group: &ProcessGroup,
        sharded: Option<&ShardedTable>,
        with_optimizer: bool,
        [model, state]: [Option<PathBuf>; 2],
    ) -> Result<Result<usize, Misfit>, TrainError> {
        self.passes = 0;
        self.call("Checkpoints::resume", |ddp| {
            let model = SharedReader::open(group, model)?;
            let misfit = match sharded {
                None => {
                    let here = ddp.table.entries().iter();
                    model.misfit(here.map(|entry| (entry.name.as_str(), entry.shape.as_slice())))
                }
                Some(sharded) => model.misfit(sharded.table().entries()),
            };
            if let Some(cause) = misfit {
                return Ok(Err(("model", cause)));
            }
            let (mut loaded, mut saved) = (optimizer.clone(), 0);
            if with_optimizer {
                let state = SharedReader::open(group, state)?;
                loaded = loaded.load_record(ddp.record(&model, &state, sharded)?);
                saved = state.all().len();
                let taken = ddp.tensors_of_state(&loaded, group, sharded)?;
                if saved != taken {
                    let cause = format!("it has {saved} tensors of state, and {taken} of them fit");
                    return Ok(Err(("optimizer", cause)));
                }
            }
            let kept = match sharded {
                None => None,
                Some(sharded) => Some(model.shards(sharded, &TensorTable::of(ddp.module()))?),
            };
            let mut restorer = Restorer {
                source: &model,
                kept,
                rows: Rows {
                    table: &ddp.table,
                    shards: ddp.gatherer.as_deref().map(|gatherer| gatherer.shards()),
                    offload: ddp.offload.as_ref(),
                },
                path: ModulePath::default(),
                result: Ok(()),
            };
            let module = ddp.module.take().expect(MODULE_PRESENT);
            ddp.module = Some(module.map(&mut restorer));
            restorer.result?;
            *optimizer = loaded;
            Ok(Ok(saved))
        })
    }

    fn record(
        &self,
        model: &SharedReader<'_>,
        state: &SharedReader<'_>,
        sharded: Option<&ShardedTable>,
    ) -> Result<OptimizerRecord, TrainError> {
        let ids = self.identities(model, sharded);
        let renamed = |name: &str| {
            let (id, suffix) = split_identity(name)?;
            let own = *ids.get(&id.val())?;
            Some((own, format!("{}{suffix}", own.val())))
        };
        let values = state.values();
        let scalars = values.scalars.into_iter();
        let metadata = values.metadata.into_iter();
        let mut record = Record {
            tensors: Vec::new(),
            scalars: scalars.filter_map(|(name, value)| Some((renamed(&name)?.1, value))).collect(),
            metadata: metadata
                .filter_map(|(name, value)| Some((renamed(&name)?.1, value)))
                .collect(),
        };
        for index in 0..state.all().len() {
            let mut tensor = state.tensor(index)?;
            let Some((own, name)) = renamed(&tensor.name) else {
                continue;
            };
            (tensor.name, tensor.param_id) = (name, Some(own.val()));
            if let Some(sharded) = sharded {
                tensor = sharded.shard(own, tensor)?;
            }
            record.tensors.extend(self.own_rows(tensor)?);
        }
        Ok(record.into_optimizer_record()?)
    }

    /// This rank's part of an optimizer's state for a parameter; all of it if it is not divided.
    pub(super) fn own_rows(&self, tensor: Packed) -> Result<Option<Packed>, TrainError> {
        let all = |parameter: usize| self.table.get(parameter).shape[0];
        let Some(parameter) = self.divided(&tensor, all) else {
            return Ok(Some(tensor));
        };
        let rows = self.shards.rows(parameter);
        if rows.is_empty() {
            return Ok(None);
        }
        if rows.len() == all(parameter) {
            return Ok(Some(tensor));
        }
        let mut shape: Vec<usize> = tensor.shape.iter().copied().collect();
        let elems = shape[1..].iter().product::<usize>();
        shape[0] = rows.len();
        let run = rows.start * elems..rows.end * elems;
        Ok(Some(selected(tensor, iter::once(run), shape)?))
    }

    /// The parameters here by their identities there.
    fn identities(
        &self,
        model: &SharedReader<'_>,
        sharded: Option<&ShardedTable>,
    ) -> HashMap<u64, ParamId> {
        let ids = self.table.ids().into_iter().enumerate();
        let named = ids.filter_map(|(index, id)| match sharded {
            None => Some((self.table.get(index).name.as_str(), id)),
            Some(sharded) => Some((sharded.name(id).ok()?, id)),
        });
        let here: HashMap<_, _> = named.collect();
        let there = model.all().iter();
        there.filter_map(|tensor| Some((tensor.id?, *here.get(tensor.name.as_str())?))).collect()
    }
}

struct Restorer<'a> {
    source: &'a SharedReader<'a>,
    /// Shards that have been read, where ranks have some.
    kept: Option<HashMap<ParamId, Packed>>,
    rows: Rows<'a>,
    path: ModulePath,
    result: Result<(), TrainError>,
}

impl Restorer<'_> {
    fn values(&mut self, id: ParamId, dims: usize) -> Option<TensorData> {
        if self.result.is_err() {
            return None;
        }
        let path = self.path.to_string();
        let read = match &mut self.kept {
            Some(kept) => Ok(kept.remove(&id).expect("the file has all parameters of the table")),
            None => self.source.named(&path),
        };
        let values = read.map_err(TrainError::from).and_then(|tensor| {
            let (_, dtype, shape, _, bytes) = tensor.into_parts().map_err(unusable)?;
            if shape.num_dims() == dims {
                Ok(TensorData::from_bytes(bytes, shape, dtype))
            } else {
                let found = shape.num_dims();
                Err(unusable(format!("parameter {path} has {found} dimensions")).into())
            }
        });
        values.map_err(|error| self.result = Err(error)).ok()
    }
}

impl ModuleMapper for Restorer<'_> {
    crate::parameters::follow_path!(path);

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.values(param.id, D) {
            Some(values) => with_floats(param, values, self.rows, &mut self.result),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.values(param.id, D) {
            Some(values) => with_ints(param, values),
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.values(param.id, D) {
            Some(values) => with_bools(param, values),
            None => param,
        }
    }
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    table: &'a ParameterTable,
    /// `None` if it has them all.
    shards: Option<&'a Shards>,
    /// `None` if they are in memory.
    offload: Option<&'a Offload>,
}

impl<'a> Rows<'a> {
    fn cut(self, id: ParamId) -> Option<(usize, &'a Shards)> {
        let index = self.table.index_of(id)?;
        let shards = self.shards.filter(|shards| shards.is_cut(index))?;
        Some((index, shards))
    }

    /// The rows of one parameter; `None` if it has all.
    fn rows(self, id: ParamId) -> Option<Range<usize>> {
        self.cut(id).map(|(index, shards)| shards.rows(index))
    }
}

/// The parameter with other values: the model's rows of complete `values`.
fn with_floats<const D: usize>(
    param: Param<Tensor<D>>,
    values: TensorData,
    rows: Rows<'_>,
    result: &mut Result<(), TrainError>,
) -> Param<Tensor<D>> {
    let (id, old) = (param.id, param.val());
    let device = old.device();
    let values = match old.dtype() {
        DType::QFloat(_) => Tensor::from_data(values, &device),
        dtype => Tensor::from_data(values, (&device, dtype)),
    };
    let checkpointing = old.gradient_checkpointing_strategy();
    let (id, whole, mapper) = param.transform_for_load(values, id).consume();
    let own = match rows.rows(id) {
        Some(rows) => {
            let device = device.without_autodiff();
            trained(rows_of(whole.inner(), rows, &device), checkpointing)
        }
        None => whole,
    };
    Param::from_mapped_value(id, filed(own, rows.offload, result), mapper)
}

fn with_ints<const D: usize>(
    param: Param<Tensor<D, Int>>,
    values: TensorData,
) -> Param<Tensor<D, Int>> {
    let (id, old) = (param.id, param.val());
    let values = Tensor::from_data(values, (&old.device(), old.dtype()));
    param.transform_for_load(values, id)
}

fn with_bools<const D: usize>(
    param: Param<Tensor<D, Bool>>,
    values: TensorData,
) -> Param<Tensor<D, Bool>> {
    let (id, device) = (param.id, param.val().device());
    param.transform_for_load(Tensor::from_data(values, &device), id)
}
