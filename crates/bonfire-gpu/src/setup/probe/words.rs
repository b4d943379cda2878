//! Whether words arrive, by which ranks wait for each other and are freed from waiting.
//!
//! Each rank's stream writes one to every peer's memory, a kernel of it another, and the stream waits for theirs,
//! as messages do. All are written before any is waited for. The kernel waits for nothing: a stream can be freed
//! by its own rank, whatever reaches a device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bonfire_cuda::{CudaError, Event, EventState, PinnedRegion, StreamOps};
use bonfire_kernels::launch::flags::{RANKS_MAX, Signal, Waiter};
use bonfire_plan::Rank;

use super::{FIX, INBOXES_END, Probe, ProbeError};
use crate::device::sync::Waiting;
use crate::error::Result;
use crate::life::agree;
use crate::setup::reach::{Refusal, gather};

/// Where the words are: one of each rank's stream, one of each rank's kernel.
const START: usize = INBOXES_END;
pub(crate) const END: usize = START + WRITERS.len() * RANKS_MAX * WORD_BYTES;
const WORD_BYTES: usize = 4;

/// Long for words that were written before.
const DEADLINE: Duration = Duration::from_secs(5);

/// What a word is once it was written; zero before.
const WRITTEN: u32 = 1;

#[derive(Clone, Copy, Debug)]
enum Writer {
    Stream,
    Kernel,
}

const WRITERS: [Writer; 2] = [Writer::Stream, Writer::Kernel];

impl Probe<'_> {
    /// The pairs between which words do not arrive, the same list on all ranks.
    pub(crate) fn exchange_words(&self, me: Rank) -> Result<Vec<Refusal>> {
        let mut refusals = Vec::new();
        // Before any stream waits: the driver may wait for streams where it allocates.
        let copy = PinnedRegion::allocate(self.context, END - START);
        let copy = agree(self.group, copy)?;
        agree(self.group, self.signal_peers(me, &mut refusals))?;
        // Nobody waits for a word that another could not write.
        let refused = gather(self.group, &refusals)?;
        if !refused.is_empty() {
            return Ok(refused);
        }
        agree(self.group, self.await_peers(me, &copy, &mut refusals))?;
        gather(self.group, &refusals)
    }

    fn signal_peers(&self, me: Rank, refusals: &mut Vec<Refusal>) -> Result<(), ProbeError> {
        let mut tells = Vec::new();
        for peer in self.peers(me) {
            let part = |writer| self.memory.of(peer).part(word(writer, me));
            let theirs = part(Writer::Stream)?;
            let written = StreamOps::new().write(&theirs, WRITTEN).queue(self.stream);
            let what = "its stream writes no words there";
            refuse(written, me, peer, what, refusals)?;
            tells.push(Signal::Set(part(Writer::Kernel)?, WRITTEN));
        }
        let Waiting { kernel, abort } = self.waiting;
        let waiter = Waiter { abort, pages: &[], me: me.index() };
        kernel.launch(self.stream, &tells, waiter)?;
        self.finish("writing words to the other ranks")
    }

    fn await_peers(
        &self,
        me: Rank,
        copy: &Arc<PinnedRegion>,
        refusals: &mut Vec<Refusal>,
    ) -> Result<(), ProbeError> {
        for (writer, peer) in self.writers(me) {
            let own = self.memory.own().part(word(writer, peer))?;
            let heard = StreamOps::new().wait(&own, WRITTEN).queue(self.stream);
            refuse(heard, me, peer, "its stream waits for no words", refusals)?;
        }
        let event = Event::new(self.context)?;
        self.stream.record(&event)?;
        if event.wait_until(Instant::now() + DEADLINE)? == EventState::Done {
            return Ok(());
        }
        let missing = self.missing(me, copy);
        for (writer, peer) in self.writers(me) {
            let own = self.memory.own().part(word(writer, peer))?;
            StreamOps::new().write(&own, WRITTEN).queue(self.control)?;
        }
        self.finish("being freed from waiting for words")?;
        for (writer, peer) in missing? {
            let writer = format!("{writer:?}").to_lowercase();
            let lost = format!("a word that its {writer} wrote there did not arrive: {FIX}");
            refusals.push(Refusal::new(peer, me, lost));
        }
        Ok(())
    }

    /// Whose words are not there, by the stream that waits for nothing.
    fn missing(
        &self,
        me: Rank,
        copy: &Arc<PinnedRegion>,
    ) -> Result<Vec<(Writer, Rank)>, ProbeError> {
        let words = self.memory.own().part(START..END)?;
        self.control.copy_to_pinned(copy, &words)?;
        self.finish_on(self.control, "reading words")?;
        let is_missing = |writer, peer| {
            let index = (word(writer, peer).start - START) / WORD_BYTES;
            copy.words()[index].load(Ordering::Acquire) != WRITTEN
        };
        let words = self.writers(me);
        Ok(words.filter(|&(writer, peer)| is_missing(writer, peer)).collect())
    }

    fn writers(&self, me: Rank) -> impl Iterator<Item = (Writer, Rank)> {
        WRITERS.into_iter().flat_map(move |writer| self.peers(me).map(move |peer| (writer, peer)))
    }

    fn peers(&self, me: Rank) -> impl Iterator<Item = Rank> + use<> {
        let ranks = self.group.world_size().ranks();
        ranks.filter(move |peer| *peer != me)
    }
}

/// Makes a call that the driver refused a reason not to use that way; a lost context is an error.
fn refuse(
    result: Result<(), CudaError>,
    by: Rank,
    of: Rank,
    what: &str,
    refusals: &mut Vec<Refusal>,
) -> Result<(), CudaError> {
    match result {
        Err(error) if error.is_sticky() => Err(error),
        Err(error) => {
            refusals.push(Refusal::new(by, of, format!("{what}: {error}")));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// The word of `from` in everybody's memory.
fn word(writer: Writer, from: Rank) -> Range<usize> {
    let start = START + (writer as usize * RANKS_MAX + from.index()) * WORD_BYTES;
    start..start + WORD_BYTES
}
