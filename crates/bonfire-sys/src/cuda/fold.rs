//! The kernels that reduce: `fold`, over buffers that other ranks leave alone, and `one_shot`, which
//! exchanges small buffers by itself.
//!
//! A kernel is compiled for one element type, one operation and one number of sources.

use super::context::Context;
use super::device::ComputeCapability;
use super::error::CudaError;
use super::flags::{FLAGS_SOURCE, FlagPage};
use super::module::{Cubin, Function, Grid, Module};
use super::nvrtc::Nvrtc;
use super::scalar::Scalar;
use super::span::Span;
use super::stream::Stream;

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Fold {
    Sum,
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// Sources, and targets, that one kernel takes.
pub const FOLD_RANKS_MAX: usize = 16;

/// Threads of a block.
const THREADS: u32 = 512;

/// Bytes that a thread moves in one instruction.
const PACK_BYTES: usize = 16;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FoldKey {
    /// The elements.
    pub scalar: Scalar,
    /// How they are combined.
    pub fold: Fold,
    /// How many buffers are folded: 1 to [`FOLD_RANKS_MAX`].
    pub sources: usize,
}

/// Both kernels for one key, loaded in a context.
#[derive(Clone, Debug)]
pub struct FoldKernel {
    key: FoldKey,
    fold: Function,
    one_shot: Function,
}

/// One launch of `fold`.
#[derive(Clone, Copy, Debug)]
pub struct FoldLaunch<'a> {
    /// What is folded, in this order; all equally long.
    pub sources: &'a [Span],
    /// Where the result goes; as long as the sources. A target may be a source, and may not overlap one
    /// in any other way.
    pub targets: &'a [Span],
    /// What the result is divided by; 1 for nothing.
    pub divisor: u32,
    /// The most blocks to use.
    pub blocks_max: u32,
}

/// One launch of `one_shot`, the same on every rank but for `data`, `me` and the own page.
#[derive(Clone, Copy, Debug)]
pub struct OneShotLaunch<'a> {
    /// This rank's elements, replaced by the result.
    pub data: &'a Span,
    /// Each rank's staging buffer for this operation, [`PACK_BYTES`] longer than the data.
    pub staging: &'a [Span],
    /// Each rank's flags.
    pub pages: &'a [FlagPage],
    /// This rank.
    pub me: usize,
    /// The number of this operation, from 1.
    pub seq: u32,
    /// What the result is divided by; 1 for nothing.
    pub divisor: u32,
    /// Blocks to use, at most [`FlagPage::BLOCKS_MAX`].
    pub blocks: u32,
}

/// As in fold.cu.
#[repr(C)]
#[derive(Default)]
struct FoldArgs {
    sources: [u64; FOLD_RANKS_MAX],
    targets: [u64; FOLD_RANKS_MAX],
    head: u64,
    packs: u64,
    tail: u64,
    targets_len: u32,
    divisor: u32,
}

const _: () = assert!(size_of::<FoldArgs>() == 16 * FOLD_RANKS_MAX + 32);

/// As in fold.cu.
#[repr(C)]
#[derive(Default)]
struct OneShotArgs {
    staging: [u64; FOLD_RANKS_MAX],
    pages: [u64; FOLD_RANKS_MAX],
    data: u64,
    abort: u64,
    head: u64,
    packs: u64,
    tail: u64,
    me: u32,
    seq: u32,
    divisor: u32,
    padding: u32,
}

const _: () = assert!(size_of::<OneShotArgs>() == 16 * FOLD_RANKS_MAX + 56);

impl Fold {
    fn define(self) -> &'static str {
        match self {
            Self::Sum => "FOLD_SUM=1",
            Self::Product => "FOLD_PRODUCT=1",
            Self::Min => "FOLD_MIN=1",
            Self::Max => "FOLD_MAX=1",
            Self::And => "FOLD_AND=1",
            Self::Or => "FOLD_OR=1",
            Self::Xor => "FOLD_XOR=1",
        }
    }
}

impl FoldKey {
    /// Compiles the kernels.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    pub fn compile(self, nvrtc: Nvrtc, capability: ComputeCapability) -> Result<Cubin, CudaError> {
        assert!(
            (1..=FOLD_RANKS_MAX).contains(&self.sources),
            "a kernel folds 1 to {FOLD_RANKS_MAX} buffers, got {}",
            self.sources
        );
        let mut defines = self.scalar.defines();
        defines.push(self.fold.define().to_owned());
        defines.push(format!("SOURCES={}", self.sources));
        defines.push(format!("RANKS_MAX={FOLD_RANKS_MAX}"));
        defines.push(format!("THREADS={THREADS}"));
        let source = [FLAGS_SOURCE, include_str!("fold.cu")].concat();
        let name = format!("fold of {:?}, {:?}", self.scalar, self.fold);
        nvrtc.compile(capability, &name, &source, &defines)
    }
}

impl FoldKernel {
    /// Loads what [`FoldKey::compile`] made for this key.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load(context: &Context, key: FoldKey, cubin: &Cubin) -> Result<Self, CudaError> {
        let module = Module::load(context, cubin)?;
        Ok(Self {
            key,
            fold: module.function("fold")?,
            one_shot: module.function("one_shot")?,
        })
    }

    /// What it is compiled for.
    pub fn key(&self) -> FoldKey {
        self.key
    }

    /// Queues a fold. Nobody else may touch the spans until it has run, or the result is garbage.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch(&self, stream: &Stream, launch: &FoldLaunch<'_>) -> Result<(), CudaError> {
        assert_eq!(
            launch.sources.len(),
            self.key.sources,
            "the kernel is compiled for another number of sources"
        );
        assert!(
            (1..=FOLD_RANKS_MAX).contains(&launch.targets.len()),
            "a kernel writes 1 to {FOLD_RANKS_MAX} buffers, got {}",
            launch.targets.len()
        );
        let bytes = launch.sources[0].len();
        let mut args = FoldArgs {
            targets_len: launch.targets.len() as u32,
            divisor: divisor(launch.divisor),
            ..FoldArgs::default()
        };
        let all = || launch.sources.iter().chain(launch.targets);
        for span in all() {
            assert_eq!(span.len(), bytes, "buffers of a fold differ in length");
            span.used_by(stream.context());
        }
        fill(&mut args.sources, launch.sources);
        fill(&mut args.targets, launch.targets);
        let split = Split::new(self.key.scalar, bytes, all().map(Span::address));
        (args.head, args.packs, args.tail) = (split.head, split.packs, split.tail);
        if bytes == 0 {
            return Ok(());
        }
        let grid = Grid {
            blocks: split.blocks().min(launch.blocks_max.max(1)),
            threads: THREADS,
        };
        // SAFETY: the kernel takes one FoldArgs, whose layout fold.cu states. It touches only the `bytes`
        // bytes from each address, which are the spans': head + packs + tail cover exactly them. Spans
        // are device memory that is freed only after this context is idle (`used_by`).
        unsafe { self.fold.launch(stream, grid, &args) }
    }

    /// Queues an all-reduce of a small buffer. The kernel waits for its peers on the device, so all
    /// ranks' blocks must fit on it at once with room to spare where ranks share one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch_one_shot(
        &self,
        stream: &Stream,
        launch: &OneShotLaunch<'_>,
    ) -> Result<(), CudaError> {
        let ranks = self.key.sources;
        assert_eq!(launch.staging.len(), ranks, "one staging buffer per rank");
        assert_eq!(launch.pages.len(), ranks, "one page of flags per rank");
        assert!(launch.me < ranks, "rank {} of {ranks}", launch.me);
        assert!(
            (1..=FlagPage::BLOCKS_MAX).contains(&launch.blocks),
            "1 to {} blocks have flags, got {}",
            FlagPage::BLOCKS_MAX,
            launch.blocks
        );
        let bytes = launch.data.len();
        if bytes == 0 {
            return Ok(());
        }
        let shift = launch.data.address() % PACK_BYTES as u64;
        let mut args = OneShotArgs {
            data: launch.data.address(),
            abort: launch.pages[launch.me].abort().address(),
            me: launch.me as u32,
            seq: launch.seq,
            divisor: divisor(launch.divisor),
            ..OneShotArgs::default()
        };
        launch.data.used_by(stream.context());
        for (rank, (staging, page)) in launch.staging.iter().zip(launch.pages).enumerate() {
            assert!(
                staging.len() >= bytes + PACK_BYTES,
                "{bytes} bytes do not fit a staging buffer of {}",
                staging.len()
            );
            assert!(
                staging.address().is_multiple_of(PACK_BYTES as u64),
                "staging buffers are aligned"
            );
            staging.used_by(stream.context());
            page.span().used_by(stream.context());
            args.staging[rank] = staging.address() + shift;
            args.pages[rank] = page.blocks().address();
        }
        let split = Split::new(self.key.scalar, bytes, [args.data].into_iter());
        (args.head, args.packs, args.tail) = (split.head, split.packs, split.tail);
        let grid = Grid {
            blocks: launch.blocks,
            threads: THREADS,
        };
        // SAFETY: the kernel takes one OneShotArgs, whose layout fold.cu states. It touches `bytes` bytes
        // from `data` and from each staging address, which their spans have (the shift is below
        // PACK_BYTES), and RANKS_MAX words for each of `blocks` blocks of the pages, which have
        // BLOCKS_MAX of them. All are device memory that is freed only after this context is idle.
        unsafe { self.one_shot.launch(stream, grid, &args) }
    }

    /// The blocks that make `one_shot` fastest for that many bytes: one pack per thread, up to the most.
    pub fn one_shot_blocks(bytes: usize) -> u32 {
        let packs = bytes.div_ceil(PACK_BYTES).max(1) as u64;
        let blocks = packs.div_ceil(u64::from(THREADS));
        u32::try_from(blocks).map_or(FlagPage::BLOCKS_MAX, |b| b.min(FlagPage::BLOCKS_MAX))
    }

    /// What a staging buffer has in addition to the data.
    pub const STAGING_EXTRA_BYTES: usize = PACK_BYTES;
}

/// The kernel takes 0 for "do not divide", which costs nothing.
fn divisor(divisor: u32) -> u32 {
    if divisor <= 1 { 0 } else { divisor }
}

fn fill(addresses: &mut [u64; FOLD_RANKS_MAX], spans: &[Span]) {
    for (address, span) in addresses.iter_mut().zip(spans) {
        *address = span.address();
    }
}

/// A range in elements before, 16-byte packs from, and elements behind an aligned address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    head: u64,
    packs: u64,
    tail: u64,
}

impl Split {
    /// All addresses at once: without packs if they are not congruent modulo 16.
    fn new(scalar: Scalar, bytes: usize, mut addresses: impl Iterator<Item = u64>) -> Self {
        let size = scalar.bytes() as u64;
        let pack = PACK_BYTES as u64;
        let elems = bytes as u64 / size;
        assert_eq!(elems * size, bytes as u64, "a range of whole elements");
        let first = addresses.next().expect("a range is somewhere");
        assert!(
            first.is_multiple_of(size),
            "elements must be aligned, got address {first:#x}"
        );
        let mut congruent = true;
        for address in addresses {
            assert!(
                address.is_multiple_of(size),
                "elements must be aligned, got address {address:#x}"
            );
            congruent &= address % pack == first % pack;
        }
        if !congruent {
            return Self {
                head: elems,
                packs: 0,
                tail: 0,
            };
        }
        let head = ((pack - first % pack) % pack / size).min(elems);
        let packs = (elems - head) * size / pack;
        Self {
            head,
            packs,
            tail: elems - head - packs * pack / size,
        }
    }

    /// Blocks for one thread per pack, or per element if there are no packs.
    fn blocks(self) -> u32 {
        let work = self.packs.max(self.head + self.tail).max(1);
        u32::try_from(work.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(scalar: Scalar, elems: usize, addresses: &[u64]) -> (u64, u64, u64) {
        let split = Split::new(scalar, elems * scalar.bytes(), addresses.iter().copied());
        assert_eq!(
            split.head + split.packs * (16 / scalar.bytes() as u64) + split.tail,
            elems as u64,
            "every element once"
        );
        (split.head, split.packs, split.tail)
    }

    #[test]
    fn ranges_split_at_sixteen_bytes() {
        assert_eq!(split(Scalar::F32, 8, &[4096]), (0, 2, 0));
        assert_eq!(split(Scalar::F32, 9, &[4096, 8192]), (0, 2, 1));
        assert_eq!(split(Scalar::F32, 9, &[4096 + 4, 4 + 16]), (3, 1, 2));
        assert_eq!(split(Scalar::F16, 3, &[2]), (3, 0, 0));
        assert_eq!(split(Scalar::U8, 33, &[15]), (1, 2, 0));
        assert_eq!(split(Scalar::F64, 3, &[8]), (1, 1, 0));
        assert_eq!(split(Scalar::F64, 0, &[8]), (0, 0, 0));
    }

    #[test]
    fn buffers_that_are_aligned_differently_are_folded_by_element() {
        assert_eq!(split(Scalar::F32, 100, &[4096, 4100]), (100, 0, 0));
    }

    #[test]
    fn small_messages_take_few_blocks() {
        assert_eq!(FoldKernel::one_shot_blocks(4), 1);
        assert_eq!(FoldKernel::one_shot_blocks(8192), 1);
        assert_eq!(FoldKernel::one_shot_blocks(8193), 2);
        assert_eq!(
            FoldKernel::one_shot_blocks(usize::MAX),
            FlagPage::BLOCKS_MAX
        );
    }
}
