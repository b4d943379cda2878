//! Buckets in the memory of a group of GPUs.
//!
//! Everything is queued on the group's stream. What Burn has queued is waited for there by an event of the
//! device's context, since CubeCL does not show its streams; such an event is about all streams of the
//! context, also those on which a neighbour in this process waits for this rank. Ranks that share a device
//! in one process therefore let buckets travel when all of them have computed.

use std::collections::HashMap;
use std::ops::Range;

use bonfire_collective::ReduceOp;
use bonfire_collective::cuda::{
    Context, CudaBuffer, CudaError, CudaGroup, CudaGroupError, CudaOptions, CudaPath, DeviceRegion,
    Driver, Elements, Event, Neighbours, Nvrtc, Span,
};
use bonfire_kernels::launch::stream::{
    CodeError, Direction, PackKernel, PackTable, Piece, ReduceCode, ReduceKernel, ReduceLaunch,
    ScaleKernel,
};
use bonfire_kernels::reduce::{Reduce, Role, Width};
use bonfire_kernels::{Element, FloatElement, Fold};
use bonfire_plan::DType;
use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::Device;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::future;

use super::choice::{Form, Refusal};
use super::{Action, Engine, Move, Room, Timing};
use crate::patience::WarmUp;
use crate::raw::Flight;
use crate::{GradientRoute, TrainError};

/// Blocks of a kernel that works through a buffer, per multiprocessor: two fill a device.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 2;

/// Buffers are whole vectors long.
const ALIGN_BYTES: usize = 16;

/// What this rank needs for groups of GPUs, or what is missing.
pub(super) fn prepare(_route: GradientRoute, device: &Device) -> Result<Form, String> {
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
    let client = cube.client();
    Ok(Box::new(move |group: &WarmUp| {
        let engine = CudaEngine::form(group, (context, nvrtc), client)?;
        Ok(Box::new(engine) as Box<dyn Engine>)
    }))
}

#[derive(Debug)]
struct CudaEngine {
    flight: Flight,
    buckets: Vec<CudaBucket>,
    kernels: HashMap<DType, Kernels>,
    timing: Timing,
    computed: Event,
    client: Quiet,
    nvrtc: Nvrtc,
    group: CudaGroup,
}

/// Burn's side of the device.
struct Quiet(Client);

impl std::fmt::Debug for Quiet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// One bucket.
#[derive(Debug)]
struct CudaBucket {
    dtype: DType,
    elems: usize,
    buffer: CudaBuffer,
    /// Sums of earlier micro-batches, once there were some.
    kept: Option<Span>,
    packing: PackTable,
    unpacking: PackTable,
}

/// The kernels for elements of one type.
#[derive(Debug)]
struct Kernels {
    pack: PackKernel,
    scale: ScaleKernel,
    /// Adds the second buffer to the first.
    add: ReduceKernel,
}

impl CudaEngine {
    fn form(
        group: &WarmUp,
        (context, nvrtc): (Context, Nvrtc),
        client: Client,
    ) -> Result<Self, Refusal> {
        let failed = |error| Refusal::Failed(TrainError::Collective(error));
        // A sequence of operations of its own: buckets are set up and given up whenever it suits.
        let own = group
            .split(Some(0), i64::from(group.rank().get()))
            .map_err(failed)?;
        let own = own.expect("every rank has a color");
        let options = CudaOptions {
            // Another rank may have kernels to compile before its buckets travel.
            timeout: group.timeout().max(group.options().startup_timeout),
            ..CudaOptions::default()
        };
        let neighbours = Neighbours::of(&own);
        let group =
            CudaGroup::new(own, &context, &neighbours, options).map_err(|error| match error {
                CudaGroupError::SetUp { .. } | CudaGroupError::TooManyRanks { .. } => {
                    Refusal::NoWay(error.to_string())
                }
                error => Refusal::Failed(error.into()),
            })?;
        if group.path() == CudaPath::Host {
            let reason = "the devices do not reach each other's memory".to_owned();
            return Err(Refusal::NoWay(reason));
        }
        let apart = group.shares_a_context() || !context.has_context_events();
        Ok(Self {
            flight: Flight::default(),
            buckets: Vec::new(),
            kernels: HashMap::new(),
            timing: if apart {
                Timing::Apart
            } else {
                Timing::Overlapped
            },
            computed: Event::new(&context).map_err(|error| Refusal::Failed(error.into()))?,
            client: Quiet(client),
            nvrtc,
            group,
        })
    }

    fn open_one(&mut self, room: &Room) -> Result<CudaBucket, TrainError> {
        let size = room.dtype.size_bytes();
        let bytes = (room.elems() * size).next_multiple_of(ALIGN_BYTES);
        let buffer = self.group.allocate(bytes.max(ALIGN_BYTES))?;
        let context = self.group.context();
        if !self.kernels.contains_key(&room.dtype) {
            let kernels = Kernels::load(context, self.nvrtc, room.dtype)
                .map_err(|error| TrainError::DeviceRoute(Box::new(error)))?;
            self.kernels.insert(room.dtype, kernels);
        }
        let slots = || room.slots.iter().map(|slot| slot.len() * size);
        Ok(CudaBucket {
            dtype: room.dtype,
            elems: room.elems(),
            buffer,
            kept: None,
            packing: PackTable::new(context, slots())?,
            unpacking: PackTable::new(context, slots())?,
        })
    }

    /// Orders the group's stream behind what Burn has queued.
    fn behind(&self) -> Result<(), TrainError> {
        match self.timing {
            Timing::Overlapped => {
                self.client.hand_over()?;
                self.group.context().record(&self.computed)?;
                // Orders reads and writes of gradients behind the kernels that made or read them.
                Ok(self.group.stream().wait(&self.computed)?)
            }
            Timing::Apart => self.client.synchronize(),
        }
    }

    /// Copies tensors to a bucket or from it.
    fn copy(
        &mut self,
        index: usize,
        (moves, direction): (&[Move], Direction),
    ) -> Result<(), TrainError> {
        let bucket = &mut self.buckets[index];
        let mut pieces = Vec::with_capacity(moves.len());
        for Move { tensor, slot } in moves {
            assert_eq!(tensor.dtype, bucket.dtype, "a bucket is of one type");
            pieces.push(Piece {
                tensor: self.flight.board(self.group.context(), tensor),
                slot: bucket.part(slot)?,
            });
        }
        let table = match direction {
            Direction::Pack => &mut bucket.packing,
            Direction::Unpack => &mut bucket.unpacking,
        };
        let kernel = &self.kernels[&bucket.dtype].pack;
        Ok(kernel.launch(&self.group.stream(), table, (&pieces, direction))?)
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
        let launch = ReduceLaunch {
            buffers: &buffers,
            divisor: 1,
            cubes_max: self.cubes_max(),
        };
        let kernels = self.kernels.get_mut(&bucket.dtype);
        let kernels = kernels.expect("loaded when the bucket was made");
        Ok(kernels.add.launch(&self.group.stream(), &launch)?)
    }

    fn cubes_max(&self) -> u32 {
        self.group.context().device().multiprocessors() * BLOCKS_PER_MULTIPROCESSOR
    }
}

impl Engine for CudaEngine {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn open(&mut self, rooms: &[Room]) -> Result<(), TrainError> {
        for bucket in self.buckets.drain(..) {
            self.group.release(bucket.buffer)?;
        }
        for room in rooms {
            let bucket = self.open_one(room)?;
            self.buckets.push(bucket);
        }
        // Memory is made and kernels are loaded while no rank waits for another on a device.
        self.group.process_group().barrier()?;
        for bucket in &self.buckets {
            // Loads the kernels of the operation, with all ranks, as no step may.
            self.group
                .all_reduce(&bucket.buffer, &bucket.elements(), ReduceOp::Mean)?;
        }
        Ok(self.group.synchronize()?)
    }

    fn queue(&mut self, action: Action) -> Result<(), TrainError> {
        let stream = self.group.stream();
        match action {
            Action::Behind => self.behind(),
            Action::Computed => self.client.synchronize(),
            Action::Meet => Ok(self.group.process_group().barrier()?),
            Action::Pack { bucket, moves } => self.copy(bucket, (&moves, Direction::Pack)),
            Action::Unpack { bucket, moves } => self.copy(bucket, (&moves, Direction::Unpack)),
            Action::Clear { bucket, range } => {
                Ok(stream.fill(&self.buckets[bucket].part(&range)?, 0)?)
            }
            Action::Scale { bucket, factor } => {
                let bucket = &self.buckets[bucket];
                let buffer = bucket.part(&(0..bucket.elems))?;
                let kernel = &self.kernels[&bucket.dtype].scale;
                Ok(kernel.launch(&stream, &buffer, (factor, self.cubes_max()))?)
            }
            Action::Keep { bucket, range } => {
                let bucket = &mut self.buckets[bucket];
                bucket.make_kept(self.group.context())?;
                Ok(stream.copy(&bucket.kept_part(&range)?, &bucket.part(&range)?)?)
            }
            Action::Restore { bucket, range } => {
                let bucket = &self.buckets[bucket];
                Ok(stream.copy(&bucket.part(&range)?, &bucket.kept_part(&range)?)?)
            }
            Action::KeepMore { bucket, range } => self.add(bucket, &range, |[b, kept]| [kept, b]),
            Action::Add { bucket, range } => self.add(bucket, &range, |both| both),
            Action::Average { bucket } => {
                let bucket = &self.buckets[bucket];
                let elements = bucket.elements();
                Ok(self
                    .group
                    .all_reduce(&bucket.buffer, &elements, ReduceOp::Mean)?)
            }
        }
    }

    fn settle(&mut self) -> Result<(), TrainError> {
        Ok(self.flight.land(&self.group)?)
    }

    fn abort(&self, cause: &str) {
        self.group.abort(cause);
    }
}

impl Drop for CudaEngine {
    fn drop(&mut self) {
        // Memory is freed when the device is idle, which it never is while it waits for ranks that have
        // failed or gone.
        if !self.flight.is_empty() {
            self.group
                .abort("this rank gave up its gradients on their way");
        }
    }
}

impl CudaBucket {
    /// What travels.
    fn elements(&self) -> Elements {
        Elements::first(self.dtype, self.elems)
    }

    fn part(&self, range: &Range<usize>) -> Result<Span, CudaError> {
        self.buffer.span().part(self.bytes_of(range))
    }

    fn kept_part(&self, range: &Range<usize>) -> Result<Span, CudaError> {
        let kept = self.kept.as_ref();
        kept.expect("something was kept before")
            .part(self.bytes_of(range))
    }

    /// Sums have memory from their first use on.
    fn make_kept(&mut self, context: &Context) -> Result<(), CudaError> {
        if self.kept.is_none() {
            self.kept = Some(DeviceRegion::allocate(context, self.buffer.bytes())?.span());
        }
        Ok(())
    }

    fn bytes_of(&self, range: &Range<usize>) -> Range<usize> {
        let size = self.dtype.size_bytes();
        range.start * size..range.end * size
    }
}

impl Kernels {
    fn load(context: &Context, nvrtc: Nvrtc, dtype: DType) -> Result<Self, CodeError> {
        let (element, float) = match dtype {
            DType::F32 => (Element::F32, FloatElement::F32),
            DType::F64 => (Element::F64, FloatElement::F64),
            DType::F16 => (Element::F16, FloatElement::F16),
            DType::BF16 => (Element::Bf16, FloatElement::Bf16),
            other => panic!("gradients are never of type {other}"),
        };
        let sum = Reduce::new(
            element,
            Fold::Sum,
            &[Role::Both, Role::Source],
            Width::Vector,
        );
        let sum = sum.expect("floats have a sum of two buffers");
        Ok(Self {
            pack: PackKernel::load(context, nvrtc, dtype.size_bytes())?,
            scale: ScaleKernel::load(context, nvrtc, float)?,
            add: ReduceCode::compile(sum, nvrtc, context.device().capability())?.load(context)?,
        })
    }
}

impl Quiet {
    /// Returns when the driver has all that CubeCL was asked for. CubeCL's own `flush` would give back the
    /// memory of finished uploads as well, and for that wait until the device is where the flush before was: in
    /// a backward pass, the bucket before.
    fn hand_over(&self) -> Result<(), TrainError> {
        self.0.exclusive(|| ()).map_err(refused)
    }

    /// Waits until the device has done what this thread asked of it; it waits for no other rank.
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
