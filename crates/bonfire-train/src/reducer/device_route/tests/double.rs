//! The tests' engine: what a device does, done to host memory.
//!
//! It computes as the way through the host does, so that results can be compared bit for bit.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bonfire_collective::{ProcessGroup, ReduceOp};
use bonfire_plan::DType;
use burn::backend::DispatchDevice;
use burn::tensor::{Bytes, Device, TensorData};

use crate::TrainError;
use crate::reducer::device_route::choice::{Fate, Refusal};
use crate::reducer::device_route::{Action, Engine, Move, Operation, Room, Source, Timing};
use crate::values::DeviceTensor;
use crate::values::{BucketBuffer, BufferWork, CollectiveOp, HostSlice, Scale};
use crate::world::timeouts::WarmUp;

/// A tensor of the tests' device.
pub(crate) type Memory = Mutex<BucketBuffer>;

/// Whether tensors there have memory on the tests' device.
pub(crate) fn knows(device: &Device) -> bool {
    match device.as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[allow(unreachable_patterns, reason = "depends on the backends of the build")]
        _ => false,
    }
}

/// The engine of all ranks.
pub(crate) fn form(group: &WarmUp, _fate: Fate) -> Result<Box<dyn Engine>, Refusal> {
    Ok(Box::new(Double::new(group, Timing::Overlapped)))
}

/// An engine, and the names of everything that it is given.
pub(crate) fn engine(
    group: &ProcessGroup,
    timing: Timing,
) -> (Box<dyn Engine>, Arc<Mutex<Vec<String>>>) {
    let engine = Double::new(group, timing);
    let log = Arc::clone(&engine.log);
    (Box::new(engine), log)
}

/// Memory of the tests' device with these values.
pub(crate) fn tensor(values: HostSlice<'_>) -> DeviceTensor {
    let mut copy = BucketBuffer::zeros(values.dtype(), values.len());
    copy.set(0..values.len(), values, Scale::One);
    of_values(copy).0
}

/// Zeros, and how to see what becomes of them.
pub(crate) fn zeros(dtype: DType, elems: usize) -> (DeviceTensor, Arc<Memory>) {
    of_values(BucketBuffer::zeros(dtype, elems))
}

fn of_values(values: BucketBuffer) -> (DeviceTensor, Arc<Memory>) {
    let (dtype, elems) = (values.dtype(), values.len());
    let memory = Arc::new(Mutex::new(values));
    let tensor = DeviceTensor { dtype, elems, memory: memory.clone(), reader: None };
    (tensor, memory)
}

/// An engine that does everything when it is queued, but for averages, which it waits for when they are needed.
#[derive(Debug)]
pub(super) struct Double {
    group: ProcessGroup,
    timing: Timing,
    buckets: Vec<Bucket>,
    /// How long the backend computes when the host is done.
    pub(super) computing: Duration,
    /// The names of everything that was queued.
    pub(super) log: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug)]
struct Bucket {
    len: usize,
    block: Option<(Range<usize>, BucketBuffer)>,
    values: Option<BucketBuffer>,
    work: Option<BufferWork>,
    kept: BucketBuffer,
}

impl Double {
    pub(super) fn new(group: &ProcessGroup, timing: Timing) -> Self {
        Self {
            group: group.clone(),
            timing,
            buckets: Vec::new(),
            computing: Duration::ZERO,
            log: Arc::default(),
        }
    }

    fn done(&mut self, action: Action) -> Result<(), TrainError> {
        match action {
            Action::Behind | Action::Ahead => {}
            Action::Computed => thread::sleep(self.computing),
            Action::Meet => self.group.barrier()?,
            Action::Pack { bucket, moves, .. } => {
                moves.iter().try_for_each(|one| self.copy_in(bucket, one))?;
            }
            Action::Unpack { bucket, source, moves, .. } => {
                moves.iter().try_for_each(|one| self.copy_out(bucket, source, one))?;
            }
            Action::CopyIn { bucket, from } => self.copy_in(bucket, &from)?,
            Action::CopyOut { bucket, to } => self.copy_out(bucket, Source::Bucket, &to)?,
            Action::Store { bucket } => {
                let bucket = &mut self.buckets[bucket];
                let (elems, mut block) = bucket.block.take().expect("a room with a block");
                block.set(0..elems.len(), bucket.values()?.slice(elems.clone()), Scale::One);
                // The memory is that of another bucket now.
                let all = 0..bucket.len;
                bucket.values()?.clear(all);
                bucket.block = Some((elems, block));
            }
            Action::Clear { bucket, range } => self.buckets[bucket].values()?.clear(range),
            Action::Scale { bucket, factor } => self.buckets[bucket].values()?.scale(factor),
            Action::Keep { bucket, range } => {
                self.buckets[bucket].both(range, |range, values, kept| {
                    kept.set(range.clone(), values.slice(range), Scale::One);
                })?;
            }
            Action::KeepMore { bucket, range } => {
                self.buckets[bucket].both(range, |range, values, kept| {
                    kept.add(range.clone(), values.slice(range), Scale::One);
                })?;
            }
            Action::Restore { bucket, range } => {
                self.buckets[bucket].both(range, |range, values, kept| {
                    values.set(range.clone(), kept.slice(range), Scale::One);
                })?;
            }
            Action::Add { bucket, range } => {
                self.buckets[bucket].both(range, |range, values, kept| {
                    values.add(range.clone(), kept.slice(range), Scale::One);
                })?;
            }
            Action::Run { bucket, elems, operation } => self.run(bucket, elems, operation)?,
        }
        Ok(())
    }

    fn copy_in(&mut self, bucket: usize, from: &Move) -> Result<(), TrainError> {
        let Move { tensor, elems, place } = from;
        let memory = memory(tensor);
        let source = memory.lock().unwrap();
        let values = self.buckets[bucket].values()?;
        values.set(place.clone(), source.slice(elems.clone()), Scale::One);
        Ok(())
    }

    fn copy_out(&mut self, bucket: usize, source: Source, to: &Move) -> Result<(), TrainError> {
        let Move { tensor, elems, place } = to;
        let memory = memory(tensor);
        let mut target = memory.lock().unwrap();
        let bucket = &mut self.buckets[bucket];
        let values = match source {
            Source::Bucket => bucket.values()?.slice(place.clone()),
            Source::Block => {
                let (block, values) = bucket.block.as_ref().expect("a room with a block");
                values.slice(place.start - block.start..place.end - block.start)
            }
        };
        target.set(elems.clone(), values, Scale::One);
        Ok(())
    }

    fn run(
        &mut self,
        index: usize,
        elems: Range<usize>,
        operation: Operation,
    ) -> Result<(), TrainError> {
        let group = self.group.clone();
        self.buckets[index].values()?;
        let of_all = match operation {
            Operation::AllReduce(reduce) => Some(CollectiveOp::AllReduce(reduce)),
            Operation::ReduceScatter(reduce) => Some(CollectiveOp::ReduceScatter(reduce)),
            Operation::Reduce(ReduceOp::Mean, root) => Some(CollectiveOp::MeanTo(root)),
            Operation::Broadcast(root) => Some(CollectiveOp::From(root)),
            Operation::AllGather => Some(CollectiveOp::AllGather),
            _ => None,
        };
        if let Some(operation) = of_all {
            assert_eq!(elems.start, 0, "operations of all ranks begin at the first element");
            let bucket = &mut self.buckets[index];
            let values = bucket.values.take().expect("it has just been there");
            bucket.work = Some(values.start(&group, elems.end, operation));
            return Ok(());
        }
        let values = self.buckets[index].values()?;
        let data = values.slice(elems.clone()).to_tensor_data(&[elems.len()]);
        let bytes = data.as_bytes().to_vec();
        let (half, rank) = (bytes.len() / 2, group.rank());
        let mut found = bytes.clone();
        let mut target = index;
        match operation {
            Operation::AllToAll { output } => {
                group.all_to_all(&mut found)?;
                target = output;
            }
            Operation::Send(to) => return Ok(group.send(&bytes, to)?),
            Operation::Recv(from) => group.recv(&mut found, from)?,
            Operation::Exchange(peer) if rank < peer => {
                group.send(&bytes[..half], peer)?;
                group.recv(&mut found[half..], peer)?;
            }
            Operation::Exchange(peer) => {
                group.recv(&mut found[..half], peer)?;
                group.send(&bytes[half..], peer)?;
            }
            _ => unreachable!("done above"),
        }
        let found =
            TensorData::from_bytes(Bytes::from_bytes_vec(found), [elems.len()], data.dtype());
        let found = HostSlice::of(&found).expect("it has the type of a gradient");
        self.buckets[target].values()?.set(elems, found, Scale::One);
        Ok(())
    }
}

fn memory(tensor: &DeviceTensor) -> Arc<Memory> {
    let memory = Arc::clone(&tensor.memory).downcast::<Memory>();
    memory.expect("tensors of the tests' device")
}

impl Bucket {
    fn of(room: &Room) -> Self {
        let zeros = |elems| BucketBuffer::zeros(room.dtype, elems);
        Self {
            len: room.elems,
            block: room.block.clone().map(|elems| (elems.clone(), zeros(elems.len()))),
            values: Some(zeros(room.elems)),
            work: None,
            kept: zeros(room.elems),
        }
    }

    /// Its values, when they have come back.
    fn values(&mut self) -> Result<&mut BucketBuffer, TrainError> {
        if let Some(work) = self.work.take() {
            self.values = Some(work.wait()?);
        }
        Ok(self.values.as_mut().expect("values are here or on their way"))
    }

    fn both(
        &mut self,
        range: Range<usize>,
        change: impl FnOnce(Range<usize>, &mut BucketBuffer, &mut BucketBuffer),
    ) -> Result<(), TrainError> {
        self.values()?;
        let values = self.values.as_mut().expect("they have just been there");
        change(range, values, &mut self.kept);
        Ok(())
    }
}

impl Engine for Double {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn open(&mut self, rooms: &[Room]) -> Result<(), TrainError> {
        self.buckets = rooms.iter().map(Bucket::of).collect();
        Ok(())
    }

    fn open_one(&mut self, bucket: usize, room: &Room) -> Result<(), TrainError> {
        let made = Bucket::of(room);
        match self.buckets.get_mut(bucket) {
            Some(old) => *old = made,
            None => self.buckets.push(made),
        }
        Ok(())
    }

    fn queue(&mut self, action: Action) -> Result<(), TrainError> {
        let name = format!("{action:?}");
        self.log.lock().unwrap().push(name);
        self.done(action)
    }

    fn settle(&mut self) -> Result<(), TrainError> {
        self.log.lock().unwrap().push("settle".to_owned());
        for bucket in &mut self.buckets {
            bucket.values()?;
        }
        Ok(())
    }

    fn group(&self) -> &ProcessGroup {
        &self.group
    }
}
