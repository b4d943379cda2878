//! Synchronises tensors that forward passes change without a gradient, such as running statistics.
//!
//! A buffer differs from a frozen parameter when gradients are required of it: a module's running state never does so.
//! Frozen parameters do not change, so they need not be sent.

use std::collections::{HashMap, HashSet};

use bonfire_collective::{ProcessGroup, Rank, ReduceOp};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use crate::values::reducible;
use crate::world::exchange::mapping::{Meaning, meant};
use crate::{BufferSync, TrainError};

#[derive(Debug)]
pub(crate) struct Buffers {
    ids: HashSet<ParamId>,
}

/// The ranks whose buffers have seen the batches of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attendance {
    /// The buffers of all ranks have.
    All,
    /// Those of some ranks have, this one's among them.
    Here,
    /// Those of some ranks have, not this one's.
    Away,
}

pub(crate) type Agreed = HashMap<ParamId, TensorData>;

impl Buffers {
    pub(crate) fn of<M: Module>(model: &M) -> Self {
        let mut lister = Lister { ids: HashSet::new() };
        model.clone().map(&mut Asker).visit(&mut lister);
        Self { ids: lister.ids }
    }

    pub(crate) fn ids(&self) -> &HashSet<ParamId> {
        &self.ids
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    #[cfg(test)]
    pub(crate) fn contains(&self, id: ParamId) -> bool {
        self.ids.contains(&id)
    }

    /// Synchronises the values of all ranks, as one message. Every rank must call it.
    #[track_caller]
    pub(crate) fn agree<M: Module>(
        &self,
        model: &M,
        group: &ProcessGroup,
        policy: BufferSync,
        presence: Attendance,
    ) -> Result<Agreed, TrainError> {
        if self.ids.is_empty() || group.world_size().len() == 1 || policy == BufferSync::Local {
            return Ok(Agreed::new());
        }
        let mut reader = Reader { buffers: self, known: HashSet::new(), found: Vec::new() };
        // Burn's running state holds the last update back until a mode changes.
        model.valid().visit(&mut reader);
        let read = read(reader.found)?;
        match policy {
            BufferSync::Mean => mean(read, group, presence),
            _ => broadcast(read, group, presence),
        }
    }

    pub(crate) fn put<M: Module>(model: M, agreed: Agreed) -> M {
        if agreed.is_empty() {
            return model;
        }
        // In place, as Burn's running state does it: copies that an optimizer has belong to the replica.
        meant(Meaning::Share, || model.map(&mut Writer { agreed }))
    }
}

/// The values of the first rank that has seen batches.
fn broadcast(
    read: Vec<(ParamId, TensorData)>,
    group: &ProcessGroup,
    presence: Attendance,
) -> Result<Agreed, TrainError> {
    let source = first_present(group, presence)?;
    let parts = read.into_iter().map(|(id, data)| (id, data.into_parts()));
    let mut parts: Vec<_> = parts.collect();
    let mut message: Vec<u8> = Vec::new();
    for (_, (bytes, _, _)) in &parts {
        message.extend_from_slice(bytes);
    }
    group.broadcast(&mut message, source)?;
    let mut rest = &message[..];
    for (_, (bytes, _, _)) in &mut parts {
        let (own, others) = rest.split_at(bytes.len());
        // Into memory that is aligned for the type.
        bytes.copy_from_slice(own);
        rest = others;
    }
    assert!(rest.is_empty(), "{} bytes are of no buffer", rest.len());
    let agreed = parts
        .into_iter()
        .map(|(id, (bytes, shape, dtype))| (id, TensorData::from_bytes(bytes, shape, dtype)));
    Ok(agreed.collect())
}

fn first_present(group: &ProcessGroup, presence: Attendance) -> Result<Rank, TrainError> {
    let nobody = group.world_size().get();
    let mut first = match presence {
        Attendance::All => return Ok(Rank::new(0)),
        Attendance::Here => [group.rank().get()],
        Attendance::Away => [nobody],
    };
    group.all_reduce(&mut first, ReduceOp::Min)?;
    match first {
        [first] if first < nobody => Ok(Rank::new(first)),
        _ => Err(TrainError::NoSamples),
    }
}

fn mean(
    read: Vec<(ParamId, TensorData)>,
    group: &ProcessGroup,
    presence: Attendance,
) -> Result<Agreed, TrainError> {
    let present = presence != Attendance::Away;
    let mut message = vec![f64::from(u8::from(present))];
    for (_, data) in &read {
        message.extend(data.iter::<f64>().map(|value| if present { value } else { 0.0 }));
    }
    group.all_reduce(&mut message, ReduceOp::Sum)?;
    let ranks = message.remove(0);
    if ranks == 0.0 {
        return Err(TrainError::NoSamples);
    }
    let message = message.into_iter().map(|sum| sum / ranks);
    let mut rest = message;
    let agreed = read.into_iter().map(|(id, data)| {
        let values: Vec<f64> = rest.by_ref().take(data.num_elements()).collect();
        let dtype = data.dtype();
        let (_, shape, _) = data.into_parts();
        (id, TensorData::new(values, shape).convert_dtype(dtype))
    });
    Ok(agreed.collect())
}

/// Requires gradients of every tensor that does not.
struct Asker;

impl ModuleMapper for Asker {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Other types, such as quantised ones, are of parameters.
        if reducible(param.base().dtype()).is_none() {
            return param;
        }
        param.set_require_grad(true)
    }
}

/// Lists those that still do not require gradients.
struct Lister {
    ids: HashSet<ParamId>,
}

impl ModuleVisitor for Lister {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        if reducible(value.dtype()).is_some() && !value.is_require_grad() {
            self.ids.insert(param.id);
        }
    }
}

/// Finds each buffer once, in the order of the model's definition.
struct Reader<'a> {
    buffers: &'a Buffers,
    known: HashSet<ParamId>,
    found: Vec<Found>,
}

struct Found {
    id: ParamId,
    shape: Vec<usize>,
    /// Its elements in a row.
    values: Tensor<1>,
}

impl ModuleVisitor for Reader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.buffers.ids.contains(&param.id) || !self.known.insert(param.id) {
            return;
        }
        let value = param.val();
        let shape = value.dims().to_vec();
        let values = value.reshape([shape.iter().product::<usize>()]);
        self.found.push(Found { id: param.id, shape, values });
    }
}

/// The values of buffers in host memory: one read from the device for all that have one type, because each read waits
/// for the device.
fn read(found: Vec<Found>) -> Result<Vec<(ParamId, TensorData)>, TrainError> {
    let mut data: Vec<Option<TensorData>> = vec![None; found.len()];
    while let Some(first) = data.iter().position(Option::is_none) {
        let dtype = found[first].values.dtype();
        let alike: Vec<usize> =
            (first..found.len()).filter(|&index| found[index].values.dtype() == dtype).collect();
        let values = alike.iter().map(|&index| found[index].values.clone());
        let joined = Tensor::cat(values.collect(), 0).try_into_data();
        let joined = joined.map_err(TrainError::unreadable("the buffers"))?;
        let (bytes, ..) = joined.into_parts();
        let mut start = 0;
        for index in alike {
            let shape = found[index].shape.clone();
            let end = start + shape.iter().product::<usize>() * dtype.size();
            let own = bytes[start..end].to_vec();
            data[index] = Some(TensorData::from_bytes_vec(own, shape, dtype));
            start = end;
        }
    }
    let ids = found.into_iter().map(|found| found.id);
    Ok(ids.zip(data.into_iter().flatten()).collect())
}

struct Writer {
    agreed: Agreed,
}

impl ModuleMapper for Writer {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(data) = self.agreed.get(&param.id) else {
            return param;
        };
        let data = data.clone();
        let (id, value, mapper) = param.consume();
        let value = Tensor::from_data(data, (&value.device(), value.dtype()));
        Param::from_mapped_value(id, value, mapper)
    }
}
