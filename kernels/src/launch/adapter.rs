//! Kernels through CubeCL's own launch, in memory that CubeCL manages.
//!
//! A launch returns when it is queued. It is ordered with what else is queued on the same client,
//! and reading a handle waits for it.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::cast::kernel::{cast_nearest, cast_stochastic_words};
use crate::cast::{Cast, Conversion, Half, Random};
use crate::element::Element;
use crate::finite::NonFinite;
use crate::finite::kernel::non_finite as non_finite_kernel;
use crate::norm::kernel::{square_sums, square_total};
use crate::norm::{self, SquaredNorm};
use crate::pack::kernel::pack as pack_kernel;
use crate::pack::{Pack, Segment, Tiles};
use crate::reduce::Reduce;
use crate::reduce::kernel::{Shape, reduce_floats, reduce_integers};
use crate::scale::Scale;
use crate::scale::kernel::scale as scale_kernel;
use crate::types::{self, Tail};

#[cfg(test)]
mod tests;

/// Units per cube: what every adapter can run.
const UNITS: u32 = 256;

/// Cubes at most: enough to fill an adapter, and fewer than any limit.
const CUBES_MAX: usize = 1024;

/// A launch that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchFault {
    /// The adapter has no such type.
    #[error(
        "the adapter has no {kind:?}, which a kernel of {element} computes in: cast before, or run \
         it on the CPU"
    )]
    Unsupported {
        /// The elements asked for.
        element: Element,
        /// The missing type.
        kind: ElemType,
    },
    /// More buffers than an adapter binds at once.
    #[error("{count} buffers, but the adapter binds {limit} at once: fold in several steps")]
    Bindings {
        /// The buffers asked for.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A buffer does not hold what was to be read or written.
    #[error("buffer {buffer} holds {held} bytes, but {wanted} are needed")]
    Short {
        /// Which buffer, in the order of the arguments.
        buffer: usize,
        /// Bytes that it holds.
        held: u64,
        /// Bytes that it must hold.
        wanted: u64,
    },
}

/// How much to reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Elements of each buffer.
    pub elems: usize,
    /// What [`Fold::Mean`](crate::Fold::Mean) divides by; others ignore it.
    pub divisor: u32,
}

/// Runs a reduction; `buffers` are in the order of its roles. Where the elements do not fill whole
/// vectors, it goes element by element.
///
/// # Errors
/// If the adapter lacks a type or bindings, or a buffer is too short.
pub fn reduce(
    client: &Client,
    reduce: &Reduce,
    buffers: &[Handle],
    extent: Extent,
) -> Result<(), LaunchFault> {
    let element = reduce.element();
    assert_eq!(buffers.len(), reduce.roles().len(), "one buffer per role");
    let stored = types::stored(element);
    let partial = types::partial(element, reduce.fold());
    let (divided, divisor) = types::divisor(element, extent.divisor);
    supported(client, element, &[stored, partial, divided])?;
    bindable(client, buffers.len())?;
    let wanted = (extent.elems * element.bytes()) as u64;
    for (buffer, handle) in buffers.iter().enumerate() {
        long_enough(buffer, handle, wanted)?;
    }
    if extent.elems == 0 {
        return Ok(());
    }
    let width = dividing(reduce.width().elems(element), extent.elems);
    let vectors = extent.elems / width;
    let shape = Shape::new(reduce, Tail::Absent);
    let (count, dim) = (cubes(vectors), CubeDim::new_1d(UNITS));
    let arguments = buffers.iter().map(|handle| argument(handle, vectors));
    let vectors = vectors as u32;
    if element.is_float() {
        let (buffers, elements) = (arguments.collect(), [stored, partial]);
        // SAFETY: the kernel indexes every buffer below `vectors`, which `long_enough` has compared
        // with the handles, and it ends when those are done.
        unsafe {
            reduce_floats::launch_unchecked(
                client, count, dim, width, buffers, vectors, 0, 0, 0, divisor, shape, elements,
            );
        }
    } else {
        let (buffers, elements) = (arguments.collect(), [stored, partial, divided]);
        // SAFETY: as above.
        unsafe {
            reduce_integers::launch_unchecked(
                client, count, dim, width, buffers, vectors, 0, 0, 0, divisor, shape, elements,
            );
        }
    }
    Ok(())
}

/// Multiplies `elems` elements in place by `factor`, rounded to the wide type.
///
/// # Errors
/// If the adapter lacks a type, or the buffer is too short.
pub fn scale(
    client: &Client,
    scale: Scale,
    buffer: &Handle,
    elems: usize,
    factor: f64,
) -> Result<(), LaunchFault> {
    let element = Element::from(scale.element);
    let (stored, wide) = (types::stored(element), types::wide(scale.element));
    supported(client, element, &[stored, wide])?;
    long_enough(0, buffer, (elems * element.bytes()) as u64)?;
    if elems == 0 {
        return Ok(());
    }
    let width = dividing(scale.width.elems(element), elems);
    let vectors = elems / width;
    // SAFETY: the kernel indexes the buffer below `vectors`, compared above, and ends with them.
    unsafe {
        scale_kernel::launch_unchecked(
            client,
            cubes(vectors),
            CubeDim::new_1d(UNITS),
            width,
            argument(buffer, vectors),
            vectors as u32,
            0,
            InputScalar::new(factor, wide),
            Tail::Absent,
            [stored, wide],
        );
    }
    Ok(())
}

/// The buffers of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct CastBuffers<'a> {
    /// What is read.
    pub source: &'a Handle,
    /// What is written; for stochastic rounding of an odd number of elements, 2 bytes more than
    /// those have.
    pub target: &'a Handle,
    /// Elements of each.
    pub elems: usize,
}

/// Converts elements. `random` is for stochastic rounding, which needs no 16-bit type here: two
/// results are written as one word.
///
/// # Errors
/// If the adapter lacks a type, or a buffer is too short.
pub fn cast(
    client: &Client,
    cast: Cast,
    buffers: CastBuffers<'_>,
    random: Random,
) -> Result<(), LaunchFault> {
    if let Conversion::Stochastic(half) = cast.conversion {
        return cast_to_words(client, half, buffers, random);
    }
    let CastBuffers {
        source,
        target,
        elems,
    } = buffers;
    let from = Element::from(cast.conversion.source());
    let to = Element::from(cast.conversion.target());
    let elements = [types::stored(from), types::stored(to)];
    supported(client, from, &elements)?;
    long_enough(0, source, (elems * from.bytes()) as u64)?;
    long_enough(1, target, (elems * to.bytes()) as u64)?;
    if elems == 0 {
        return Ok(());
    }
    let width = dividing(cast.elems(), elems);
    let vectors = elems / width;
    // SAFETY: the kernel indexes both buffers below `vectors`, compared above, and ends with them.
    unsafe {
        cast_nearest::launch_unchecked(
            client,
            cubes(vectors),
            CubeDim::new_1d(UNITS),
            width,
            argument(source, vectors),
            argument(target, vectors),
            vectors as u32,
            0,
            Tail::Absent,
            elements,
        );
    }
    Ok(())
}

fn cast_to_words(
    client: &Client,
    half: Half,
    buffers: CastBuffers<'_>,
    random: Random,
) -> Result<(), LaunchFault> {
    let CastBuffers {
        source,
        target,
        elems,
    } = buffers;
    let words = elems.div_ceil(2);
    long_enough(0, source, (elems * 4) as u64)?;
    long_enough(1, target, (words * 4) as u64)?;
    if elems == 0 {
        return Ok(());
    }
    // SAFETY: the kernel reads elements below `elems` and writes words below half of that, rounded
    // up, both compared above; it ends with them.
    unsafe {
        cast_stochastic_words::launch_unchecked(
            client,
            cubes(words),
            CubeDim::new_1d(UNITS),
            argument(source, elems),
            argument(target, words),
            elems as u32,
            random.seed as u32,
            (random.seed >> 32) as u32,
            random.first as u32,
            (random.first >> 32) as u32,
            half,
        );
    }
    Ok(())
}

/// The sum of the squares of `elems` elements, as one number of the wide type.
///
/// # Errors
/// If the adapter lacks a type, or the buffer is too short.
pub fn squared_norm(
    client: &Client,
    norm: SquaredNorm,
    buffer: &Handle,
    elems: usize,
) -> Result<Handle, LaunchFault> {
    let element = Element::from(norm.element);
    let (stored, wide) = (types::stored(element), types::wide(norm.element));
    supported(client, element, &[stored, wide])?;
    long_enough(0, buffer, (elems * element.bytes()) as u64)?;
    if elems == 0 {
        return Ok(client.create_from_slice(&vec![0; norm.partial_bytes()]));
    }
    let width = dividing(norm.elems(), elems);
    let vectors = elems / width;
    let partials = client.empty(norm::CUBES * norm.partial_bytes());
    let total = client.empty(norm.partial_bytes());
    let dim = CubeDim::new_1d(norm::UNITS as u32);
    // SAFETY: the kernel reads below `vectors`, compared above, and writes one number per cube, as
    // many as were allocated.
    unsafe {
        square_sums::launch_unchecked(
            client,
            CubeCount::Static(norm::CUBES as u32, 1, 1),
            dim,
            width,
            argument(buffer, vectors),
            argument(&partials, norm::CUBES),
            vectors as u32,
            0,
            Tail::Absent,
            [stored, wide],
        );
    }
    // SAFETY: the kernel reads the partial results and writes one number, as allocated.
    unsafe {
        square_total::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            dim,
            argument(&partials, norm::CUBES),
            argument(&total, 1),
            wide,
        );
    }
    Ok(total)
}

/// Sets the word `flag` to 1 if one of `elems` elements is infinite or NaN.
///
/// # Errors
/// If the adapter lacks a type, or a buffer is too short.
pub fn non_finite(
    client: &Client,
    search: NonFinite,
    buffer: &Handle,
    elems: usize,
    flag: &Handle,
) -> Result<(), LaunchFault> {
    let element = Element::from(search.element);
    let (stored, wide) = (types::stored(element), types::wide(search.element));
    supported(client, element, &[stored, wide])?;
    long_enough(0, buffer, (elems * element.bytes()) as u64)?;
    long_enough(1, flag, 4)?;
    if elems == 0 {
        return Ok(());
    }
    let width = dividing(search.width.elems(element), elems);
    let vectors = elems / width;
    // SAFETY: the kernel reads below `vectors` and writes one word, both compared above.
    unsafe {
        non_finite_kernel::launch_unchecked(
            client,
            cubes(vectors),
            CubeDim::new_1d(UNITS),
            width,
            argument(buffer, vectors),
            argument(flag, 1),
            vectors as u32,
            0,
            Tail::Absent,
            [stored, wide],
        );
    }
    Ok(())
}

/// Copies segments, element by element.
///
/// # Errors
/// If the adapter lacks a type, or a segment does not lie in a buffer.
pub fn pack(
    client: &Client,
    pack: Pack,
    segments: &[Segment],
    source: &Handle,
    target: &Handle,
) -> Result<(), LaunchFault> {
    let bytes = pack.element.bytes();
    let unsigned = types::unsigned(pack.element);
    supported(client, pack.element, &[unsigned])?;
    let end = |first: fn(&Segment) -> u64| segments.iter().map(|s| first(s) + s.elems).max();
    let source_elems = end(|segment| segment.source).unwrap_or(0);
    let target_elems = end(|segment| segment.target).unwrap_or(0);
    long_enough(0, source, source_elems * bytes as u64)?;
    long_enough(1, target, target_elems * bytes as u64)?;
    let tiles = Tiles::new(pack.element, segments);
    if tiles.count() == 0 {
        return Ok(());
    }
    // Offsets of 32 bits: no adapter has larger bindings.
    let table: Vec<u32> = tiles.numbers().map(|number| number as u32).collect();
    let entries = client.create_from_slice(bytemuck::cast_slice(&table));
    // SAFETY: every tile lies in a segment, every segment in both buffers, as compared above, and
    // there is one cube for each entry of the table.
    unsafe {
        pack_kernel::launch_unchecked(
            client,
            CubeCount::Static(tiles.count() as u32, 1, 1),
            CubeDim::new_1d(UNITS),
            AddressType::U32,
            1,
            argument(source, source_elems as usize),
            argument(target, target_elems as usize),
            argument(&entries, table.len()),
            Tail::Absent,
            [unsigned, types::stored(Element::U32)],
        );
    }
    Ok(())
}

/// The widest vector that leaves no tail.
fn dividing(width: usize, elems: usize) -> usize {
    if elems.is_multiple_of(width) {
        width
    } else {
        1
    }
}

/// A handle as a buffer of that many vectors. Only for handles that hold so much.
fn argument(handle: &Handle, vectors: usize) -> BufferArg {
    // SAFETY: every caller has compared the handle with what its kernel indexes.
    unsafe { BufferArg::from_raw_parts(handle.clone(), vectors) }
}

fn cubes(steps: usize) -> CubeCount {
    let cubes = steps.div_ceil(UNITS as usize).clamp(1, CUBES_MAX);
    CubeCount::Static(cubes as u32, 1, 1)
}

fn supported(client: &Client, element: Element, kinds: &[ElemType]) -> Result<(), LaunchFault> {
    match kinds
        .iter()
        .find(|kind| !client.properties().supports_type(**kind))
    {
        None => Ok(()),
        Some(&kind) => Err(LaunchFault::Unsupported { element, kind }),
    }
}

/// One binding is the struct of scalars and lengths.
fn bindable(client: &Client, count: usize) -> Result<(), LaunchFault> {
    let limit = client.properties().hardware.max_bindings as usize - 1;
    if count > limit {
        return Err(LaunchFault::Bindings { count, limit });
    }
    Ok(())
}

fn long_enough(buffer: usize, handle: &Handle, wanted: u64) -> Result<(), LaunchFault> {
    let held = handle.size_in_used();
    if held < wanted {
        return Err(LaunchFault::Short {
            buffer,
            held,
            wanted,
        });
    }
    Ok(())
}
