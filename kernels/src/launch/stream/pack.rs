//! Many tensors into one buffer, and back, in one launch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonfire_cuda::{
    Context, CudaError, DeviceRegion, Event, EventState, Function, Nvrtc, PinnedRegion, Span,
    Stream,
};

use super::{CodeError, load, queue_copies};
use crate::element::Element;
use crate::pack::{Pack, Segment, TILE_BYTES, Tiles};
use crate::reduce::VECTOR_BYTES;

const ENTRY_BYTES: usize = 3 * size_of::<u64>();

/// How long a table's last copy may take. It lies on the stream behind what the program has waited for long ago.
const TABLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The copy of segments, loaded in a context, for elements of one size.
#[derive(Debug)]
pub struct PackKernel {
    pack: Pack,
    pub(super) function: Function,
}

#[derive(Clone, Debug)]
pub struct Piece {
    /// The tensor's elements, in row-major order.
    pub tensor: Span,
    /// As many bytes of the buffer.
    pub slot: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Pack,
    Unpack,
}

/// Where a launch finds its tiles: memory that is used again in every launch, one at a time.
#[derive(Debug)]
pub struct PackTable {
    host: Arc<PinnedRegion>,
    device: Span,
    /// The copy from host to device that was queued last.
    copied: Event,
}

/// Pieces that have been looked at, cut into tiles.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    pub(super) pieces: &'a [Piece],
    pub(super) tiles: Tiles,
    pub(super) source: u64,
    pub(super) target: u64,
}

impl PackTable {
    /// For launches over pieces of these sizes in bytes, or fewer of them.
    pub fn new(
        context: &Context,
        pieces: impl IntoIterator<Item = usize>,
    ) -> Result<Self, CudaError> {
        let tiles: usize = pieces.into_iter().map(|bytes| bytes.div_ceil(TILE_BYTES)).sum();
        let bytes = tiles.max(1) * ENTRY_BYTES;
        Ok(Self {
            host: PinnedRegion::allocate(context, bytes)?,
            device: DeviceRegion::allocate(context, bytes)?.span(),
            copied: Event::new(context)?,
        })
    }

    /// Queues the table of these tiles, and returns where it will be.
    pub(super) fn write(&mut self, stream: &Stream, tiles: &Tiles) -> Result<Span, CudaError> {
        let bytes = tiles.count() * ENTRY_BYTES;
        assert!(
            bytes <= self.device.len(),
            "a table of {bytes} bytes for {}: it was made for other pieces",
            self.device.len()
        );
        // The device may still read what was written last.
        let until = Instant::now() + TABLE_TIMEOUT;
        assert_eq!(
            self.copied.wait_until(until)?,
            EventState::Done,
            "a table is written again before its last launch began: wait for the stream between two uses"
        );
        let words = self.host.words();
        for (number, pair) in tiles.numbers().zip(words.chunks_exact(2)) {
            // Relaxed: the copy is queued by this thread, behind these writes.
            pair[0].store(number as u32, Ordering::Relaxed);
            pair[1].store((number >> 32) as u32, Ordering::Relaxed);
        }
        let table = self.device.part(0..bytes)?;
        stream.copy_from_pinned(&table, &self.host)?;
        stream.record(&self.copied)?;
        Ok(table)
    }
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "a number of the table is two words, the lower one first"
);

impl PackKernel {
    /// Compiles and loads it. Loading may wait for running kernels: load before streams begin to wait for other ranks.
    ///
    /// # Errors
    /// [`CodeError::Compile`] if NVRTC is too old for the device. All else is a defect of this crate.
    ///
    /// # Panics
    /// If no element has that many bytes.
    pub fn load(context: &Context, nvrtc: Nvrtc, element_bytes: usize) -> Result<Self, CodeError> {
        let element = match element_bytes {
            1 => Element::U8,
            2 => Element::U16,
            4 => Element::U32,
            8 => Element::U64,
            other => panic!("no element has {other} bytes"),
        };
        let pack = Pack { element };
        let function = load(&pack.cuda_source()?, context, nvrtc)?;
        Ok(Self { pack, function })
    }

    /// Queues the copies of all pieces, as one kernel; nothing if there are none. Neither side may be
    /// touched by others until it has run.
    ///
    /// # Panics
    /// If a piece's sides differ in length or are not whole elements, if what is written overlaps
    /// anything, or if the table is too small for the pieces.
    pub fn launch(
        &self,
        stream: &Stream,
        table: &mut PackTable,
        pieces: &[Piece],
        direction: Direction,
    ) -> Result<(), CudaError> {
        let copies = Copies::checked(self.pack.element, pieces, direction);
        if copies.tiles.count() == 0 {
            return Ok(());
        }
        let launch = self.pack.cuda_launch(&copies.tiles);
        queue_copies(self, stream, &copies, &launch, table)
    }
}

impl<'a> Copies<'a> {
    /// Offsets count from the last multiple of 16 bytes before the lowest address of either side.
    fn checked(element: Element, pieces: &'a [Piece], direction: Direction) -> Self {
        let size = element.bytes() as u64;
        let mut ranges: Vec<Range> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (source, target) = match direction {
                Direction::Pack => (&piece.tensor, &piece.slot),
                Direction::Unpack => (&piece.slot, &piece.tensor),
            };
            assert_eq!(source.len(), target.len(), "a tensor and its place differ in length");
            ranges.push(Range {
                source: source.address(),
                target: target.address(),
                bytes: source.len() as u64,
            });
        }
        check_ranges(size, &ranges);
        let align = VECTOR_BYTES as u64;
        let base = |address: fn(&Range) -> u64| {
            let lowest = ranges.iter().map(address).min().unwrap_or(0);
            lowest / align * align
        };
        let (source, target) = (base(|range| range.source), base(|range| range.target));
        let segments: Vec<Segment> = ranges
            .iter()
            .map(|range| Segment {
                source: (range.source - source) / size,
                target: (range.target - target) / size,
                elems: range.bytes / size,
            })
            .collect();
        Self { pieces, tiles: Tiles::new(element, &segments), source, target }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) bytes: u64,
}

/// Checks that all copies are of whole elements at multiples of their size, and that nothing that
/// is written is written twice or read.
#[track_caller]
pub(super) fn check_ranges(size: u64, ranges: &[Range]) {
    for range in ranges {
        assert!(
            [range.source, range.target, range.bytes]
                .iter()
                .all(|number| number.is_multiple_of(size)),
            "{range:x?} are not whole elements of {size} bytes"
        );
    }
    let occupied = |range: &&Range| range.bytes > 0;
    let mut written: Vec<(u64, u64)> = ranges
        .iter()
        .filter(occupied)
        .map(|range| (range.target, range.target + range.bytes))
        .collect();
    written.sort_unstable();
    for pair in written.windows(2) {
        assert!(
            pair[0].1 <= pair[1].0,
            "two copies write to {:#x}: give each tensor memory of its own",
            pair[1].0
        );
    }
    for range in ranges.iter().filter(occupied) {
        let end = range.source + range.bytes;
        // The last that begins before the end is the only one that can reach into it.
        let before = written.partition_point(|&(start, _)| start < end);
        let reaches = before.checked_sub(1).is_some_and(|last| written[last].1 > range.source);
        assert!(!reaches, "{:#x} is read by one copy and written by another", range.source);
    }
}
