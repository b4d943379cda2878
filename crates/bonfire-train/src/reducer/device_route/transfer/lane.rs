//! The way of a world's tensors from device to device.

use std::ops::Range;

use bonfire_collective::{ProcessGroup, Rank, ReduceOp};
use bonfire_plan::DType;
use burn::tensor::{DType as TensorDType, Device, GradientCheckpointingStrategy, Tensor};

use super::{Transfer, reducible};
use crate::reducer::device_route::{
    Action, Engine, Fate, Move, Operation, Room, Timing, over_devices,
};
use crate::reducer::readback::{Claim, Shell, claim, on_device};
use crate::values::Reader;
use crate::{DeviceKind, GradientRoute, TrainError, World};

#[derive(Debug)]
pub(super) enum Lane {
    Host,
    Device(DeviceLane),
}

/// Memory that the ranks' devices open to each other, and the engine that works on it.
#[derive(Debug)]
pub(crate) struct DeviceLane {
    engine: Box<dyn Engine>,
    device: Device,
    buckets: Vec<Bucket>,
    /// True if operations may still run that the host has not waited for.
    is_busy: bool,
}

#[derive(Debug)]
struct Bucket {
    dtype: DType,
    elems: usize,
    /// True if an operation on it has begun and not ended.
    is_taken: bool,
}

/// An operation on devices that has begun.
pub(crate) struct InFlight {
    buckets: Vec<usize>,
    /// Keeps the tensor from being overwritten before it has been read.
    reader: Option<Reader>,
    finish: Box<dyn FnOnce() -> Tensor<1> + Send>,
    /// Another device, that the result is for.
    home: Option<Device>,
    /// That the result is one of autodiff, and how it is checkpointed.
    autodiff: Option<Option<GradientCheckpointingStrategy>>,
}

/// An operation, by its elements in its bucket. All but `own` is the same on all ranks.
struct Plan {
    /// All elements that ranks bring or get.
    elems: usize,
    /// The place of what this rank brings.
    own: Range<usize>,
    steps: Vec<(Range<usize>, Operation)>,
    /// What this rank gets, with the places.
    results: Vec<(Range<usize>, Range<usize>)>,
}

impl Lane {
    /// Chooses the way, alike on all ranks; rank 0 logs it. Every rank calls it.
    pub(super) fn choose(world: &World) -> Result<Self, TrainError> {
        if cfg!(not(feature = "cuda")) {
            return Ok(Self::Host);
        }
        let (ranks, device) = (world.warm_up(), world.device());
        let found = over_devices(GradientRoute::Auto, Some(&device), &ranks, Fate::Shared)?;
        let speaks = ranks.rank().get() == 0;
        Ok(match found {
            Ok(engine) => {
                if speaks {
                    tracing::info!(
                        rank = 0,
                        ranks = ranks.world_size().get(),
                        timing = ?engine.timing(),
                        "tensors are sent from device to device"
                    );
                }
                Self::Device(DeviceLane::new(engine, device))
            }
            Err(reason) => {
                if speaks && world.device_kind() == DeviceKind::Cuda {
                    tracing::warn!(
                        rank = 0,
                        reason,
                        "tensors are sent through host memory: each operation waits for the device, copies its tensors to \
                         the host and back, and lets the CPU add them"
                    );
                }
                Self::Host
            }
        })
    }
}

impl DeviceLane {
    pub(crate) fn new(engine: Box<dyn Engine>, device: Device) -> Self {
        Self { engine, device: device.without_autodiff(), buckets: Vec::new(), is_busy: false }
    }

    pub(super) fn begin(
        &mut self,
        x: Tensor<1>,
        group: &ProcessGroup,
        transfer: Transfer,
    ) -> Result<InFlight, TrainError> {
        let (dtype, device) = (x.dtype(), x.device());
        let plan = Plan::of(transfer, x.dims()[0], group);
        let autodiff = x.is_autodiff().then(|| x.gradient_checkpointing_strategy());
        let x = x.without_autodiff();
        let x = if x.device() == self.device { x } else { x.to_device(&self.device) };
        let flight = self.start(Some(x), dtype, plan, group)?;
        let at_home = device.clone().without_autodiff() == self.device;
        Ok(InFlight { home: (!at_home).then_some(device), autodiff, ..flight })
    }

    /// Begins to gather a tensor of which each rank has some elements, or none. `pieces` are those of each rank.
    pub(crate) fn begin_gather(
        &mut self,
        own: Option<Tensor<1>>,
        dtype: TensorDType,
        pieces: &[Range<usize>],
        group: &ProcessGroup,
    ) -> Result<InFlight, TrainError> {
        let block = pieces.iter().map(Range::len).max().unwrap_or(0);
        let starts = (0..pieces.len()).map(|rank| rank * block);
        let places = starts.zip(pieces).map(|(start, piece)| start..start + piece.len());
        let places: Vec<_> = places.collect();
        let elems = block * pieces.len();
        let plan = Plan {
            elems,
            own: places[group.rank().index()].clone(),
            steps: vec![(0..elems, Operation::AllGather)],
            results: joined(pieces.iter().cloned().zip(places)),
        };
        self.start(own, dtype, plan, group)
    }

    fn start(
        &mut self,
        x: Option<Tensor<1>>,
        dtype: TensorDType,
        plan: Plan,
        group: &ProcessGroup,
    ) -> Result<InFlight, TrainError> {
        if let Some(failure) = group.failure() {
            return Err(failure.into());
        }
        let element =
            reducible(dtype).unwrap_or_else(|| panic!("tensors of type {dtype:?} are not sent"));
        let bucket = self.take(element, plan.elems)?;
        let mut buckets = vec![bucket];
        let mut output = bucket;
        let refused = TrainError::unreadable::<String>;
        let tensor = x.map(|x| on_device(x).map_err(refused("a tensor")));
        let mut tensor = tensor.transpose()?;
        let reader = tensor.as_mut().and_then(|tensor| tensor.reader.take());
        let shape = vec![plan.results.iter().map(|(elems, _)| elems.len()).sum()];
        let shell = Shell { shape, tensor_dtype: dtype, device: self.device.clone() };
        let Claim { memory, finish } = claim(None, &shell).map_err(refused("a new tensor"))?;
        let is_exchange = |operation| matches!(operation, Operation::AllToAll { .. });
        if plan.steps.iter().any(|(_, operation)| is_exchange(*operation)) {
            output = self.take(element, plan.elems)?;
            buckets.push(output);
        }
        self.is_busy = true;
        match self.engine.timing() {
            Timing::Ordered | Timing::Overlapped => self.engine.queue(Action::Behind)?,
            Timing::Apart => {
                self.engine.queue(Action::Computed)?;
                self.engine.queue(Action::Meet)?;
            }
        }
        if let Some(tensor) = tensor {
            let (elems, place) = (0..tensor.elems, plan.own);
            self.engine.queue(Action::CopyIn { bucket, from: Move { tensor, elems, place } })?;
        }
        for (elems, operation) in plan.steps {
            let operation = match operation {
                Operation::AllToAll { .. } => Operation::AllToAll { output },
                other => other,
            };
            self.engine.queue(Action::Run { bucket, elems, operation })?;
        }
        for (elems, place) in plan.results {
            let to = Move { elems, tensor: memory.shared(), place };
            self.engine.queue(Action::CopyOut { bucket: output, to })?;
        }
        if self.engine.timing() == Timing::Apart {
            self.settle()?;
        }
        Ok(InFlight { buckets, reader, finish, home: None, autodiff: None })
    }

    /// Returns the result: later operations of this thread, on the device too, see it.
    pub(crate) fn end(&mut self, flight: InFlight) -> Result<Tensor<1>, TrainError> {
        let InFlight { buckets, reader, finish, home, autodiff } = flight;
        match self.engine.timing() {
            Timing::Ordered => self.engine.queue(Action::Ahead)?,
            Timing::Overlapped => self.settle()?,
            Timing::Apart => {}
        }
        drop(reader);
        buckets.into_iter().for_each(|bucket| self.buckets[bucket].is_taken = false);
        let tensor = finish();
        let tensor = match home {
            Some(device) => tensor.to_device(&device.without_autodiff()),
            None => tensor,
        };
        Ok(match autodiff {
            None => tensor,
            Some(None) => Tensor::from_inner(tensor),
            Some(Some(strategy)) => {
                Tensor::from_inner(tensor).with_gradient_checkpointing_strategy(strategy)
            }
        })
    }

    /// Waits for all operations, with a deadline.
    pub(crate) fn settle(&mut self) -> Result<(), TrainError> {
        if self.is_busy {
            self.engine.settle()?;
            self.is_busy = false;
        }
        Ok(())
    }

    /// A bucket that no operation has, of at least this size: the same on all ranks, which begin and end the same
    /// operations.
    fn take(&mut self, dtype: DType, elems: usize) -> Result<usize, TrainError> {
        let is_free = |bucket: &Bucket| !bucket.is_taken && bucket.dtype == dtype;
        let fits = self.buckets.iter().position(|bucket| is_free(bucket) && bucket.elems >= elems);
        let bucket = match fits {
            Some(bucket) => bucket,
            None => {
                let small = self.buckets.iter().position(is_free);
                let bucket = small.unwrap_or(self.buckets.len());
                let (pieces, uses) = (Vec::new(), Vec::new());
                self.engine.open_one(bucket, &Room { dtype, elems, pieces, block: None, uses })?;
                let made = Bucket { dtype, elems, is_taken: false };
                match self.buckets.get_mut(bucket) {
                    Some(small) => *small = made,
                    None => self.buckets.push(made),
                }
                bucket
            }
        };
        self.buckets[bucket].is_taken = true;
        Ok(bucket)
    }
}

impl Plan {
    fn of(transfer: Transfer, elems: usize, group: &ProcessGroup) -> Self {
        let (rank, ranks) = (group.rank().index(), group.world_size().len());
        let block = |number: usize, elems: usize| number * elems..(number + 1) * elems;
        let all = |elems: usize, operation| vec![(0..elems, operation)];
        let in_place = |operation| Self {
            elems,
            own: 0..elems,
            steps: all(elems, operation),
            results: vec![(0..elems, 0..elems)],
        };
        match transfer {
            Transfer::AllReduce(reduce) => in_place(Operation::AllReduce(reduce)),
            Transfer::Broadcast => in_place(Operation::Broadcast(Rank::new(0))),
            // Which bucket that is is known when there is one.
            Transfer::AllToAll => in_place(Operation::AllToAll { output: 0 }),
            Transfer::AllGather => Self {
                elems: ranks * elems,
                own: block(rank, elems),
                steps: all(ranks * elems, Operation::AllGather),
                results: vec![(0..ranks * elems, 0..ranks * elems)],
            },
            Transfer::ReduceScatter => {
                let part = elems / ranks;
                Self {
                    results: vec![(0..part, block(rank, part))],
                    ..in_place(Operation::ReduceScatter(ReduceOp::Sum))
                }
            }
            Transfer::Shift => {
                let previous = (rank + ranks - 1) % ranks;
                Self {
                    elems: blocks_of_shift(ranks) * elems,
                    own: block(block_of_shift(rank, ranks), elems),
                    steps: shift(elems, group),
                    results: vec![(0..elems, block(block_of_shift(previous, ranks), elems))],
                }
            }
        }
    }
}

/// Ranges with their places, those without elements left out and neighbours in both joined.
fn joined(
    ranges: impl Iterator<Item = (Range<usize>, Range<usize>)>,
) -> Vec<(Range<usize>, Range<usize>)> {
    let mut found: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    for (elems, place) in ranges.filter(|(elems, _)| !elems.is_empty()) {
        match found.last_mut() {
            Some((before, there)) if before.end == elems.start && there.end == place.start => {
                (before.end, there.end) = (elems.end, place.end);
            }
            _ => found.push((elems, place)),
        }
    }
    found
}

/// Neighbours have different blocks, which two ranks have at the same place: with an odd number of ranks the last has a
/// third one, since both of its neighbours are even.
fn block_of_shift(rank: usize, ranks: usize) -> usize {
    if !ranks.is_multiple_of(2) && rank + 1 == ranks { 2 } else { rank % 2 }
}

fn blocks_of_shift(ranks: usize) -> usize {
    if ranks.is_multiple_of(2) { 2 } else { 3 }
}

/// Ranks with an even number send first, and the others receive first: each wait is for a rank that comes.
fn shift(size: usize, group: &ProcessGroup) -> Vec<(Range<usize>, Operation)> {
    let (own, ranks) = (group.rank().index(), group.world_size().len());
    let rank = |number: usize| Rank::new((number % ranks) as u32);
    if ranks == 2 {
        return vec![(0..2 * size, Operation::Exchange(rank(own + 1)))];
    }
    let block = |number: usize| {
        let block = block_of_shift(number % ranks, ranks);
        block * size..(block + 1) * size
    };
    let send = (block(own), Operation::Send(rank(own + 1)));
    let receive = (block(own + ranks - 1), Operation::Recv(rank(own + ranks - 1)));
    if own.is_multiple_of(2) { vec![send, receive] } else { vec![receive, send] }
}
