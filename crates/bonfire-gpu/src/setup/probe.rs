//! Whether ranks really reach each other's memory: data goes both ways and is compared before anything relies on it.
//! Drivers have claimed access between devices that lost or changed data. Data that come wrong are a reason not to use
//! that way; data that do not come leave a stream that waits for them, and end the set-up.
//!
//! Behind the data go [`words`]: where those do not arrive, ranks could neither wait for each other nor be freed
//! from waiting.

mod words;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonfire_collective::ProcessGroup;
use bonfire_cuda::{Context, CudaError, Event, EventState, PinnedRegion, Span, Stream};
use bonfire_kernels::launch::flags::RANKS_MAX;
use bonfire_plan::Rank;

use crate::device::sync::Waiting;
use crate::error::Result;
use crate::life::agree;
use crate::setup::reach::{Refusal, gather};
use crate::setup::shared::Shared;

const READ_BYTES: usize = 64 << 10;

const WRITE_BYTES: usize = 4 << 10;

const INBOXES_END: usize = 2 * READ_BYTES + RANKS_MAX * WRITE_BYTES;

pub(crate) const PROBE_BYTES: usize = words::END;

/// Long for 64 KiB, also on a busy device.
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("{how} took more than {} s: {FIX}", DEADLINE.as_secs())]
    Stuck { how: String },
}

#[derive(Debug, thiserror::Error)]
#[error("word {word} {how} is {found:#010x} and not {expected:#010x}: {FIX}")]
struct Wrong {
    how: String,
    word: usize,
    found: u32,
    expected: u32,
}

const FIX: &str = "access between these devices does not work; look at `bonfire doctor`, and in a \
                   virtual machine or with an IOMMU turn ACS off";

/// The memory of all ranks, PROBE_BYTES each, zero, which nobody uses yet, and what a probe needs.
pub(crate) struct Probe<'a> {
    pub(crate) group: &'a ProcessGroup,
    pub(crate) context: &'a Context,
    pub(crate) stream: &'a Stream,
    /// Frees the other from waiting.
    pub(crate) control: &'a Stream,
    pub(crate) waiting: &'a Waiting,
    pub(crate) memory: &'a Shared,
}

impl Probe<'_> {
    /// The pairs that do not exchange data, the same list on all ranks.
    pub(crate) fn run(&self) -> Result<Vec<Refusal>> {
        let me = self.group.rank();
        let mut refusals = Vec::new();
        agree(self.group, self.fill(me))?;
        agree(self.group, self.read_from_peers(&mut refusals))?;
        agree(self.group, self.write_to_peers(me))?;
        agree(self.group, self.check_written(me, &mut refusals))?;
        let wrong = gather(self.group, &refusals)?;
        if !wrong.is_empty() {
            return Ok(wrong);
        }
        self.exchange_words(me)
    }

    fn fill(&self, me: Rank) -> Result<(), ProbeError> {
        let bytes: Vec<u8> =
            (0..READ_BYTES / 4).flat_map(|word| pattern(me, word).to_ne_bytes()).collect();
        let own = self.memory.own().part(0..READ_BYTES)?;
        Ok(self.stream.write(&own, &bytes)?)
    }

    fn read_from_peers(&self, refusals: &mut Vec<Refusal>) -> Result<(), ProbeError> {
        let me = self.group.rank();
        let scratch = self.memory.own().part(READ_BYTES..2 * READ_BYTES)?;
        for peer in self.group.world_size().ranks() {
            let theirs = self.memory.of(peer).part(0..READ_BYTES)?;
            self.stream.copy(&scratch, &theirs)?;
            let read = self.compare(&scratch, peer, &format!("read from rank {peer}"))?;
            refusals.extend(read.err().map(|wrong| Refusal::new(me, peer, wrong)));
        }
        Ok(())
    }

    fn write_to_peers(&self, me: Rank) -> Result<(), ProbeError> {
        let own = self.memory.own().part(0..WRITE_BYTES)?;
        for peer in self.group.world_size().ranks() {
            self.stream.copy(&self.memory.of(peer).part(inbox(me))?, &own)?;
        }
        self.finish("writing to the other ranks")
    }

    fn check_written(&self, me: Rank, refusals: &mut Vec<Refusal>) -> Result<(), ProbeError> {
        for peer in self.group.world_size().ranks() {
            let written = self.memory.own().part(inbox(peer))?;
            let found = self.compare(&written, peer, &format!("written by rank {peer}"))?;
            refusals.extend(found.err().map(|wrong| Refusal::new(peer, me, wrong)));
        }
        Ok(())
    }

    /// Whether the memory holds what `from` has written.
    fn compare(&self, span: &Span, from: Rank, how: &str) -> Result<Result<(), Wrong>, ProbeError> {
        let pinned = PinnedRegion::allocate(self.context, span.len())?;
        self.stream.copy_to_pinned(&pinned, span)?;
        self.finish(how)?;
        for (word, found) in pinned.words().iter().enumerate() {
            let (found, expected) = (found.load(Ordering::Acquire), pattern(from, word));
            if found != expected {
                return Ok(Err(Wrong { how: how.to_owned(), word, found, expected }));
            }
        }
        Ok(Ok(()))
    }

    fn finish(&self, how: &str) -> Result<(), ProbeError> {
        self.finish_on(self.stream, how)
    }

    fn finish_on(&self, stream: &Stream, how: &str) -> Result<(), ProbeError> {
        let event = Event::new(self.context)?;
        stream.record(&event)?;
        match event.wait_until(Instant::now() + DEADLINE)? {
            EventState::Done => Ok(()),
            EventState::Pending => Err(ProbeError::Stuck { how: how.to_owned() }),
        }
    }
}

fn inbox(from: Rank) -> std::ops::Range<usize> {
    let start = 2 * READ_BYTES + from.index() * WRITE_BYTES;
    start..start + WRITE_BYTES
}

/// Different for every rank and word (a multiplicative hash, Knuth 6.4).
fn pattern(rank: Rank, word: usize) -> u32 {
    let seed = rank.get().wrapping_mul(0x0100_0193) ^ (word as u32);
    seed.wrapping_add(1).wrapping_mul(0x9e37_79b1)
}
