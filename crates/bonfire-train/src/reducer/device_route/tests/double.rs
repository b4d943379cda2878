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
use burn::tensor::Device;

use crate::TrainError;
use crate::reducer::device_route::choice::Refusal;
use crate::reducer::device_route::{Action, Engine, Move, Room, Timing};
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
pub(crate) fn form(group: &WarmUp) -> Result<Box<dyn Engine>, Refusal> {
    Ok(Box::new(Double::new(group, Timing::Overlapped)))
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
            Action::Pack { bucket, moves } => {
                let values = self.buckets[bucket].values()?;
                for Move { tensor, slot } in moves {
                    let memory = memory(&tensor);
                    let source = memory.lock().unwrap();
                    values.set(slot, source.slice(0..source.len()), Scale::One);
                }
            }
            Action::Unpack { bucket, moves } => {
                let values = self.buckets[bucket].values()?;
                for Move { tensor, slot } in moves {
                    let whole = 0..slot.len();
                    let memory = memory(&tensor);
                    let mut target = memory.lock().unwrap();
                    target.set(whole, values.slice(slot), Scale::One);
                }
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
            Action::Average { bucket } => {
                self.buckets[bucket].values()?;
                let bucket = &mut self.buckets[bucket];
                let values = bucket.values.take().expect("it has just been there");
                let len = values.len();
                bucket.work =
                    Some(values.start(&self.group, len, CollectiveOp::AllReduce(ReduceOp::Mean)));
            }
        }
        Ok(())
    }
}

fn memory(tensor: &DeviceTensor) -> Arc<Memory> {
    let memory = Arc::clone(&tensor.memory).downcast::<Memory>();
    memory.expect("tensors of the tests' device")
}

impl Bucket {
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
        let bucket = |room: &Room| Bucket {
            values: Some(BucketBuffer::zeros(room.dtype, room.elems())),
            work: None,
            kept: BucketBuffer::zeros(room.dtype, room.elems()),
        };
        self.buckets = rooms.iter().map(bucket).collect();
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
