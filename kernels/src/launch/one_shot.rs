//! The kernels that exchange and reduce small buffers by themselves: in one shot, by packets that everybody sends to
//! everybody, or in two, where the buffers are.
//!
//! Both are compiled for one element type, one operation and one number of ranks. They are CUDA C++ and not
//! CubeCL because they wait for their peers with loads and stores ordered at the scope of the system, for
//! which CubeCL has no words; all kernels that only compute are CubeCL's.

use bonfire_cuda::{
    ComputeCapability, Context, Cubin, CudaError, Function, Grid, Module, Nvrtc, Span, Stream,
};

use super::flags::{AbortArgs, FLAGS_SOURCE, FlagPage, RANKS_MAX, Waiter};
use crate::element::{Element, Fold};

const THREADS: u32 = 512;

/// Bytes that a thread moves in one instruction.
const PACK_BYTES: usize = 16;

/// Bytes of data in as many bytes of packets.
const LINE_BYTES: usize = PACK_BYTES / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneShotKey {
    pub element: Element,
    /// How they are combined; a mean is a sum that is divided.
    pub fold: Fold,
    /// 1 to [`RANKS_MAX`].
    pub ranks: usize,
}

#[derive(Clone, Debug)]
pub struct OneShotKernel {
    key: OneShotKey,
    one_shot: Function,
    two_shot: Function,
}

/// One launch of `one_shot`, the same on every rank but for `data`, `me` and the own page.
#[derive(Clone, Copy, Debug)]
pub struct OneShotLaunch<'a> {
    /// This rank's elements, replaced by the result.
    pub data: &'a Span,
    /// Of each rank the inboxes for this operation, of [`OneShotKernel::inboxes_bytes`]. One-shots alternate between
    /// two of them, and none that is there has had a packet of this number.
    pub inboxes: &'a [Span],
    /// This rank, and what frees it.
    pub waiter: Waiter<'a>,
    /// The number of this operation, which is not 0.
    pub seq: u32,
    /// What the result is divided by; 1 for nothing.
    pub divisor: u32,
    /// Blocks to use, the same on every rank.
    pub blocks: u32,
}

/// One launch of `two_shot`, the same on every rank but for `shards` and `me`.
#[derive(Clone, Copy, Debug)]
pub struct TwoShotLaunch<'a> {
    /// This rank's shard in the buffer of each rank, replaced by the result; all at the same distance behind a
    /// multiple of 16 bytes. It may be empty.
    pub shards: &'a [Span],
    /// This rank, and what frees it.
    pub waiter: Waiter<'a>,
    /// The first of the two numbers of this operation, which follow those of the ones before.
    pub seq: u32,
    /// What the result is divided by; 1 for nothing.
    pub divisor: u32,
    /// Blocks to use, at most [`FlagPage::BLOCKS_MAX`].
    pub blocks: u32,
}

/// Has the layout of `TwoShotArgs` in two_shot.cu.
#[repr(C)]
#[derive(Default)]
struct TwoShotArgs {
    shards: [u64; RANKS_MAX],
    pages: [u64; RANKS_MAX],
    abort: AbortArgs,
    head: u64,
    packs: u64,
    tail: u64,
    me: u32,
    seq: u32,
    divisor: u32,
    padding: u32,
}

const _: () = assert!(size_of::<TwoShotArgs>() == 16 * RANKS_MAX + size_of::<AbortArgs>() + 40);

/// Has the layout of `OneShotArgs` in one_shot.cu.
#[repr(C)]
#[derive(Default)]
struct OneShotArgs {
    inboxes: [u64; RANKS_MAX],
    pages: [u64; RANKS_MAX],
    abort: AbortArgs,
    data: u64,
    elems: u64,
    inbox_bytes: u64,
    me: u32,
    seq: u32,
    divisor: u32,
    padding: u32,
}

const _: () = assert!(size_of::<OneShotArgs>() == 16 * RANKS_MAX + size_of::<AbortArgs>() + 40);

impl OneShotKey {
    /// Compiles the kernels.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    pub fn compile(self, nvrtc: Nvrtc, capability: ComputeCapability) -> Result<Cubin, CudaError> {
        assert!(
            (1..=RANKS_MAX).contains(&self.ranks),
            "a kernel is for 1 to {RANKS_MAX} ranks, got {}",
            self.ranks
        );
        let mut defines = defines(self.element);
        defines.push(fold_define(self.fold).to_owned());
        defines.push(format!("SOURCES={}", self.ranks));
        defines.push(format!("RANKS_MAX={RANKS_MAX}"));
        defines.push(format!("THREADS={THREADS}"));
        let source =
            [FLAGS_SOURCE, include_str!("one_shot.cu"), include_str!("two_shot.cu")].concat();
        let name = format!("one_shot of {}, {:?}", self.element, self.fold);
        nvrtc.compile(capability, &name, &source, &defines)
    }
}

impl OneShotKernel {
    pub fn load(context: &Context, key: OneShotKey, cubin: &Cubin) -> Result<Self, CudaError> {
        let module = Module::load(context, cubin)?;
        Ok(Self {
            key,
            one_shot: module.function("one_shot")?,
            two_shot: module.function("two_shot")?,
        })
    }

    /// Queues an all-reduce of a small buffer. The kernel waits for its peers on the device, so all
    /// ranks' blocks must fit on it at once with room to spare where ranks share one.
    pub fn launch(&self, stream: &Stream, launch: &OneShotLaunch<'_>) -> Result<(), CudaError> {
        let (ranks, bytes) = (self.key.ranks, launch.data.len());
        assert_eq!(launch.inboxes.len(), ranks, "inboxes of each rank");
        launch.waiter.assert_one_of(ranks);
        assert_ne!(launch.seq, 0, "inboxes that were cleared have this number");
        if bytes == 0 {
            return Ok(());
        }
        let size = self.key.element.bytes();
        let address = launch.data.address();
        assert!(
            bytes.is_multiple_of(size) && address.is_multiple_of(size as u64),
            "whole elements, aligned: got {bytes} bytes at {address:#x}"
        );
        let inboxes_bytes = launch.inboxes[0].len();
        assert!(
            inboxes_bytes.is_multiple_of(ranks * PACK_BYTES)
                && inboxes_bytes >= Self::inboxes_bytes(ranks, bytes),
            "packets of {bytes} bytes from {ranks} ranks do not fit {inboxes_bytes} bytes"
        );
        let mut args = OneShotArgs {
            data: address,
            abort: launch.waiter.args(stream.context()),
            elems: (bytes / size) as u64,
            inbox_bytes: (inboxes_bytes / ranks) as u64,
            me: launch.waiter.me as u32,
            seq: launch.seq,
            divisor: divisor(launch.divisor),
            ..OneShotArgs::default()
        };
        launch.data.used_by(stream.context());
        for (rank, (inboxes, page)) in launch.inboxes.iter().zip(launch.waiter.pages).enumerate() {
            assert_eq!(inboxes.len(), inboxes_bytes, "rank {rank} has as long ones");
            assert!(inboxes.address().is_multiple_of(PACK_BYTES as u64), "packets are aligned");
            inboxes.used_by(stream.context());
            page.span().used_by(stream.context());
            args.inboxes[rank] = inboxes.address();
            args.pages[rank] = page.blocks().address();
        }
        let grid = Grid { blocks: launch.blocks, threads: THREADS };
        // SAFETY: the kernel takes one OneShotArgs, whose layout one_shot.cu states. It touches `elems` elements from
        // `data`, which it has, as many lines as they take of the `ranks` inboxes of each rank, which are that long and
        // aligned, and RANKS_MAX words and a mark of each page, device memory that is freed only after this context is
        // idle, as is the abort flag, a word of page-locked memory.
        unsafe { self.one_shot.launch(stream, grid, &args) }
    }

    /// Queues an all-reduce of a buffer that all ranks reach. The kernel waits for its peers on the device, so all
    /// ranks' blocks must fit on it at once with room to spare where ranks share one.
    pub fn launch_two_shot(
        &self,
        stream: &Stream,
        launch: &TwoShotLaunch<'_>,
    ) -> Result<(), CudaError> {
        let ranks = self.key.ranks;
        assert_eq!(launch.shards.len(), ranks, "one buffer per rank");
        launch.waiter.assert_one_of(ranks);
        assert!(
            (1..=FlagPage::BLOCKS_MAX).contains(&launch.blocks),
            "1 to {} blocks have flags, got {}",
            FlagPage::BLOCKS_MAX,
            launch.blocks
        );
        let own = &launch.shards[launch.waiter.me];
        let split = Split::new(self.key.element, own.len(), own.address());
        let mut args = TwoShotArgs {
            abort: launch.waiter.args(stream.context()),
            head: split.head,
            packs: split.packs,
            tail: split.tail,
            me: launch.waiter.me as u32,
            seq: launch.seq,
            divisor: divisor(launch.divisor),
            ..TwoShotArgs::default()
        };
        for (rank, (shard, page)) in launch.shards.iter().zip(launch.waiter.pages).enumerate() {
            assert_eq!(shard.len(), own.len(), "rank {rank} has as long a shard");
            assert_eq!(
                shard.address() % PACK_BYTES as u64,
                own.address() % PACK_BYTES as u64,
                "shards are at the same distance behind a multiple of {PACK_BYTES}"
            );
            shard.used_by(stream.context());
            page.span().used_by(stream.context());
            args.shards[rank] = shard.address();
            args.pages[rank] = page.blocks().address();
        }
        let grid = Grid { blocks: launch.blocks, threads: THREADS };
        // SAFETY: the kernel takes one TwoShotArgs, whose layout two_shot.cu states. It touches the elements of each
        // shard, whose number `split` has of spans of this length, at addresses that are aligned alike, and
        // RANKS_MAX words for each of `blocks` blocks of the pages, which have BLOCKS_MAX of them, and the marks, device
        // memory that is freed only after this context is idle, as is the abort flag, a word of page-locked memory.
        unsafe { self.two_shot.launch(stream, grid, &args) }
    }

    /// The blocks of `two_shot` for a shard of that many bytes: two packs per thread, and no more than leave most of a
    /// device to who computes beside it.
    pub fn two_shot_blocks(shard_bytes: usize) -> u32 {
        const MOST: u32 = 32;
        const _: () = assert!(MOST <= FlagPage::BLOCKS_MAX);
        let packs = shard_bytes.div_ceil(PACK_BYTES).max(1);
        let blocks = packs.div_ceil(2 * THREADS as usize);
        u32::try_from(blocks).map_or(MOST, |blocks| blocks.min(MOST))
    }

    /// The blocks of `one_shot` for that many bytes: one line per thread, up to the most.
    pub fn blocks(bytes: usize) -> u32 {
        let lines = bytes.div_ceil(LINE_BYTES).max(1);
        let blocks = lines.div_ceil(THREADS as usize);
        u32::try_from(blocks).map_or(FlagPage::BLOCKS_MAX, |b| b.min(FlagPage::BLOCKS_MAX))
    }

    /// The bytes of a rank's inboxes for packets of `ranks` ranks, each of up to `bytes` of data.
    pub const fn inboxes_bytes(ranks: usize, bytes: usize) -> usize {
        ranks * bytes.div_ceil(LINE_BYTES) * PACK_BYTES
    }
}

/// The macros of an element in the kernel: the type in memory, the type of partial results, and the type to add
/// and multiply in, which wraps where it is unsigned.
fn defines(element: Element) -> Vec<String> {
    let (store, partial, wrap, kind) = match element {
        Element::F32 => ("float", "float", "float", "FLOAT"),
        Element::F64 => ("double", "double", "double", "FLOAT"),
        Element::F16 => ("unsigned short", "float", "float", "F16"),
        Element::Bf16 => ("unsigned short", "float", "float", "BF16"),
        Element::I8 => ("signed char", "signed char", "unsigned int", "INTEGER"),
        Element::I16 => ("short", "short", "unsigned int", "INTEGER"),
        Element::I32 => ("int", "int", "unsigned int", "INTEGER"),
        Element::I64 => ("long long", "long long", "unsigned long long", "INTEGER"),
        Element::U8 => ("unsigned char", "unsigned char", "unsigned int", "INTEGER"),
        Element::U16 => ("unsigned short", "unsigned short", "unsigned int", "INTEGER"),
        Element::U32 => ("unsigned int", "unsigned int", "unsigned int", "INTEGER"),
        Element::U64 => {
            ("unsigned long long", "unsigned long long", "unsigned long long", "INTEGER")
        }
    };
    let mut defines = vec![
        format!("STORE={store}"),
        format!("PARTIAL={partial}"),
        format!("WRAP={wrap}"),
        format!("KIND_{kind}=1"),
    ];
    if element == Element::F64 {
        defines.push("WIDE=1".to_owned());
    }
    defines
}

fn fold_define(fold: Fold) -> &'static str {
    match fold {
        Fold::Sum | Fold::Mean => "FOLD_SUM=1",
        Fold::Product => "FOLD_PRODUCT=1",
        Fold::Min => "FOLD_MIN=1",
        Fold::Max => "FOLD_MAX=1",
        Fold::And => "FOLD_AND=1",
        Fold::Or => "FOLD_OR=1",
        Fold::Xor => "FOLD_XOR=1",
    }
}

/// The kernel takes 0 for "do not divide", which costs nothing.
fn divisor(divisor: u32) -> u32 {
    if divisor <= 1 { 0 } else { divisor }
}

/// A range of memory: elements before the first 16-byte boundary, packs of 16 bytes, elements behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    head: u64,
    packs: u64,
    tail: u64,
}

impl Split {
    fn new(element: Element, bytes: usize, address: u64) -> Self {
        let size = element.bytes() as u64;
        let pack = PACK_BYTES as u64;
        let elems = bytes as u64 / size;
        assert_eq!(elems * size, bytes as u64, "a range of whole elements");
        assert!(address.is_multiple_of(size), "elements must be aligned, got address {address:#x}");
        let head = ((pack - address % pack) % pack / size).min(elems);
        let packs = (elems - head) * size / pack;
        Self { head, packs, tail: elems - head - packs * pack / size }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(element: Element, elems: usize, address: u64) -> (u64, u64, u64) {
        let split = Split::new(element, elems * element.bytes(), address);
        assert_eq!(
            split.head + split.packs * (16 / element.bytes() as u64) + split.tail,
            elems as u64,
            "every element once"
        );
        (split.head, split.packs, split.tail)
    }

    #[test]
    fn ranges_split_at_sixteen_bytes() {
        assert_eq!(split(Element::F32, 8, 4096), (0, 2, 0));
        assert_eq!(split(Element::F32, 9, 4096), (0, 2, 1));
        assert_eq!(split(Element::F32, 9, 4096 + 4), (3, 1, 2));
        assert_eq!(split(Element::F16, 3, 2), (3, 0, 0));
        assert_eq!(split(Element::U8, 33, 15), (1, 2, 0));
        assert_eq!(split(Element::F64, 3, 8), (1, 1, 0));
        assert_eq!(split(Element::F64, 0, 8), (0, 0, 0));
    }

    #[test]
    fn small_messages_take_few_blocks() {
        assert_eq!(OneShotKernel::blocks(4), 1);
        assert_eq!(OneShotKernel::blocks(4096), 1);
        assert_eq!(OneShotKernel::blocks(4097), 2);
        assert_eq!(OneShotKernel::blocks(usize::MAX), FlagPage::BLOCKS_MAX);
        assert_eq!(OneShotKernel::two_shot_blocks(0), 1);
        assert_eq!(OneShotKernel::two_shot_blocks(16 << 10), 1);
        assert_eq!(OneShotKernel::two_shot_blocks((16 << 10) + 1), 2);
        assert_eq!(OneShotKernel::two_shot_blocks(usize::MAX), 32);
    }

    #[test]
    fn every_kernel_compiles() {
        let Ok(nvrtc) = Nvrtc::load() else {
            println!("every_kernel_compiles skipped: no NVRTC; set CUDA_PATH");
            return;
        };
        let capability = ComputeCapability { major: 9, minor: 0 };
        crate::launch::flags::SignalKernel::compile(nvrtc, capability).unwrap();
        let floats = [Element::F32, Element::F64, Element::F16, Element::Bf16];
        let integers = [Element::I8, Element::I16, Element::I32, Element::U64];
        let compile = |element, fold, ranks| {
            let key = OneShotKey { element, fold, ranks };
            key.compile(nvrtc, capability).unwrap();
        };
        for element in floats.into_iter().chain(integers) {
            compile(element, Fold::Sum, 2);
            compile(element, Fold::Min, 8);
        }
        for fold in [Fold::And, Fold::Or, Fold::Xor, Fold::Product, Fold::Max] {
            compile(Element::U8, fold, RANKS_MAX);
        }
        compile(Element::F32, Fold::Sum, 1);
        compile(Element::F64, Fold::Max, 3);
    }
}
