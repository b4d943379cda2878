//! Measures how fast ranks read each other's memory: once, when the group is formed, behind the probe that
//! showed that they do.
//!
//! In round d every rank copies from the rank d behind it, all at once: each reads one rank and is read by
//! one. So links that pairs share are seen as slow as they are when a collective loads them, and the rounds
//! 1 and n - 1 are what rings and chains do. It takes a fraction of a millisecond a round where ranks read
//! 10 GB/s and more. No figure is given up for being odd: what follows from them has margins.

use std::time::{Duration, Instant};

use bonfire_collective::ProcessGroup;
use bonfire_cuda::{Context, CudaError, Event, EventState, Stream};
use bonfire_plan::Rank;

use crate::error::Result;
use crate::life::agree;
use crate::program::pair_bandwidths::PairBandwidths;
use crate::setup::shared::Shared;

/// Bytes of one copy: microseconds on the fastest links, tens of them on PCIe.
const COPY_BYTES: usize = 1 << 20;

/// Memory that it needs on every rank: what others read, and behind it what this rank reads into.
pub(crate) const PACE_BYTES: usize = 2 * COPY_BYTES;

/// Copies of a round. The first warms up and the last may be left alone on a link that others have done
/// with; of those between the fastest counts, since whatever disturbs makes a copy slower.
const COPIES: usize = 6;

/// Long for six copies of a MiB, also on a busy device.
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
enum PaceError {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(
        "to copy {} MiB from rank {peer} took more than {} s: look at `bonfire doctor`",
        (COPIES * COPY_BYTES) >> 20,
        DEADLINE.as_secs()
    )]
    Stuck { peer: Rank },
}

/// The memory of all ranks, [`PACE_BYTES`] each, which nobody uses yet, and what it takes to measure.
pub(crate) struct Pace<'a> {
    pub(crate) group: &'a ProcessGroup,
    pub(crate) context: &'a Context,
    pub(crate) stream: &'a Stream,
    pub(crate) memory: &'a Shared,
}

impl Pace<'_> {
    /// The figures of all ranks, the same on all of them.
    pub(crate) fn run(&self) -> Result<PairBandwidths> {
        let (me, world_size) = (self.group.rank(), self.group.world_size());
        let mut own = vec![0.0; world_size.len()];
        for distance in 1..world_size.get() {
            let peer = (me.get() + world_size.get() - distance) % world_size.get();
            let peer = Rank::new(peer);
            own[peer.index()] = agree(self.group, self.read_from(peer))?;
        }
        let all = self.group.all_gather(&own)?;
        Ok(PairBandwidths::new(world_size, all))
    }

    fn read_from(&self, peer: Rank) -> Result<f64, PaceError> {
        let theirs = self.memory.of(peer).part(0..COPY_BYTES)?;
        let into = self.memory.own().part(COPY_BYTES..PACE_BYTES)?;
        let events: Result<Vec<Event>, CudaError> =
            (0..=COPIES).map(|_| Event::timed(self.context)).collect();
        let events = events?;
        self.stream.record(&events[0])?;
        for done in &events[1..] {
            self.stream.copy(&into, &theirs)?;
            self.stream.record(done)?;
        }
        let until = Instant::now() + DEADLINE;
        if events[COPIES].wait_until(until)? == EventState::Pending {
            return Err(PaceError::Stuck { peer });
        }
        let mut fastest = Duration::MAX;
        for pair in events[1..COPIES].windows(2) {
            fastest = fastest.min(pair[1].since(&pair[0])?);
        }
        // A clock that did not move is not a reason to call a link endless.
        let seconds = fastest.as_secs_f64().max(1e-7);
        Ok(COPY_BYTES as f64 / seconds / 1e9)
    }
}
