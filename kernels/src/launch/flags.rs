//! The words through which ranks report their progress to each other, and the kernel that writes and reads them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bonfire_cuda::{
    ComputeCapability, Context, Cubin, CudaError, Function, Grid, Module, Nvrtc, PinnedRegion,
    Span, Stream,
};

/// In front of every kernel that uses flags; it needs RANKS_MAX.
pub(super) const FLAGS_SOURCE: &str = include_str!("flags.cuh");

/// Ranks that a page has words for, and that one kernel takes.
pub const RANKS_MAX: usize = 16;

const WORD_BYTES: usize = 4;

/// Word numbers of the parts of a page.
const GIVEN_UP: usize = 0;
const MARKS: usize = 1;
const LINKS: usize = 32;
const BLOCKS: usize = 1024;

/// A rank's page of words, all zero at first. Its peers write them; the rank and its host wait for them.
///
/// Each word only grows, and only one rank writes it.
#[derive(Clone, Debug)]
pub struct FlagPage {
    span: Span,
}

/// What a peer counts its messages in: one word for each channel, so that streams that run beside each
/// other have a counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub channel: u32,
    /// The rank that writes the word.
    pub peer: u32,
}

impl FlagPage {
    /// The blocks of a `two_shot` kernel that have words.
    pub const BLOCKS_MAX: u32 = 64;

    pub const CHANNELS_MAX: u32 = 32;

    pub const BYTES: usize = (BLOCKS + Self::BLOCKS_MAX as usize * RANKS_MAX) * WORD_BYTES;

    pub const MARKS_BYTES: usize = RANKS_MAX * WORD_BYTES;

    pub const GIVEN_UP_INDEX: usize = GIVEN_UP;

    /// The page in this memory, which must be zero and shared with the peers.
    pub fn new(span: Span) -> Self {
        assert_eq!(span.len(), Self::BYTES, "a page has a fixed size");
        Self { span }
    }

    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The word that the rank raises when it stops waiting: its words mean nothing to the others from then on.
    pub fn given_up(&self) -> Span {
        self.word(GIVEN_UP)
    }

    /// The word that `peer` raises when it stops waiting, before it reports to this rank what it did not wait for.
    pub fn mark(&self, peer: u32) -> Span {
        assert!((peer as usize) < RANKS_MAX, "{peer}: there are {RANKS_MAX} ranks");
        self.word(MARKS + peer as usize)
    }

    /// Those of all peers, behind each other.
    pub fn marks(&self) -> Span {
        self.words(MARKS, RANKS_MAX)
    }

    pub const fn link_index(link: Link) -> usize {
        LINKS + link.channel as usize * RANKS_MAX + link.peer as usize
    }

    /// The number of the word that `peer` writes in the first block of a `one_shot` or `two_shot` kernel.
    pub const fn block_index(peer: u32) -> usize {
        BLOCKS + peer as usize
    }

    pub fn link(&self, link: Link) -> Span {
        assert!(
            link.channel < Self::CHANNELS_MAX,
            "{link:?}: there are {} channels",
            Self::CHANNELS_MAX
        );
        assert!((link.peer as usize) < RANKS_MAX, "{link:?}: there are {RANKS_MAX} ranks");
        self.word(Self::link_index(link))
    }

    /// The words of those kernels: [`RANKS_MAX`] for each block.
    pub(super) fn blocks(&self) -> Span {
        self.words(BLOCKS, Self::BLOCKS_MAX as usize * RANKS_MAX)
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

/// What the host raises so that kernels of its rank wait no more.
///
/// It is in the host's own memory: calls of the driver may wait for the very device that such a kernel keeps busy.
#[derive(Clone, Debug)]
pub struct AbortFlag {
    region: Arc<PinnedRegion>,
}

impl AbortFlag {
    /// A flag that is not raised.
    ///
    /// # Errors
    /// What the driver says: how much may be page-locked is limited.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let region = PinnedRegion::allocate(context, WORD_BYTES)?;
        Ok(Self { region })
    }

    pub fn raise(&self) {
        // Release: kernels that see it stop, and what they leave undone is not looked at.
        self.region.words()[0].store(1, Ordering::Release);
    }

    fn address(&self, user: &Context) -> u64 {
        self.region.address(user)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Waiter<'a> {
    /// What frees them. The one that then gives up leaves this rank's [`mark`](FlagPage::mark) in the pages of its
    /// peers, before anything behind it in its stream can report to them work that was not done.
    pub abort: &'a AbortFlag,
    /// Each rank's flags. None for a kernel that waits for nothing.
    pub pages: &'a [FlagPage],
    pub me: usize,
}

/// Has the layout of `AbortArgs` in flags.cuh.
#[repr(C)]
#[derive(Default)]
pub(super) struct AbortArgs {
    raised: u64,
    marks: [u64; RANKS_MAX],
    peers: u32,
    padding: u32,
}

const _: () = assert!(size_of::<AbortArgs>() == 8 * RANKS_MAX + 16);

impl Waiter<'_> {
    pub(super) fn assert_one_of(&self, ranks: usize) {
        assert_eq!(self.pages.len(), ranks, "one page of flags per rank");
        assert!(self.me < ranks, "rank {} of {ranks}", self.me);
    }

    pub(super) fn args(&self, user: &Context) -> AbortArgs {
        let mut args = AbortArgs { raised: self.abort.address(user), ..AbortArgs::default() };
        let peers = self.pages.iter().enumerate();
        for (_, page) in peers.filter(|(rank, _)| *rank != self.me) {
            page.span().used_by(user);
            args.marks[args.peers as usize] = page.mark(self.me as u32).word_address();
            args.peers += 1;
        }
        args
    }
}

/// One message of a plan, by way of a word.
#[derive(Clone, Debug)]
pub enum Signal {
    /// Raises the word to this value, after everything that the stream did before.
    Set(Span, u32),
    /// Waits until the word has reached this value, counted round its 32 bits.
    Wait(Span, u32),
}

/// The kernel of one warp that raises words and waits for them.
#[derive(Clone, Debug)]
pub struct SignalKernel {
    function: Function,
}

/// Messages of one launch, each of which has a thread.
const SIGNALS_MAX: usize = 32;

/// Has the layout of `SignalsArgs` in signals.cu.
#[repr(C)]
#[derive(Default)]
struct SignalsArgs {
    words: [u64; SIGNALS_MAX],
    values: [u32; SIGNALS_MAX],
    abort: AbortArgs,
    awaited: u32,
    len: u32,
}

const _: () = assert!(size_of::<SignalsArgs>() == 12 * SIGNALS_MAX + size_of::<AbortArgs>() + 8);
const _: () = assert!(SIGNALS_MAX <= u32::BITS as usize);
const _: () = assert!(MARKS + RANKS_MAX <= LINKS);
const _: () = assert!(LINKS + FlagPage::CHANNELS_MAX as usize * RANKS_MAX <= BLOCKS);

impl SignalKernel {
    /// Compiles the kernel.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    pub fn compile(nvrtc: Nvrtc, capability: ComputeCapability) -> Result<Cubin, CudaError> {
        let source = [FLAGS_SOURCE, include_str!("signals.cu")].concat();
        let defines = [format!("RANKS_MAX={RANKS_MAX}"), format!("SIGNALS_MAX={SIGNALS_MAX}")];
        nvrtc.compile(capability, "signals", &source, &defines)
    }

    pub fn load(context: &Context, cubin: &Cubin) -> Result<Self, CudaError> {
        let function = Module::load(context, cubin)?.function("signals")?;
        Ok(Self { function })
    }

    /// Queues messages. Those that signal, or that wait, without one of the other kind between them are done at once,
    /// so no two of them may be about one word; else they are done in this order. The kernel waits on the device, with
    /// one warp, until its words have been written or it gives up; from then on it raises no word.
    pub fn launch(
        &self,
        stream: &Stream,
        signals: &[Signal],
        waiter: Waiter<'_>,
    ) -> Result<(), CudaError> {
        for batch in signals.chunks(SIGNALS_MAX) {
            let mut args = SignalsArgs {
                abort: waiter.args(stream.context()),
                len: batch.len() as u32,
                ..SignalsArgs::default()
            };
            for (index, signal) in batch.iter().enumerate() {
                let (Signal::Set(word, value) | Signal::Wait(word, value)) = signal;
                word.used_by(stream.context());
                args.words[index] = word.word_address();
                args.values[index] = *value;
                args.awaited |= u32::from(matches!(signal, Signal::Wait(..))) << index;
            }
            let grid = Grid { blocks: 1, threads: SIGNALS_MAX as u32 };
            // SAFETY: the kernel takes one SignalsArgs, whose layout signals.cu states. It touches the
            // first `len` words and the marks, each 4 aligned bytes (`Span::word_address`) of device memory, and the
            // abort flag, a word of page-locked memory, all freed only after this context is idle (`used_by`).
            unsafe { self.function.launch(stream, grid, &args) }?;
        }
        Ok(())
    }
}
