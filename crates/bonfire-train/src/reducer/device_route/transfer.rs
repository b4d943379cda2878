//! Operations of all ranks of a world on tensors: from device to device where the devices reach each other, and through
//! host memory elsewhere.
//!
//! On devices, the operation is queued behind what the model's backend has queued, and later work of the backend is
//! queued behind the operation: the host waits for neither where [`Timing::Ordered`](super::Timing) is
//! possible. A failure of another rank is then an error of a later call.

pub(crate) mod lane;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::ops::Range;

use bonfire_collective::{Element, ProcessGroup, Rank, ReduceOp, Work, WorldSize};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use half::{bf16, f16};

use crate::optim::gradients::Devices;
use crate::values::reducible;
use crate::{TrainError, World};
use lane::{InFlight, Lane};

/// An operation of ranks on the elements of a tensor. Blocks are equally large, one for each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Every rank gets the reduction.
    AllReduce(ReduceOp),
    /// Every rank gets the elements of all, in the order of the ranks.
    AllGather,
    /// Every rank gets its block of the sum.
    ReduceScatter,
    /// Every rank gets the elements of rank 0.
    Broadcast,
    /// Block r goes to rank r, which gets the blocks in the order of the ranks.
    AllToAll,
    /// Every rank gets the elements of the previous one; rank 0 gets those of the last.
    Shift,
}

/// An operation that has begun.
#[must_use = "the other ranks take part until it has ended"]
pub struct Arrival(Arriving);

enum Arriving {
    Here(Tensor<1>),
    /// Through host memory.
    Bytes {
        work: Work<Vec<u8>>,
        device: Device,
        dtype: DType,
    },
    /// From device to device.
    InFlight(Box<InFlight>, World),
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Arriving::Here(_) => "Arrival(here)",
            Arriving::Bytes { .. } => "Arrival(through host memory)",
            Arriving::InFlight(..) => "Arrival(from device to device)",
        })
    }
}

/// Does an operation on a tensor without autodiff, of f32, f64, f16 or bf16. Every rank of the world calls it alike, with
/// as many elements.
///
/// # Errors
/// [`TrainError::Collective`] if a rank fails; [`TrainError::UnreadableTensor`] and [`TrainError::DeviceRoute`].
#[track_caller]
pub fn transfer(x: Tensor<1>, world: &World, transfer: Transfer) -> Result<Tensor<1>, TrainError> {
    begin(x, world, transfer)?.wait()
}

/// Begins an operation. Another may begin before it has ended: all ranks begin and end them in the same order.
///
/// # Errors
/// As [`transfer`].
#[track_caller]
pub fn begin(x: Tensor<1>, world: &World, transfer: Transfer) -> Result<Arrival, TrainError> {
    if world.world_size() == WorldSize::ONE {
        return Ok(Arrival(Arriving::Here(x)));
    }
    if x.dims() == [0] {
        return through_host(x, world.group(), transfer).map(Arrival);
    }
    let mut slot = world.lane().lock();
    match lane_of(&mut slot, world)? {
        Lane::Host => {
            drop(slot);
            through_host(x, world.group(), transfer).map(Arrival)
        }
        Lane::Device(lane) => {
            let begun = lane.begin(x, world.group(), transfer);
            let begun = world.group().or_abort(begun)?;
            Ok(Arrival(Arriving::InFlight(Box::new(begun), world.clone())))
        }
    }
}

/// The lane of a world, chosen at its first use.
fn lane_of<'a>(
    slot: &'a mut Option<Box<dyn Any + Send>>,
    world: &World,
) -> Result<&'a mut Lane, TrainError> {
    let lane = match slot {
        Some(lane) => lane,
        none => none.insert(Box::new(world.group().or_abort(Lane::choose(world))?)),
    };
    Ok(lane.downcast_mut().expect("only this module has a lane"))
}

/// Waits for what a world's lane has been given, if the host does not wait for it anyway.
pub(crate) fn settle(world: &World) -> Result<(), TrainError> {
    let mut slot = world.lane().lock();
    match slot.as_mut().and_then(|lane| lane.downcast_mut()) {
        Some(Lane::Device(lane)) => lane.settle(),
        Some(Lane::Host) | None => Ok(()),
    }
}

impl Arrival {
    /// Returns the result. On devices it may still be on its way: what reads it waits there.
    ///
    /// # Errors
    /// As [`transfer`].
    pub fn wait(self) -> Result<Tensor<1>, TrainError> {
        match self.0 {
            Arriving::Here(tensor) => Ok(tensor),
            Arriving::Bytes { work, device, dtype } => {
                let bytes = work.wait()?;
                let shape = [bytes.len() / dtype.size()];
                let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
                Ok(Tensor::from_data(data, (&device, dtype)))
            }
            Arriving::InFlight(flight, world) => {
                let mut slot = world.lane().lock();
                let lane = slot.as_mut().and_then(|lane| lane.downcast_mut());
                let Some(Lane::Device(lane)) = lane else {
                    unreachable!("a lane stays as long as its world");
                };
                world.group().or_abort(lane.end(*flight))
            }
        }
    }
}

/// The ranks of a world whose gradients stay on their devices.
#[derive(Debug)]
pub(crate) struct Replicas(pub(crate) World);

impl Devices for Replicas {
    fn first(&self, values: Tensor<1>) -> Result<Tensor<1>, TrainError> {
        transfer(values, &self.0, Transfer::Broadcast)
    }

    fn all(
        &self,
        own: Option<Tensor<1>>,
        dtype: DType,
        pieces: &[Range<usize>],
    ) -> Result<Tensor<1>, TrainError> {
        let Self(world) = self;
        let mut slot = world.lane().lock();
        match lane_of(&mut slot, world)? {
            Lane::Device(lane) => {
                let flight = lane.begin_gather(own, dtype, pieces, world.group())?;
                lane.end(flight)
            }
            Lane::Host => {
                drop(slot);
                let own = own.map(Tensor::try_into_data).transpose();
                let own = own.map_err(TrainError::unreadable("a tensor"))?;
                let own: Vec<f64> = own.iter().flat_map(|own| own.iter::<f64>()).collect();
                let all = world.group().all_gather_v(&own)?;
                let all: Vec<f64> = all.iter().flatten().copied().collect();
                let data = TensorData::new(all.clone(), [all.len()]);
                Ok(Tensor::from_data(data, (&world.device(), dtype)))
            }
        }
    }

    fn settle(&self) -> Result<(), TrainError> {
        settle(&self.0)
    }
}

#[track_caller]
fn through_host(
    x: Tensor<1>,
    group: &ProcessGroup,
    transfer: Transfer,
) -> Result<Arriving, TrainError> {
    let (device, dtype) = (x.device(), x.dtype());
    // The other ranks are not to wait for one that has nothing to send.
    let data = group.or_abort(x.try_into_data().map_err(TrainError::unreadable("a tensor")))?;
    if transfer == Transfer::Shift {
        let mut lengths = vec![0; group.world_size().len()];
        let next = (group.rank().index() + 1) % lengths.len();
        lengths[next] = data.as_bytes().len();
        let work = group.background(Vec::new(), move |group, arrived| {
            *arrived = group.all_to_all_v(data.as_bytes(), &lengths)?.into_vec();
            Ok(())
        });
        return Ok(Arriving::Bytes { work, device, dtype });
    }
    let data = match dtype {
        DType::F32 => exchanged::<f32>(data, group, transfer),
        DType::F64 => exchanged::<f64>(data, group, transfer),
        DType::F16 => exchanged::<f16>(data, group, transfer),
        DType::BF16 => exchanged::<bf16>(data, group, transfer),
        other => panic!("tensors of type {other:?} are not sent"),
    }?;
    Ok(Arriving::Here(Tensor::from_data(data, (&device, dtype))))
}

#[track_caller]
fn exchanged<T: Element + burn::tensor::Element>(
    mut data: TensorData,
    group: &ProcessGroup,
    transfer: Transfer,
) -> Result<TensorData, TrainError> {
    let values = data.as_mut_slice::<T>();
    let values = group.or_abort(values.map_err(TrainError::unreadable("a tensor")))?;
    let flat = |values: Vec<T>| {
        let len = values.len();
        TensorData::new(values, [len])
    };
    Ok(match transfer {
        Transfer::AllReduce(reduce) => {
            group.all_reduce(values, reduce)?;
            data
        }
        Transfer::AllToAll => {
            group.all_to_all(values)?;
            data
        }
        Transfer::Broadcast => {
            group.broadcast(values, Rank::new(0))?;
            data
        }
        Transfer::AllGather => flat(group.all_gather(values)?),
        Transfer::ReduceScatter => {
            group.reduce_scatter_in_place(values, ReduceOp::Sum)?;
            let len = values.len() / group.world_size().len();
            let start = group.rank().index() * len;
            flat(values[start..start + len].to_vec())
        }
        Transfer::Shift => unreachable!("sent as bytes"),
    })
}
