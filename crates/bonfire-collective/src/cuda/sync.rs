//! Barriers between ranks in the order of their streams, and how a rank is freed from one.

use bonfire_plan::{Rank, WorldSize};
use bonfire_sys::cuda::{
    BarrierKernel, BarrierLaunch, CudaError, FlagPage, Signals, Span, Stream, StreamOps,
};

use super::options::CudaSync;

/// Far ahead of any counter: what a word is set to so that nobody waits for it any more. A word counts
/// round its 32 bits, and half of them are "ahead".
const FAR_AHEAD: u32 = 1 << 30;

/// The flags of all ranks and how far each counter is.
#[derive(Debug)]
pub(super) struct Flags {
    me: Rank,
    world_size: WorldSize,
    pages: Vec<FlagPage>,
    sync: CudaSync,
    kernel: BarrierKernel,
    barriers: u32,
    rounds: u32,
    one_shots: u32,
    channels: Vec<Channel>,
    ops: StreamOps,
}

/// The two counters of a ring's channel at this rank.
#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    sent: u32,
    awaited: u32,
}

impl Flags {
    pub(super) fn new(
        me: Rank,
        world_size: WorldSize,
        pages: Vec<FlagPage>,
        sync: CudaSync,
        kernel: BarrierKernel,
    ) -> Self {
        Self {
            me,
            world_size,
            pages,
            sync,
            kernel,
            barriers: 0,
            rounds: 0,
            one_shots: 0,
            channels: vec![Channel::default(); FlagPage::CHANNELS_MAX as usize],
            ops: StreamOps::new(),
        }
    }

    pub(super) fn pages(&self) -> &[FlagPage] {
        &self.pages
    }

    /// Gives up all pages; nothing can be queued any more.
    pub(super) fn close(&mut self) -> Vec<Span> {
        let pages = std::mem::take(&mut self.pages);
        self.ops.clear();
        pages.iter().map(|page| page.span().clone()).collect()
    }

    pub(super) fn sync(&self) -> CudaSync {
        self.sync
    }

    /// Queues a barrier: what any rank queued before its own is done before what `stream` does behind it.
    pub(super) fn barrier(&mut self, stream: &Stream) -> Result<(), CudaError> {
        if self.world_size.len() == 1 {
            return Ok(());
        }
        match self.sync {
            CudaSync::Kernel => {
                self.barriers = self.barriers.wrapping_add(1);
                self.kernel.launch(
                    stream,
                    &BarrierLaunch {
                        pages: &self.pages,
                        me: self.me.index(),
                        seq: self.barriers,
                    },
                )
            }
            CudaSync::Stream => self.disseminate(stream),
        }
    }

    /// A dissemination barrier by stream memory operations: in round k every rank tells the one 2^k further
    /// that it and all it has heard of have arrived. Two operations per round and rank.
    fn disseminate(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.rounds = self.rounds.wrapping_add(1);
        let (ranks, me) = (self.world_size.len(), self.me.index());
        self.ops.clear();
        for round in 0..rounds(ranks) {
            let to = (me + (1 << round)) % ranks;
            self.ops
                .write(&self.pages[to].signal(Signals::Round(round)), self.rounds);
            self.ops
                .wait(&self.pages[me].signal(Signals::Round(round)), self.rounds);
        }
        self.ops.queue(stream)
    }

    /// The number of the next one-shot kernel.
    pub(super) fn next_one_shot(&mut self) -> u32 {
        self.one_shots = self.one_shots.wrapping_add(1);
        self.one_shots
    }

    /// Notes that the next rank be told, behind what `channel`'s stream did so far.
    pub(super) fn send(&mut self, channel: u32) {
        let next = self.world_size.next(self.me).index();
        let sent = &mut self.channels[channel as usize].sent;
        *sent = sent.wrapping_add(1);
        self.ops
            .write(&self.pages[next].signal(Signals::Channel(channel)), *sent);
    }

    /// Notes that the stream wait for what the previous rank tells next.
    pub(super) fn receive(&mut self, channel: u32) {
        let awaited = &mut self.channels[channel as usize].awaited;
        *awaited = awaited.wrapping_add(1);
        let word = self.pages[self.me.index()].signal(Signals::Channel(channel));
        self.ops.wait(&word, *awaited);
    }

    /// Queues what `send` and `receive` noted, in that order.
    pub(super) fn queue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let result = self.ops.queue(stream);
        self.ops.clear();
        result
    }

    /// Forgets what was noted and not queued, after an error.
    pub(super) fn clear(&mut self) {
        self.ops.clear();
    }

    /// Frees this rank's streams and kernels from whatever they wait for, by `control`, a stream that waits
    /// for nothing. The group is over then: results are garbage.
    pub(super) fn release(&mut self, control: &Stream) -> Result<(), CudaError> {
        let page = &self.pages[self.me.index()];
        let mut ops = StreamOps::new();
        ops.write(&page.abort(), 1);
        for round in 0..rounds(self.world_size.len()) {
            let word = page.signal(Signals::Round(round));
            ops.write(&word, self.rounds.wrapping_add(FAR_AHEAD));
        }
        for (number, channel) in self.channels.iter().enumerate() {
            let word = page.signal(Signals::Channel(number as u32));
            ops.write(&word, channel.awaited.wrapping_add(FAR_AHEAD));
        }
        ops.queue(control)
    }

    /// The ranks that keep this one waiting, given the words of its page: of those it has not heard of, the
    /// ones that are furthest behind.
    pub(super) fn missing(&self, words: &[u32]) -> Vec<Rank> {
        let lag =
            |word: usize, counter: u32| counter.wrapping_sub(words[word]).cast_signed().max(0);
        let lags: Vec<(Rank, i32)> = self
            .world_size
            .ranks()
            .filter(|rank| *rank != self.me)
            .map(|peer| {
                let barrier = lag(FlagPage::peer_index(peer.get()), self.barriers);
                let one_shot = lag(FlagPage::block_index(peer.get()), self.one_shots);
                (peer, barrier.max(one_shot))
            })
            .collect();
        let longest = lags.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
        if longest > 0 {
            let last = lags.iter().filter(|(_, lag)| *lag == longest);
            return last.map(|(rank, _)| *rank).collect();
        }
        let ranks = self.world_size.len();
        // Silence in a round may come from any rank on the way; name the one that was to speak.
        let silent = (0..rounds(ranks))
            .find(|round| lag(FlagPage::round_index(*round), self.rounds) > 0)
            .map(|round| (self.me.index() + ranks - (1 << round)) % ranks);
        if let Some(rank) = silent {
            return vec![Rank::new(rank as u32)];
        }
        let ring_waits = self.channels.iter().enumerate().any(|(number, channel)| {
            lag(FlagPage::channel_index(number as u32), channel.awaited) > 0
        });
        if ring_waits {
            return vec![self.world_size.prev(self.me)];
        }
        Vec::new()
    }
}

/// Rounds of a dissemination barrier: the logarithm of the ranks, rounded up.
fn rounds(ranks: usize) -> u32 {
    ranks.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::rounds;

    #[test]
    fn a_barrier_takes_the_logarithm_of_the_ranks() {
        let expected = [
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (8, 3),
            (9, 4),
            (16, 4),
        ];
        for (ranks, count) in expected {
            assert_eq!(rounds(ranks), count, "{ranks} ranks");
        }
    }
}
