//! Kernels on streams of the CUDA driver.
//!
//! [`ReduceCode`] is a [`Reduce`] compiled for one kind of device, [`ReduceKernel`] that code in the
//! context of one device; [`PackKernel`] and [`ScaleKernel`] are compiled where they are loaded. A launch takes raw ranges of device memory, of this rank or of its peers:
//! CubeCL's runtime, its allocator and its streams are not there, and nothing waits on the host.
//!
//! A launch never begins before what was queued on its stream, and returns when it is queued. What other streams and
//! other ranks do to the same memory meanwhile is the responsibility of the code that queues it.

use std::collections::HashMap;

use bonfire_cuda::{
    AddressLaunch, BufferLaunch, ComputeCapability, Context, Cubin, CudaError, Function, Grid,
    Module, Nvrtc, Span, Stream,
};
use smallvec::SmallVec;

use crate::reduce::{Reduce, VECTOR_BYTES, Width};
use crate::source::{ELEMS_MAX, KernelSource, Launch, SourceError, Spread};

mod pack;
mod scale;
#[cfg(test)]
mod tests;

use pack::Copies;
pub use pack::{Direction, PackKernel, PackTable, Piece};
pub use scale::ScaleKernel;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// CubeCL makes no CUDA C++ of it.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// NVRTC refuses what CubeCL made.
    #[error(transparent)]
    Compile(#[from] CudaError),
}

#[derive(Clone, Debug)]
pub struct ReduceCode {
    reduce: Reduce,
    entry: String,
    cubin: Cubin,
}

#[derive(Debug)]
pub struct ReduceKernel {
    reduce: Reduce,
    function: Function,
    /// The launches of the shapes that were used last, so that a step allocates nothing.
    launches: HashMap<LaunchKey, Launch>,
}

#[derive(Clone, Copy, Debug)]
pub struct ReduceLaunch<'a> {
    /// One range per role, in the order of the roles, all equally long. None may overlap another where either is
    /// written. Ranges of a kernel of [`Width::Vector`] all begin at the same distance behind a multiple of 16 bytes.
    pub buffers: &'a [Span],
    /// What [`Fold::Mean`](crate::Fold::Mean) divides by; others ignore it.
    pub divisor: u32,
    /// Blocks at most. Two per multiprocessor fill a device; fewer leave room for computation.
    pub cubes_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LaunchKey {
    elems: usize,
    skip: usize,
    divisor: u32,
    cubes_max: u32,
}

/// Shapes that a program uses over and over: as many as the shards of some hundred buckets.
const LAUNCHES_MAX: usize = 1024;

impl ReduceCode {
    /// Makes CUDA C++ of it and compiles that: some tenths of a second.
    ///
    /// # Errors
    /// [`CodeError::Compile`] if NVRTC is too old for the device. All else is a defect of this crate.
    pub fn compile(
        reduce: Reduce,
        nvrtc: Nvrtc,
        capability: ComputeCapability,
    ) -> Result<Self, CodeError> {
        let source = reduce.cuda_source()?;
        let cubin = nvrtc.compile(capability, &source.entry, &source.source, &[])?;
        let entry = source.entry;
        Ok(Self { reduce, entry, cubin })
    }

    /// Loads it. May wait for running kernels: load before streams begin to wait for other ranks.
    ///
    /// # Errors
    /// What the driver says, for example that the code is for another kind of device.
    pub fn load(&self, context: &Context) -> Result<ReduceKernel, CudaError> {
        let function = Module::load(context, &self.cubin)?.function(&self.entry)?;
        Ok(ReduceKernel { reduce: self.reduce.clone(), function, launches: HashMap::new() })
    }
}

impl ReduceKernel {
    /// Queues the reduction. Whatever is read or written may not be touched by others until it has run, or the result
    /// is garbage. More than 2^31 elements take several kernels, one after the other.
    ///
    /// # Panics
    /// If the buffers are not those that [`ReduceLaunch`] and the reduction ask for.
    pub fn launch(&mut self, stream: &Stream, launch: &ReduceLaunch<'_>) -> Result<(), CudaError> {
        let element = self.reduce.element();
        let bytes = self.check(launch.buffers);
        let skip_bytes = match self.reduce.width() {
            Width::Vector => launch.buffers[0].address() % VECTOR_BYTES as u64,
            Width::Element => 0,
        };
        let piece_bytes = (ELEMS_MAX * element.bytes()) - VECTOR_BYTES;
        if bytes <= piece_bytes {
            return self.launch_piece(stream, launch, skip_bytes);
        }
        // Pieces are whole vectors long, so that all begin like the first.
        for start in (0..bytes).step_by(piece_bytes) {
            let range = start..bytes.min(start + piece_bytes);
            let pieces: Result<Vec<Span>, CudaError> =
                launch.buffers.iter().map(|span| span.part(range.clone())).collect();
            let piece = ReduceLaunch { buffers: &pieces?, ..*launch };
            self.launch_piece(stream, &piece, skip_bytes)?;
        }
        Ok(())
    }

    fn launch_piece(
        &mut self,
        stream: &Stream,
        launch: &ReduceLaunch<'_>,
        skip_bytes: u64,
    ) -> Result<(), CudaError> {
        let size = self.reduce.element().bytes();
        let key = LaunchKey {
            elems: launch.buffers[0].len() / size,
            skip: skip_bytes as usize / size,
            divisor: launch.divisor,
            cubes_max: launch.cubes_max,
        };
        if key.elems == 0 {
            return Ok(());
        }
        let prepared = prepare(&mut self.launches, &self.reduce, key);
        let over = BufferLaunch {
            grid: Grid { blocks: prepared.cubes, threads: prepared.units },
            shared_bytes: prepared.shared_bytes,
            buffers: launch.buffers,
            before_bytes: skip_bytes,
            info: prepared.info(),
        };
        // SAFETY: the function is the entry of this reduction's own source (`ReduceCode` is made of
        // nothing else), which takes one address per role and the struct that `Launch` lays out; `check`
        // has counted the buffers. The kernel touches the elements from `skip` on, `elems` of them
        // (`Parts` and its test), in buffers that are all so long: the bytes of the spans, which begin
        // `before_bytes` behind the addresses. The addresses are multiples of 16 bytes for a kernel of
        // vectors, since all are `before_bytes` above one, and of an element for others (`check`).
        unsafe { self.function.launch_over(stream, &over) }
    }

    /// Checks that the buffers are as the kernel needs them, and returns their common length.
    fn check(&self, buffers: &[Span]) -> usize {
        let roles = self.reduce.roles();
        assert_eq!(buffers.len(), roles.len(), "one buffer per role");
        let bytes = buffers[0].len();
        let addresses: SmallVec<[u64; 16]> = buffers.iter().map(Span::address).collect();
        assert!(
            buffers.iter().all(|span| span.len() == bytes),
            "buffers of a reduction differ in length"
        );
        check_addresses(&self.reduce, &addresses, bytes);
        bytes
    }
}

fn load(source: &KernelSource, context: &Context, nvrtc: Nvrtc) -> Result<Function, CodeError> {
    let capability = context.device().capability();
    let cubin = nvrtc.compile(capability, &source.entry, &source.source, &[])?;
    Ok(Module::load(context, &cubin)?.function(&source.entry)?)
}

/// Writes the table of some copies and queues the kernel that makes them.
fn queue_copies(
    kernel: &PackKernel,
    stream: &Stream,
    copies: &Copies<'_>,
    launch: &Launch,
    table: &mut PackTable,
) -> Result<(), CudaError> {
    let table = table.write(stream, &copies.tiles)?;
    let at = AddressLaunch {
        grid: Grid { blocks: launch.cubes, threads: launch.units },
        shared_bytes: launch.shared_bytes,
        addresses: &[copies.source, copies.target, table.address()],
        info: launch.info(),
    };
    let sides = copies.pieces.iter().flat_map(|p| [&p.tensor, &p.slot]);
    // SAFETY: the function is the entry of the pack kernel's own source (`load` compiles nothing else for it), which
    // takes the addresses that sources and targets count from, that of the table, and the struct that `Launch` lays
    // out. There is one block per tile, and each touches its tile's elements alone. The tiles are those of the table,
    // which the stream copies before the kernel runs and nobody writes before that copy is done (`PackTable::write`);
    // they are cut from pieces of equal length on both sides, counted from an address that is a multiple of 16 and not
    // above any of theirs, with no target in a source (`Copies::checked`).
    unsafe { kernel.function.launch_at(stream, &at, sides.chain([&table])) }
}

fn queue_scale(
    kernel: &ScaleKernel,
    stream: &Stream,
    piece: &Span,
    launch: &Launch,
) -> Result<(), CudaError> {
    let over = BufferLaunch {
        grid: Grid { blocks: launch.cubes, threads: launch.units },
        shared_bytes: launch.shared_bytes,
        buffers: std::slice::from_ref(piece),
        before_bytes: 0,
        info: launch.info(),
    };
    // SAFETY: the function is the entry of the multiplication's own source (`load` compiles nothing else
    // for it), which takes the buffer's address and the struct that `Launch` lays out, made for as many
    // elements as the piece has. Pieces begin at multiples of 16 bytes (`ScaleKernel::launch`).
    unsafe { kernel.function.launch_over(stream, &over) }
}

fn prepare<'a>(
    launches: &'a mut HashMap<LaunchKey, Launch>,
    reduce: &Reduce,
    key: LaunchKey,
) -> &'a Launch {
    if launches.len() == LAUNCHES_MAX && !launches.contains_key(&key) {
        launches.clear();
    }
    launches.entry(key).or_insert_with(|| {
        let spread = Spread { elems: key.elems, cubes_max: key.cubes_max };
        reduce
            .cuda_launch(spread, key.skip, key.divisor)
            .expect("a piece has no more elements than a launch")
    })
}

/// Checks that ranges of `bytes` from these addresses are aligned, and that none overlaps one that is written.
#[track_caller]
fn check_addresses(reduce: &Reduce, addresses: &[u64], bytes: usize) {
    let size = reduce.element().bytes() as u64;
    assert!(
        (bytes as u64).is_multiple_of(size),
        "{bytes} bytes are not a whole number of {}",
        reduce.element()
    );
    let align = reduce.width().align_bytes(reduce.element()) as u64;
    let first = addresses[0];
    for &address in addresses {
        assert!(
            address.is_multiple_of(size) && address % align == first % align,
            "address {address:#x} of {} beside {first:#x}: all must begin at the same distance behind a \
             multiple of {align} bytes",
            reduce.element()
        );
    }
    let roles = reduce.roles();
    for (index, &one) in addresses.iter().enumerate() {
        for (other_index, &other) in addresses[..index].iter().enumerate() {
            let written = roles[index].is_target() || roles[other_index].is_target();
            assert!(
                !written || one.abs_diff(other) >= bytes as u64,
                "buffers {other_index} and {index} overlap at {one:#x} and one is written: give a \
                 buffer that is read and written once, with the role Both"
            );
        }
    }
}
