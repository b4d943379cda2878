//! Buckets in the memory of a group of GPUs.
//!
//! Everything is queued on the group's stream. CubeCL does not show its own, so a kernel there writes a word for which
//! the group's stream waits ([`Order`]). An event of the whole context would wait for other groups' streams, too, and
//! ranks that queue operations of two groups in different orders would wait for each other. Ranks of one process share
//! the driver's locks: when Burn frees memory or loads a kernel for one of them, that may wait for its device, and keep
//! another from queueing work for which this device waits. They therefore send buckets when all of them have computed.
//!
//! Where kernels wait for other ranks, what Burn queues after a step waits on the device, too ([`Order`]). The host
//! waits for a step when the next one has been queued up to its backward pass, so the device always has work.
//!
//! The group is Bonfire's own or one over NCCL: a [`GpuGroup`].

mod bucket;
mod group;
mod kernels;
mod nccl;
mod peers;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{ProcessGroup, ReduceOp};
use bonfire_gpu::{Context, CudaError, CudaGroupError, DeviceRegion, Driver, Nvrtc, Span, Stream};
use bonfire_kernels::launch::stream::{Direction, PackTable, Piece, ReduceLaunch};
use bonfire_plan::DType;
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::Device;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::future;

use super::choice::{Form, Refusal};
use super::{Action, Engine, Move, Operation, Room, Source, Table, Timing};
use crate::reducer::readback::raw::Flight;
use crate::reducer::readback::raw::order::Order;
use crate::world::timeouts::WarmUp;
use crate::{GradientRoute, TrainError};
use bucket::{Block, CudaBucket};
use group::{GpuGroup, GroupQueue, Own};
use kernels::Kernels;

/// Blocks of a kernel that processes a buffer, per multiprocessor: two fill a device.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// Buffer lengths are multiples of a vector.
const ALIGN_BYTES: usize = 16;

/// Prepares this rank for a group of GPUs, or returns what is missing.
pub(super) fn prepare(route: GradientRoute, device: &Device) -> Result<Form, String> {
    let DispatchDevice::Cube(cube) = device.as_dispatch() else {
        return Err(format!("the model is on {device:?}"));
    };
    let CubeDevice::Cuda(place) = cube else {
        return Err(format!("the model is on {cube:?}, not on CUDA"));
    };
    let ready = || -> Result<(Context, Nvrtc), CudaError> {
        let device = Driver::load()?.device(place.index as u32)?;
        Ok((Context::retain(&device)?, Nvrtc::load()?))
    };
    let (context, nvrtc) = ready().map_err(|error| error.to_string())?;
    let own = Own { context, nvrtc, client: cube.client(), device: cube.clone() };
    Ok(Box::new(move |ranks: &WarmUp, fate| match route {
        GradientRoute::Nccl => nccl::form(ranks, own, fate),
        GradientRoute::Auto if ranks.topology().host_count() > 1 => {
            nccl::between_hosts(ranks, own, fate)
        }
        GradientRoute::Auto | GradientRoute::Host | GradientRoute::Device => {
            peers::form(ranks, own, fate)
        }
    }))
}

#[derive(Debug)]
struct CudaEngine<G: GpuGroup> {
    flight: Flight,
    buckets: Vec<CudaBucket<G>>,
    kernels: HashMap<DType, Kernels>,
    timing: Timing,
    /// `None` with [`Timing::Apart`].
    order: Option<Ordered>,
    client: Quiet,
    nvrtc: Nvrtc,
    group: G,
    place: GroupQueue,
}

/// The order of Burn's work and the group's.
#[derive(Debug)]
struct Ordered {
    order: Order,
    /// The memory of the order's words.
    word: Flight,
}

struct Quiet(Client);

impl std::fmt::Debug for Quiet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl<G: GpuGroup> CudaEngine<G> {
    fn new(group: G, own: Own) -> Result<Self, Refusal> {
        let Own { context, nvrtc, client, device } = own;
        let place = group.place();
        // What one rank cannot do, none does.
        let order = if place.shares_a_process {
            Err("ranks are threads of one process".to_owned())
        } else {
            Ordered::new(&context, &device, &place.stream)
        };
        let mut is_ordered = [u8::from(order.is_ok())];
        let found = place.ranks.all_reduce(&mut is_ordered, ReduceOp::Min);
        found.map_err(|error| Refusal::Failed(error.into()))?;
        if let (Err(reason), false) = (&order, place.shares_a_process) {
            tracing::warn!(
                reason,
                "communication does not overlap: this device's streams cannot be ordered"
            );
        }
        let timing = if is_ordered == [0] {
            Timing::Apart
        } else if place.runs_ahead {
            Timing::Ordered
        } else {
            Timing::Overlapped
        };
        Ok(Self {
            order: order.ok(),
            flight: Flight::default(),
            buckets: Vec::new(),
            kernels: HashMap::new(),
            timing,
            client: Quiet(client),
            nvrtc,
            group,
            place,
        })
    }

    fn open_all(&mut self, rooms: &[Room]) -> Result<(), TrainError> {
        for bucket in self.buckets.drain(..) {
            // The last one of those that share it.
            if let Some(buffer) = Arc::into_inner(bucket.buffer) {
                self.group.release(buffer)?;
            }
        }
        let mut shared: HashMap<DType, Arc<G::Buffer>> = HashMap::new();
        for room in rooms {
            let buffer = match (&room.block, shared.get(&room.dtype)) {
                (None, _) => self.allocate(room.dtype, room.elems)?,
                (Some(_), Some(buffer)) => Arc::clone(buffer),
                (Some(_), None) => {
                    let others = rooms
                        .iter()
                        .filter(|other| other.block.is_some() && other.dtype == room.dtype);
                    let largest = others.map(|other| other.elems).max();
                    self.allocate(room.dtype, largest.expect("it is one of them"))?
                }
            };
            if room.block.is_some() {
                shared.insert(room.dtype, Arc::clone(&buffer));
            }
            let bucket = self.made(room, buffer)?;
            self.buckets.push(bucket);
        }
        // Memory is made and kernels are loaded while no rank waits for another on a device.
        self.place.ranks.barrier()?;
        for (room, bucket) in rooms.iter().zip(&self.buckets) {
            // Loads the kernels of the operation and connects what it needs, with all ranks, as no step may.
            let elements = bucket.elements(0..bucket.elems);
            for (_, operation) in &room.uses {
                self.group.run(*operation, &elements, &bucket.buffer, None)?;
            }
        }
        Ok(self.group.wait_idle()?)
    }

    fn allocate(&self, dtype: DType, elems: usize) -> Result<Arc<G::Buffer>, TrainError> {
        let bytes = (elems * dtype.size_bytes()).next_multiple_of(ALIGN_BYTES);
        Ok(Arc::new(self.group.allocate(bytes.max(ALIGN_BYTES))?))
    }

    fn made(&mut self, room: &Room, buffer: Arc<G::Buffer>) -> Result<CudaBucket<G>, TrainError> {
        let size = room.dtype.size_bytes();
        let context = &self.place.context;
        if !self.kernels.contains_key(&room.dtype) {
            let kernels = Kernels::load(context, self.nvrtc, room.dtype)
                .map_err(|error| TrainError::DeviceRoute(Box::new(error)))?;
            self.kernels.insert(room.dtype, kernels);
        }
        let block = room.block.clone().map(|elems| -> Result<Block, CudaError> {
            let bytes = (elems.len() * size).max(ALIGN_BYTES);
            Ok(Block { elems, memory: DeviceRegion::allocate(context, bytes)?.span() })
        });
        let mut tables = HashMap::new();
        for (table, _) in &room.uses {
            for direction in [Direction::Pack, Direction::Unpack] {
                let sizes = room.pieces.iter().map(|piece| piece.len() * size);
                tables.insert((*table, direction), PackTable::new(context, sizes)?);
            }
        }
        Ok(CudaBucket {
            dtype: room.dtype,
            elems: room.elems,
            buffer,
            block: block.transpose()?,
            kept: None,
            tables,
        })
    }

    fn replace(&mut self, bucket: usize, room: &Room) -> Result<(), TrainError> {
        if bucket < self.buckets.len() {
            let old = self.buckets.swap_remove(bucket);
            let buffer =
                Arc::into_inner(old.buffer).expect("a bucket that is replaced shares nothing");
            self.group.release(buffer)?;
        }
        let buffer = self.allocate(room.dtype, room.elems)?;
        let made = self.made(room, buffer)?;
        self.buckets.push(made);
        let last = self.buckets.len() - 1;
        self.buckets.swap(bucket, last);
        Ok(())
    }

    fn behind(&mut self) -> Result<(), TrainError> {
        match (self.timing, &mut self.order) {
            (Timing::Ordered | Timing::Overlapped, Some(ordered)) => {
                self.client.hand_over()?;
                // Orders reads and writes of gradients behind the kernels that made or read them.
                let waits = ordered.order.hold_up(&self.place.stream);
                waits.map_err(|cause| TrainError::DeviceRoute(cause.into()))
            }
            _ => self.client.synchronize(),
        }
    }

    fn ahead(&mut self) -> Result<(), TrainError> {
        let ordered = self.order.as_mut().expect("it is there with `Timing::Ordered`");
        let handed = self.flight.hand_back(&mut ordered.order, &self.place.stream);
        handed.map_err(|cause| TrainError::DeviceRoute(cause.into()))?;
        // What another thread began is not ordered behind this one's work.
        if self.flight.is_empty() { Ok(()) } else { Ok(self.flight.land(&self.group)?) }
    }

    fn copy(
        &mut self,
        index: usize,
        moves: &[Move],
        source: Source,
        (table, direction): (Table, Direction),
    ) -> Result<(), TrainError> {
        let pieces = moves.iter().map(|one| self.piece(index, source, one));
        let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
        let bucket = &mut self.buckets[index];
        let table = bucket.tables.get_mut(&(table, direction));
        let table = table.expect("a room tells what is packed");
        let kernel = &self.kernels[&bucket.dtype].pack;
        Ok(kernel.launch(&self.place.stream, table, &pieces, direction)?)
    }

    fn piece(&mut self, index: usize, source: Source, one: &Move) -> Result<Piece, TrainError> {
        let Move { tensor, elems, place } = one;
        let bucket = &self.buckets[index];
        assert_eq!(tensor.dtype, bucket.dtype, "a bucket is of one type");
        assert_eq!(elems.len(), place.len(), "as many there as here");
        let size = tensor.dtype.size_bytes();
        let all = self.flight.board(&self.place.context, tensor);
        Ok(Piece {
            tensor: all.part(elems.start * size..elems.end * size)?,
            slot: bucket.source(source, place)?,
        })
    }

    /// Adds elements of the second of a bucket's two memories to the first.
    fn add(
        &mut self,
        index: usize,
        range: &Range<usize>,
        order: fn([Span; 2]) -> [Span; 2],
    ) -> Result<(), TrainError> {
        let bucket = &self.buckets[index];
        let buffers = order([bucket.part(range)?, bucket.kept_part(range)?]);
        let launch = ReduceLaunch { buffers: &buffers, divisor: 1, cubes_max: self.cubes_max() };
        let kernels = self.kernels.get_mut(&bucket.dtype);
        let kernels = kernels.expect("loaded when the bucket was made");
        Ok(kernels.add.launch(&self.place.stream, &launch)?)
    }

    fn cubes_max(&self) -> u32 {
        self.place.context.device().multiprocessors() * BLOCKS_PER_MULTIPROCESSOR
    }
}

impl<G: GpuGroup> Engine for CudaEngine<G> {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn open(&mut self, rooms: &[Room]) -> Result<(), TrainError> {
        // The others wait in a separate group, which does not end with that of the caller.
        let opened = self.open_all(rooms);
        self.place.ranks.or_abort(opened)
    }

    fn open_one(&mut self, bucket: usize, room: &Room) -> Result<(), TrainError> {
        let opened = self.replace(bucket, room);
        self.place.ranks.or_abort(opened)
    }

    fn queue(&mut self, action: Action) -> Result<(), TrainError> {
        let stream = &Arc::clone(&self.place.stream);
        match action {
            Action::Behind => self.behind(),
            Action::Ahead => self.ahead(),
            Action::Computed => self.client.synchronize(),
            Action::Meet => Ok(self.place.ranks.barrier()?),
            Action::Pack { bucket, moves, table } => {
                self.copy(bucket, &moves, Source::Bucket, (table, Direction::Pack))
            }
            Action::Unpack { bucket, source, moves, table } => {
                self.copy(bucket, &moves, source, (table, Direction::Unpack))
            }
            Action::CopyIn { bucket, from } => {
                let Piece { tensor, slot } = self.piece(bucket, Source::Bucket, &from)?;
                Ok(stream.copy(&slot, &tensor)?)
            }
            Action::CopyOut { bucket, to } => {
                let Piece { tensor, slot } = self.piece(bucket, Source::Bucket, &to)?;
                Ok(stream.copy(&tensor, &slot)?)
            }
            Action::Store { bucket } => {
                let bucket = &self.buckets[bucket];
                let elems = bucket.block.as_ref().map_or(0..0, |block| block.elems.clone());
                if elems.is_empty() {
                    return Ok(());
                }
                let block = bucket.source(Source::Block, &elems)?;
                Ok(stream.copy(&block, &bucket.part(&elems)?)?)
            }
            Action::Clear { bucket, range } => {
                Ok(stream.fill(&self.buckets[bucket].part(&range)?, 0)?)
            }
            Action::Scale { bucket, factor } => {
                let bucket = &self.buckets[bucket];
                let buffer = bucket.part(&(0..bucket.elems))?;
                let kernel = &self.kernels[&bucket.dtype].scale;
                Ok(kernel.launch(stream, &buffer, factor, self.cubes_max())?)
            }
            Action::Keep { bucket, range } => {
                let bucket = &mut self.buckets[bucket];
                bucket.make_kept(&self.place.context)?;
                Ok(stream.copy(&bucket.kept_part(&range)?, &bucket.part(&range)?)?)
            }
            Action::Restore { bucket, range } => {
                let bucket = &self.buckets[bucket];
                Ok(stream.copy(&bucket.part(&range)?, &bucket.kept_part(&range)?)?)
            }
            Action::KeepMore { bucket, range } => self.add(bucket, &range, |[b, kept]| [kept, b]),
            Action::Add { bucket, range } => self.add(bucket, &range, |both| both),
            Action::Run { bucket, elems, operation } => {
                let bucket = &self.buckets[bucket];
                let output = match operation {
                    Operation::AllToAll { output } => Some(&*self.buckets[output].buffer),
                    _ => None,
                };
                let elements = bucket.elements(elems);
                Ok(self.group.run(operation, &elements, &bucket.buffer, output)?)
            }
        }
    }

    fn settle(&mut self) -> Result<(), TrainError> {
        Ok(self.flight.land(&self.group)?)
    }

    fn group(&self) -> &ProcessGroup {
        &self.place.ranks
    }
}

impl Ordered {
    fn new(context: &Context, device: &CubeDevice, stream: &Stream) -> Result<Self, String> {
        let mut word = Flight::default();
        let order = Order::new(context, device, &mut word)?;
        let mut ordered = Self { order, word };
        // Whether streams write words, and wait for them.
        ordered.order.hold_up(stream)?;
        ordered.order.hold_back(stream)?;
        Ok(ordered)
    }
}

impl<G: GpuGroup> Drop for CudaEngine<G> {
    fn drop(&mut self) {
        // Memory is freed when the device is idle, which it never is while it waits for ranks that have
        // failed or gone: the wait in a group that has ended frees it.
        if self.timing != Timing::Ordered && !self.flight.is_empty() {
            self.place.ranks.abort("this rank failed while its gradients were sent");
        }
        if self.order.is_some() || !self.flight.is_empty() {
            let landed = self.flight.land(&self.group);
            match (landed, &mut self.order) {
                (Ok(()), Some(Ordered { word, .. })) => drop(word.land(&self.group)),
                (Err(error), Some(_)) => {
                    tracing::error!(%error, "the last step failed on the device: the model is not what it would be");
                }
                (_, None) => {}
            }
        }
    }
}

impl Quiet {
    /// Returns when the driver has all of CubeCL's work. CubeCL's own `flush` would return the memory of finished
    /// uploads as well, and for that wait until the device has reached the previous flush: in a backward pass, the
    /// previous bucket.
    fn hand_over(&self) -> Result<(), TrainError> {
        self.0.exclusive(|| ()).map_err(refused)
    }

    /// Waits for the device's work of this thread, not for other ranks.
    fn synchronize(&self) -> Result<(), TrainError> {
        future::block_on(self.0.sync()).map_err(refused)
    }
}

fn refused(error: impl std::fmt::Debug) -> TrainError {
    TrainError::DeviceRoute(format!("{error:?}").into())
}

impl From<CudaGroupError> for TrainError {
    fn from(error: CudaGroupError) -> Self {
        match error {
            CudaGroupError::Collective(error) => Self::Collective(error),
            error => Self::DeviceRoute(Box::new(error)),
        }
    }
}

impl From<CudaError> for TrainError {
    fn from(error: CudaError) -> Self {
        Self::DeviceRoute(Box::new(error))
    }
}
