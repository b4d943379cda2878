//! Messages between ranks in the order of their streams, and how a rank is freed from waiting for one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bonfire_cuda::{CudaError, PinnedRegion, Stream, StreamOps};
use bonfire_kernels::launch::flags::{AbortFlag, FlagPage, Link, Signal, SignalKernel, Waiter};
use bonfire_plan::{Rank, WorldSize};

use crate::options::CudaSync;

/// Far ahead of any counter: what a word is set to so that nobody waits for it any more. A word counts
/// round its 32 bits, and half of them are "ahead".
const FAR_AHEAD: u32 = 1 << 30;

/// The channel of the main stream; lanes have those behind it.
pub(crate) const MAIN: u32 = 0;

/// The channel of what two ranks do alone: the others cannot count its messages.
pub(crate) const PAIRS: u32 = FlagPage::CHANNELS_MAX - 1;

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) kernel: SignalKernel,
    pub(crate) abort: AbortFlag,
}

/// The flags of all ranks and how far each counter is. Without pages nothing can be queued.
#[derive(Debug)]
pub(crate) struct Flags {
    me: Rank,
    world_size: WorldSize,
    pages: Vec<FlagPage>,
    sync: CudaSync,
    waiting: Waiting,
    /// Messages to each peer, by channel and peer.
    signalled: Vec<u32>,
    /// Messages from each peer that were waited for, by channel and peer.
    heard: Vec<u32>,
    /// Messages that each rank sends all others together in what was queued so far, by channel and rank.
    due: Vec<u32>,
    pub(crate) numbers: Numbers,
    noted: Vec<Signal>,
    ops: StreamOps,
}

/// The numbers of one-shot and two-shot kernels: each is larger than the one before, round 32 bits.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// That of the kernel that was queued last.
    pub(crate) last: u32,
    /// The largest that a packet in the inboxes may have, which can be any before they are cleared.
    packets: u32,
}

impl Numbers {
    pub(crate) const fn new() -> Self {
        Self { last: 0, packets: u32::MAX }
    }

    /// Whether the number of the next one-shot kernel may be that of a packet which is in the inboxes already.
    pub(crate) fn come_again(&self) -> bool {
        self.last.wrapping_add(1) <= self.packets
    }

    /// The number of the next one-shot kernel, whose packets find inboxes of smaller ones. As two-shots take two,
    /// those of one-shots are odd and even in turns, until the inboxes are cleared.
    pub(crate) fn one_shot(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.packets = self.last;
        self.last
    }

    /// The first of the two numbers of the next two-shot kernel.
    pub(crate) fn two_shot(&mut self) -> u32 {
        let first = self.last.wrapping_add(1);
        self.last = first.wrapping_add(1);
        first
    }
}

impl Flags {
    pub(crate) fn new(
        me: Rank,
        world_size: WorldSize,
        pages: Vec<FlagPage>,
        sync: CudaSync,
        waiting: Waiting,
    ) -> Self {
        let counters = vec![0; FlagPage::CHANNELS_MAX as usize * world_size.len()];
        Self {
            me,
            world_size,
            pages,
            sync,
            waiting,
            signalled: counters.clone(),
            heard: counters.clone(),
            due: counters,
            numbers: Numbers::new(),
            noted: Vec::new(),
            ops: StreamOps::new(),
        }
    }

    /// This rank, as its kernels know it.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        Waiter { abort: &self.waiting.abort, pages: &self.pages, me: self.me.index() }
    }

    /// Gives up all pages; nothing can be queued any more.
    pub(crate) fn close(&mut self) {
        self.pages.clear();
        self.clear();
        self.ops.clear();
    }

    pub(crate) fn sync(&self) -> CudaSync {
        self.sync
    }

    /// Notes how many messages each rank sends in the program that comes now.
    pub(crate) fn expect(&mut self, channel: u32, tells: &[u32]) {
        for (rank, tells) in self.world_size.ranks().zip(tells) {
            let index = self.index(channel, rank);
            self.due[index] = self.due[index].wrapping_add(*tells);
        }
    }

    /// Notes that the peer is to be notified of what `channel`'s stream did so far.
    pub(crate) fn signal(&mut self, channel: u32, peer: Rank) {
        let index = self.index(channel, peer);
        let signalled = &mut self.signalled[index];
        *signalled = signalled.wrapping_add(1);
        let word = self.pages[peer.index()].link(link(channel, self.me));
        note(&mut self.noted, Signal::Set(word, *signalled));
    }

    /// Notes that the stream wait for the next message of the peer.
    pub(crate) fn wait(&mut self, channel: u32, peer: Rank) {
        let index = self.index(channel, peer);
        let heard = &mut self.heard[index];
        *heard = heard.wrapping_add(1);
        let word = self.pages[self.me.index()].link(link(channel, peer));
        note(&mut self.noted, Signal::Wait(word, *heard));
    }

    /// Queues what `signal` and `wait` noted, in that order. Lanes always wait in their streams: as many
    /// kernels that wait as there are lanes and ranks might not fit on a device beside each other.
    pub(crate) fn queue(&mut self, channel: u32, stream: &Stream) -> Result<(), CudaError> {
        if self.noted.is_empty() {
            return Ok(());
        }
        let result = if channel == MAIN && self.sync == CudaSync::Kernel {
            let kernel = &self.waiting.kernel;
            kernel.launch(stream, &self.noted, self.waiter())
        } else {
            self.ops.clear();
            for signal in &self.noted {
                match signal {
                    Signal::Set(word, value) => self.ops.write(word, *value),
                    Signal::Wait(word, value) => self.ops.wait(word, *value),
                };
            }
            self.ops.queue(stream)
        };
        self.clear();
        result
    }

    /// Forgets what was noted and not queued, after an error.
    pub(crate) fn clear(&mut self) {
        self.noted.clear();
    }

    /// Frees this rank's kernels from whatever they wait for, and its streams by `control`, one that waits for nothing.
    /// The group is over then: results are garbage. What other ranks signal later sets their words back, so that
    /// streams are freed for good when they are done, or the others are.
    pub(crate) fn release(&mut self, control: &Stream) -> Result<(), CudaError> {
        self.waiting.abort.raise();
        let Some(page) = self.pages.get(self.me.index()) else {
            return Ok(()); // Nothing waits for anybody.
        };
        let mut ops = StreamOps::new();
        // First: what the streams signal then is not true, and a rank that sees it finds the mark.
        for (peer, page) in self.world_size.ranks().zip(&self.pages) {
            if peer != self.me {
                ops.write(&page.mark(self.me.get()), 1);
            }
        }
        ops.write(&page.given_up(), 1);
        for (channel, peer, heard) in self.links(&self.heard) {
            let word = page.link(link(channel, peer));
            ops.write(&word, heard.wrapping_add(FAR_AHEAD));
        }
        ops.queue(control)
    }

    /// Queues a copy of this rank's marks. Whether there are any.
    pub(crate) fn copy_marks(
        &self,
        stream: &Stream,
        target: &Arc<PinnedRegion>,
    ) -> Result<bool, CudaError> {
        match self.pages.get(self.me.index()) {
            Some(page) if self.world_size.len() > 1 => {
                stream.copy_to_pinned(target, &page.marks()).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The ranks that keep the others waiting, given the words of all pages.
    pub(crate) fn missing(&self, pages: &[Vec<u32>]) -> Missing {
        let progress = Progress {
            me: self.me,
            world_size: self.world_size,
            due: &self.due,
            heard: &self.heard,
            shots: self.numbers.last,
        };
        progress.missing(pages)
    }

    fn index(&self, channel: u32, rank: Rank) -> usize {
        index(self.world_size, channel, rank)
    }

    fn links<'a>(&self, counters: &'a [u32]) -> impl Iterator<Item = (u32, Rank, u32)> + 'a {
        let ranks = self.world_size.len();
        let used = counters.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(move |(index, count)| {
            let rank = Rank::new((index % ranks) as u32);
            ((index / ranks) as u32, rank, *count)
        })
    }
}

/// Notes a message. Messages of one kind are sent or awaited at once, so of several on one word
/// only the last is kept: a word that has reached its value has reached those before.
fn note(noted: &mut Vec<Signal>, signal: Signal) {
    let kind = std::mem::discriminant(&signal);
    let word = |signal: &Signal| match signal {
        Signal::Set(word, _) | Signal::Wait(word, _) => word.address(),
    };
    let mut run = noted.iter_mut().rev().take_while(|other| std::mem::discriminant(*other) == kind);
    match run.find(|other| word(other) == word(&signal)) {
        Some(before) => *before = signal,
        None => noted.push(signal),
    }
}

fn link(channel: u32, peer: Rank) -> Link {
    let peer = peer.get();
    Link { channel, peer }
}

/// Where the counter of a channel and a rank is.
fn index(world_size: WorldSize, channel: u32, rank: Rank) -> usize {
    channel as usize * world_size.len() + rank.index()
}

/// Whether any rank has left its mark, in a copy of them: it may have signalled what was not done.
pub(crate) fn is_marked(copy: &PinnedRegion) -> bool {
    let mut marks = copy.words().iter();
    marks.any(|mark| mark.load(Ordering::Acquire) != 0)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// These, or nobody but a slow device.
    Ranks(Vec<Rank>),
    /// A rank has given up already and moved the words out of reach: they mean nothing any more,
    /// but the group has failed.
    GivenUp,
}

/// How far the ranks were to come in what was queued.
struct Progress<'a> {
    me: Rank,
    world_size: WorldSize,
    /// The messages due, as in [`Flags`].
    due: &'a [u32],
    heard: &'a [u32],
    shots: u32,
}

impl Progress<'_> {
    /// The ranks that have sent least of what they were to send: one that merely waits for another
    /// has already sent something.
    fn missing(&self, pages: &[Vec<u32>]) -> Missing {
        if pages.is_empty() {
            return Missing::Ranks(Vec::new());
        }
        if pages.iter().any(|page| self.is_given_up(page)) {
            return Missing::GivenUp;
        }
        let others = || self.world_size.ranks().filter(|rank| *rank != self.me);
        let longest = others().map(|rank| self.lag(rank, pages)).max();
        let longest = longest.filter(|longest| *longest > 0);
        let is_last = |rank: &Rank| Some(self.lag(*rank, pages)) == longest;
        Missing::Ranks(others().filter(is_last).collect())
    }

    /// How much a rank has not sent yet.
    fn lag(&self, rank: Rank, pages: &[Vec<u32>]) -> i32 {
        let own = &pages[self.me.index()];
        let shots = ahead(self.shots, own[FlagPage::block_index(rank.get())]);
        let alone = ahead(self.heard_of(PAIRS, rank), signalled(own, PAIRS, rank)).max(0);
        let together = (0..PAIRS).map(|channel| {
            let seen = pages.iter().map(|page| signalled(page, channel, rank));
            let seen = seen.fold(0_u32, u32::wrapping_add);
            ahead(self.due_of(channel, rank), seen).max(0)
        });
        together.sum::<i32>().max(shots).max(alone)
    }

    /// Whether the page's rank was freed: it raised its first word, and then the words of its links further than
    /// anybody raises them. Both are looked at, because a page is not read at one instant.
    fn is_given_up(&self, page: &[u32]) -> bool {
        let is_far = |channel: u32, rank: Rank| {
            ahead(signalled(page, channel, rank), self.due_of(channel, rank)) > FAR_AHEAD as i32 / 2
        };
        let mut channels = 0..PAIRS;
        page[FlagPage::GIVEN_UP_INDEX] != 0
            || channels.any(|channel| self.world_size.ranks().any(|rank| is_far(channel, rank)))
    }

    fn due_of(&self, channel: u32, rank: Rank) -> u32 {
        self.due[index(self.world_size, channel, rank)]
    }

    fn heard_of(&self, channel: u32, rank: Rank) -> u32 {
        self.heard[index(self.world_size, channel, rank)]
    }
}

/// What a rank has signalled to the owner of a page.
fn signalled(page: &[u32], channel: u32, rank: Rank) -> u32 {
    page[FlagPage::link_index(link(channel, rank))]
}

/// How far one counter is ahead of another, round their 32 bits.
fn ahead(counter: u32, other: u32) -> i32 {
    counter.wrapping_sub(other).cast_signed()
}

#[cfg(test)]
mod tests;
