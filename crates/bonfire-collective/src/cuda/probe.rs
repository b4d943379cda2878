//! Whether ranks really reach each other's memory: data goes both ways and is compared before anything
//! relies on it. Drivers have claimed access between devices that lost or changed data.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonfire_plan::Rank;
use bonfire_sys::cuda::{Context, CudaError, Event, EventState, PinnedRegion, Span, Stream};

use super::agreement::agree;
use super::error::CudaGroupError;
use crate::ProcessGroup;

/// Bytes that are read from each peer.
const READ_BYTES: usize = 64 << 10;

/// Bytes that are written to each peer.
const WRITE_BYTES: usize = 4 << 10;

/// Memory that the probe needs on every rank.
pub(super) const PROBE_BYTES: usize = 2 * READ_BYTES + 16 * WRITE_BYTES;

/// Long for 64 KiB, also on a busy device.
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error("word {word} {how} is {found:#010x} and not {expected:#010x}: {FIX}")]
    Wrong {
        how: String,
        word: usize,
        found: u32,
        expected: u32,
    },
    #[error("{how} took more than {} s: {FIX}", DEADLINE.as_secs())]
    Stuck { how: String },
}

const FIX: &str = "access between these devices does not work; look at `bonfire doctor`, and in a \
                   virtual machine or with an IOMMU turn ACS off";

/// The memory of all ranks, PROBE_BYTES each, which nobody uses yet, and what a probe needs.
pub(super) struct Probe<'a> {
    pub(super) group: &'a ProcessGroup,
    pub(super) context: &'a Context,
    pub(super) stream: &'a Stream,
    pub(super) spans: &'a [Span],
}

impl Probe<'_> {
    /// Fails on all ranks if any pair does not exchange data.
    pub(super) fn run(&self) -> Result<(), CudaGroupError> {
        let me = self.group.rank();
        agree(self.group, self.fill(me))?;
        agree(self.group, self.read_from_peers())?;
        agree(self.group, self.write_to_peers(me))?;
        agree(self.group, self.check_written(me))
    }

    fn fill(&self, me: Rank) -> Result<(), ProbeError> {
        let bytes: Vec<u8> = (0..READ_BYTES / 4)
            .flat_map(|word| pattern(me, word).to_ne_bytes())
            .collect();
        let own = self.spans[me.index()].part(0..READ_BYTES)?;
        Ok(self.stream.write(&own, &bytes)?)
    }

    fn read_from_peers(&self) -> Result<(), ProbeError> {
        let me = self.group.rank();
        let scratch = self.spans[me.index()].part(READ_BYTES..2 * READ_BYTES)?;
        for peer in self.group.world_size().ranks() {
            let theirs = self.spans[peer.index()].part(0..READ_BYTES)?;
            self.stream.copy(&scratch, &theirs)?;
            self.compare(&scratch, peer, &format!("read from rank {peer}"))?;
        }
        Ok(())
    }

    fn write_to_peers(&self, me: Rank) -> Result<(), ProbeError> {
        let own = self.spans[me.index()].part(0..WRITE_BYTES)?;
        for peer in self.group.world_size().ranks() {
            self.stream
                .copy(&self.spans[peer.index()].part(inbox(me))?, &own)?;
        }
        self.finish("writing to the other ranks")
    }

    fn check_written(&self, me: Rank) -> Result<(), ProbeError> {
        for peer in self.group.world_size().ranks() {
            let written = self.spans[me.index()].part(inbox(peer))?;
            self.compare(&written, peer, &format!("written by rank {peer}"))?;
        }
        Ok(())
    }

    fn compare(&self, span: &Span, from: Rank, how: &str) -> Result<(), ProbeError> {
        let pinned = PinnedRegion::allocate(self.context, span.len())?;
        self.stream.copy_to_pinned(&pinned, span)?;
        self.finish(how)?;
        for (word, found) in pinned.words().iter().enumerate() {
            let (found, expected) = (found.load(Ordering::Acquire), pattern(from, word));
            if found != expected {
                return Err(ProbeError::Wrong {
                    how: how.to_owned(),
                    word,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    fn finish(&self, how: &str) -> Result<(), ProbeError> {
        let event = Event::new(self.context)?;
        self.stream.record(&event)?;
        match event.wait_until(Instant::now() + DEADLINE)? {
            EventState::Done => Ok(()),
            EventState::Pending => Err(ProbeError::Stuck {
                how: how.to_owned(),
            }),
        }
    }
}

/// Where `from` writes in everybody's memory.
fn inbox(from: Rank) -> std::ops::Range<usize> {
    let start = 2 * READ_BYTES + from.index() * WRITE_BYTES;
    start..start + WRITE_BYTES
}

/// Different for every rank and word (a multiplicative hash, Knuth 6.4).
fn pattern(rank: Rank, word: usize) -> u32 {
    let seed = rank.get().wrapping_mul(0x0100_0193) ^ (word as u32);
    seed.wrapping_add(1).wrapping_mul(0x9e37_79b1)
}
