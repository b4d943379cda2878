//! The words through which ranks tell each other how far they are, and the barrier kernel.

use super::context::Context;
use super::device::ComputeCapability;
use super::error::CudaError;
use super::fold::FOLD_RANKS_MAX;
use super::module::{Cubin, Function, Grid, Module};
use super::nvrtc::Nvrtc;
use super::span::Span;
use super::stream::Stream;

/// In front of every kernel that uses flags.
pub(super) const FLAGS_SOURCE: &str = include_str!("flags.cuh");

const WORD_BYTES: usize = 4;

/// Word numbers of the parts of a page.
const ABORT: usize = 0;
const BARRIER: usize = 32;
const ROUNDS: usize = 64;
const CHANNELS: usize = 128;
const BLOCKS: usize = 1024;

/// A rank's page of words, all zero at first. Its peers write them; the rank and its host wait for them.
///
/// Each word only grows. The parts are for one kind of synchronization each, so that each has a counter
/// of its own.
#[derive(Clone, Debug)]
pub struct FlagPage {
    span: Span,
}

/// Which of the words that streams wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signals {
    /// The word of a round of a dissemination barrier.
    Round(u32),
    /// The word of a channel of a ring.
    Channel(u32),
}

impl FlagPage {
    /// The blocks of a `one_shot` kernel that have words.
    pub const BLOCKS_MAX: u32 = 64;

    /// The channels that have words.
    pub const CHANNELS_MAX: u32 = 64;

    /// The rounds that have words: enough for any number of ranks.
    pub const ROUNDS_MAX: u32 = 32;

    /// The size of a page.
    pub const BYTES: usize = (BLOCKS + Self::BLOCKS_MAX as usize * FOLD_RANKS_MAX) * WORD_BYTES;

    /// The page in this memory, which must be zero and shared with the peers.
    pub fn new(span: Span) -> Self {
        assert_eq!(span.len(), Self::BYTES, "a page has a fixed size");
        Self { span }
    }

    /// All of it.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The word that the host raises so that kernels of this rank stop waiting.
    pub fn abort(&self) -> Span {
        self.word(ABORT)
    }

    /// The number of the word that `peer` writes in the barrier kernel.
    pub const fn peer_index(peer: u32) -> usize {
        BARRIER + peer as usize
    }

    /// The number of the word of a round.
    pub const fn round_index(round: u32) -> usize {
        ROUNDS + round as usize
    }

    /// The number of the word of a channel.
    pub const fn channel_index(channel: u32) -> usize {
        CHANNELS + channel as usize
    }

    /// The number of the word that `peer` writes in the first block of a `one_shot` kernel.
    pub const fn block_index(peer: u32) -> usize {
        BLOCKS + peer as usize
    }

    /// One of the words that streams wait for.
    pub fn signal(&self, signal: Signals) -> Span {
        let (word, index, len) = match signal {
            Signals::Round(round) => (Self::round_index(round), round, Self::ROUNDS_MAX),
            Signals::Channel(channel) => {
                (Self::channel_index(channel), channel, Self::CHANNELS_MAX)
            }
        };
        assert!(index < len, "{signal:?}: there are {len}");
        self.word(word)
    }

    /// The words of the `one_shot` kernel: [`FOLD_RANKS_MAX`] for each block.
    pub(super) fn blocks(&self) -> Span {
        self.words(BLOCKS, Self::BLOCKS_MAX as usize * FOLD_RANKS_MAX)
    }

    fn word(&self, index: usize) -> Span {
        self.words(index, 1)
    }

    fn words(&self, index: usize, len: usize) -> Span {
        self.span
            .part(index * WORD_BYTES..(index + len) * WORD_BYTES)
            .expect("the parts lie in the page")
    }
}

/// The barrier as a kernel of one warp.
#[derive(Clone, Debug)]
pub struct BarrierKernel {
    function: Function,
}

/// One launch of the barrier.
#[derive(Clone, Copy, Debug)]
pub struct BarrierLaunch<'a> {
    /// Each rank's flags.
    pub pages: &'a [FlagPage],
    /// This rank.
    pub me: usize,
    /// The number of this barrier, from 1.
    pub seq: u32,
}

/// As in barrier.cu.
#[repr(C)]
#[derive(Default)]
struct BarrierArgs {
    pages: [u64; FOLD_RANKS_MAX],
    abort: u64,
    ranks: u32,
    me: u32,
    seq: u32,
    padding: u32,
}

const _: () = assert!(size_of::<BarrierArgs>() == 8 * FOLD_RANKS_MAX + 24);
const _: () = assert!(BARRIER + FOLD_RANKS_MAX <= ROUNDS);
const _: () = assert!(ROUNDS + FlagPage::ROUNDS_MAX as usize <= CHANNELS);
const _: () = assert!(CHANNELS + FlagPage::CHANNELS_MAX as usize <= BLOCKS);

impl BarrierKernel {
    /// Compiles the kernel.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    pub fn compile(nvrtc: Nvrtc, capability: ComputeCapability) -> Result<Cubin, CudaError> {
        let source = [FLAGS_SOURCE, include_str!("barrier.cu")].concat();
        let defines = [format!("RANKS_MAX={FOLD_RANKS_MAX}")];
        nvrtc.compile(capability, "barrier", &source, &defines)
    }

    /// Loads what [`compile`](Self::compile) made.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load(context: &Context, cubin: &Cubin) -> Result<Self, CudaError> {
        let function = Module::load(context, cubin)?.function("barrier")?;
        Ok(Self { function })
    }

    /// Queues a barrier: what any rank queued before its own is done before what this stream does
    /// behind it. The kernel waits on the device, with one warp.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch(&self, stream: &Stream, launch: &BarrierLaunch<'_>) -> Result<(), CudaError> {
        let ranks = launch.pages.len();
        assert!(
            (1..=FOLD_RANKS_MAX).contains(&ranks) && launch.me < ranks,
            "rank {} of {ranks}",
            launch.me
        );
        let mut args = BarrierArgs {
            abort: launch.pages[launch.me].abort().address(),
            ranks: ranks as u32,
            me: launch.me as u32,
            seq: launch.seq,
            ..BarrierArgs::default()
        };
        for (address, page) in args.pages.iter_mut().zip(launch.pages) {
            page.span().used_by(stream.context());
            *address = page.words(BARRIER, FOLD_RANKS_MAX).address();
        }
        let grid = Grid {
            blocks: 1,
            threads: 32,
        };
        // SAFETY: the kernel takes one BarrierArgs, whose layout barrier.cu states. It touches one word per
        // rank of each page and the abort word, which the pages have. They are device memory that is
        // freed only after this context is idle (`used_by`).
        unsafe { self.function.launch(stream, grid, &args) }
    }
}
