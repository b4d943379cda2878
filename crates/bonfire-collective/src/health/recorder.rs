//! The flight recorder: the last operations of this rank, readable while it hangs.
//!
//! One thread at a time writes, the one that runs the operation; anybody reads, above all the
//! thread that watches the control channel, when the group has failed and the writer may be stuck.
//! An entry is a handful of atomic words under a version that is odd while they change (a seqlock,
//! see Boehm 2012, "Can seqlocks get along with programming language memory models?"), so writing
//! costs no lock and what is read is never half of two operations. What the words say in numbers is
//! spelt out in a table of calls, which is locked only when a call is made for the first time.

mod progress;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use bonfire_plan::{Collective, Operation};
use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};

use bonfire_connect::platform::clock;
use bonfire_connect::platform::sync::Mutex;

pub use progress::{PhaseProgress, Progress, StepProgress};

use progress::Current;
pub(crate) use progress::Entered;

const ENTRIES: u64 = 256;
/// Calls that are spelt out; one that is older than this many others is forgotten.
const CALLS_MAX: usize = 4096;
/// Operations on less than this many bytes are mostly over within a microsecond, of which reading the
/// clock twice would be a tenth: they begin by the clock that the kernel advances every few milliseconds.
const EXACT_BYTES_MIN: usize = 4 << 10;

/// How long an operation took, as far as its end shows without a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// It was small and never waited for long: no time at all.
    Instant,
    /// Longer: its end is worth a look at the clock.
    Timed,
}

impl Pace {
    /// Of an operation on `bytes` bytes that waited for so long.
    fn of(bytes: usize, waited: Duration) -> Self {
        if bytes < EXACT_BYTES_MIN && waited.is_zero() { Self::Instant } else { Self::Timed }
    }
}

/// What was called, and from where; the number of the operation is that of no particular call.
#[derive(Clone, Debug)]
struct Call {
    operation: Operation,
    /// What the program calls the data: a bucket, a parameter.
    name: Option<String>,
}

/// A name that calls can have; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Name(u32);

#[derive(Clone, Copy, Debug)]
pub(crate) struct CallIndex(u64);

/// When an operation was called, if it had to wait for its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Enqueued(u64);

/// One operation of a flight record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightOperation {
    /// What was called, and from where.
    pub operation: Operation,
    /// What the program calls the data, if it has said so.
    pub name: Option<String>,
    /// How long before the file was written it was called, if it had to wait for those called before it,
    /// as an operation in the background does.
    #[serde(default)]
    pub enqueued_ago: Option<Duration>,
    /// How long before the file was written it began.
    pub started_ago: Duration,
    /// How long before the file was written it ended; `None` if it had not.
    pub ended_ago: Option<Duration>,
}

impl FlightOperation {
    /// How long it waited for the operations called before it.
    pub fn queued(&self) -> Duration {
        let enqueued_ago = self.enqueued_ago.unwrap_or_default();
        enqueued_ago.saturating_sub(self.started_ago)
    }

    /// Returns true if another rank's operation is the same one of the group.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (&self.operation, &other.operation);
        one.seq == two.seq && one.collective == two.collective
    }

    /// Bytes of its data in the collective.
    pub fn bytes(&self) -> u64 {
        let Operation { count, dtype, .. } = self.operation;
        count.saturating_mul(dtype.size_bytes() as u64)
    }
}

impl fmt::Display for FlightOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        match &self.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

/// An entry that is one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// Odd while the rest is being written.
    version: AtomicU64,
    /// Which operation of this rank it is, from 0.
    number: AtomicU64,
    call: AtomicU64,
    seq: AtomicU64,
    /// As the next, of the call; 0 where it began at once.
    enqueued: AtomicU64,
    /// Nanoseconds since the recorder began.
    started: AtomicU64,
    /// The same; 0 while the operation runs.
    ended: AtomicU64,
}

/// Names that are kept; more go without.
const NAMES_MAX: usize = 1 << 16;

/// Calls by their index, of which the oldest may be forgotten.
#[derive(Debug, Default)]
struct Calls {
    known: VecDeque<Call>,
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Names {
    texts: Vec<String>,
    numbers: HashMap<String, Name, FixedState>,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    /// What the exact and the coarse clock said when the recorder began.
    origin: (Instant, Duration),
    entries: Box<[Entry]>,
    written: AtomicU64,
    enqueued: AtomicU64,
    calls: Mutex<Calls>,
    names: Mutex<Names>,
    current: Current,
    /// Nanoseconds of operations, but those of two ranks, since they first waited for another rank.
    waited: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            origin: (clock::now(), clock::coarse()),
            entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
            written: AtomicU64::new(0),
            enqueued: AtomicU64::new(0),
            calls: Mutex::default(),
            names: Mutex::default(),
            current: Current::default(),
            waited: AtomicU64::new(0),
        }
    }
}

impl Recorder {
    pub(crate) fn name(&self, text: &str) -> Name {
        self.names.lock().number_of(text)
    }

    /// Spells a call out, for the operations that will be recorded with this index.
    pub(crate) fn learn(&self, operation: Operation, name: Name) -> CallIndex {
        let name = self.names.lock().text_of(name);
        let call = Call { operation, name };
        let mut calls = self.calls.lock();
        if calls.known.len() >= CALLS_MAX {
            calls.known.pop_front();
            calls.forgotten += 1;
        }
        calls.known.push_back(call);
        CallIndex(calls.forgotten + calls.known.len() as u64 - 1)
    }

    /// An operation is called that will have to wait for its turn.
    pub(crate) fn enqueue(&self) -> Enqueued {
        Enqueued(self.exact_time().max(1))
    }

    /// The operation that begins next was called then, or just now by default. Only who has the turn may say so.
    pub(crate) fn dequeue(&self, Enqueued(at): Enqueued) {
        self.enqueued.store(at, Ordering::Relaxed);
    }

    /// An operation on `bytes` bytes begins. Only one thread at a time may record.
    pub(crate) fn begin(&self, call: CallIndex, seq: u64, bytes: usize) {
        let number = self.written.load(Ordering::Relaxed);
        let entry = self.entry(number);
        let version = entry.version.load(Ordering::Relaxed);
        entry.version.store(version + 1, Ordering::Relaxed);
        // Pairs with the fence in `read`: who saw any of the words below sees the odd version.
        fence(Ordering::Release);
        entry.number.store(number, Ordering::Relaxed);
        entry.call.store(call.0, Ordering::Relaxed);
        entry.seq.store(seq, Ordering::Relaxed);
        // Whatever else the caller runs in the same turn did not wait.
        let enqueued = self.enqueued.load(Ordering::Relaxed);
        entry.enqueued.store(enqueued, Ordering::Relaxed);
        self.enqueued.store(0, Ordering::Relaxed);
        entry.started.store(self.time(bytes), Ordering::Relaxed);
        entry.ended.store(0, Ordering::Relaxed);
        entry.version.store(version + 2, Ordering::Release);
        self.written.store(number + 1, Ordering::Release);
    }

    /// The operation that began last, on `bytes` bytes, has ended, so long after it first waited for another rank.
    pub(crate) fn end(&self, collective: Collective, bytes: usize, waited: Duration) {
        // A stage of a pipeline waits for its neighbour, whose turn comes first, and not for a slow rank.
        if !waited.is_zero() && !collective.is_point_to_point() {
            // Only the recording thread writes it.
            let before = self.waited.load(Ordering::Relaxed);
            let after = before.wrapping_add(waited.as_nanos() as u64);
            self.waited.store(after, Ordering::Relaxed);
        }
        self.end_at_pace(Pace::of(bytes, waited));
    }

    /// How long all operations but those of two ranks have taken since they first waited for
    /// another rank, the one under way from its beginning, and for how long that has been counted.
    pub(crate) fn waited(&self) -> (Duration, Duration) {
        let waited = Duration::from_nanos(self.waited.load(Ordering::Relaxed));
        let latest = self.records().next();
        let pending = latest.filter(|record| {
            let collective = record.operation.collective;
            record.ended_ago.is_none() && !collective.is_point_to_point()
        });
        let pending = pending.map_or(Duration::ZERO, |record| record.started_ago);
        (waited + pending, Duration::from_nanos(self.exact_time()))
    }

    /// `pace` says whether the clock is worth a look.
    fn end_at_pace(&self, pace: Pace) {
        let number = self.written.load(Ordering::Relaxed) - 1;
        let entry = self.entry(number);
        let ended = match pace {
            Pace::Instant => entry.started.load(Ordering::Relaxed),
            Pace::Timed => self.exact_time(),
        };
        entry.ended.store(ended.max(1), Ordering::Release);
    }

    /// The operation that began last was none: it begins again in another way.
    pub(crate) fn withdraw(&self) {
        let number = self.written.load(Ordering::Relaxed) - 1;
        let enqueued = self.entry(number).enqueued.load(Ordering::Relaxed);
        self.enqueued.store(enqueued, Ordering::Relaxed);
        self.written.store(number, Ordering::Release);
    }

    /// The last operations, the latest first, as far as they are still there.
    pub(crate) fn records(&self) -> impl Iterator<Item = FlightOperation> {
        let written = self.written.load(Ordering::Acquire);
        let oldest = written.saturating_sub(ENTRIES);
        (oldest..written).rev().filter_map(|number| self.read(number))
    }

    /// One operation; `None` if it was overwritten meanwhile or its call is forgotten.
    fn read(&self, number: u64) -> Option<FlightOperation> {
        let entry = self.entry(number);
        let version = entry.version.load(Ordering::Acquire);
        let found = entry.number.load(Ordering::Relaxed);
        let call = entry.call.load(Ordering::Relaxed);
        let seq = entry.seq.load(Ordering::Relaxed);
        let enqueued = entry.enqueued.load(Ordering::Relaxed);
        let started = entry.started.load(Ordering::Relaxed);
        let ended = entry.ended.load(Ordering::Acquire);
        fence(Ordering::Acquire);
        let changed = entry.version.load(Ordering::Relaxed) != version;
        if changed || !version.is_multiple_of(2) || found != number {
            return None;
        }
        let Call { operation, name } = self.calls.lock().get(call)?;
        let now = self.exact_time();
        let ago = |time: u64| Duration::from_nanos(now.saturating_sub(time));
        Some(FlightOperation {
            operation: Operation { seq, ..operation },
            name,
            // A beginning by the coarse clock can seem earlier than the call.
            enqueued_ago: (enqueued != 0).then(|| ago(enqueued).max(ago(started))),
            started_ago: ago(started),
            ended_ago: (ended != 0).then(|| ago(ended)),
        })
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.entries[(number % ENTRIES) as usize]
    }

    fn time(&self, bytes: usize) -> u64 {
        if bytes < EXACT_BYTES_MIN { self.coarse_time() } else { self.exact_time() }
    }

    fn coarse_time(&self) -> u64 {
        clock::coarse().saturating_sub(self.origin.1).as_nanos() as u64
    }

    fn exact_time(&self) -> u64 {
        clock::since(self.origin.0).as_nanos() as u64
    }
}

impl Calls {
    fn get(&self, index: u64) -> Option<Call> {
        let place = index.checked_sub(self.forgotten)?;
        self.known.get(usize::try_from(place).ok()?).cloned()
    }
}

impl Names {
    fn number_of(&mut self, text: &str) -> Name {
        if let Some(name) = self.numbers.get(text) {
            return *name;
        }
        if self.texts.len() >= NAMES_MAX {
            return Name::default();
        }
        self.texts.push(text.to_owned());
        let name = Name(self.texts.len() as u32);
        self.numbers.insert(text.to_owned(), name);
        name
    }

    fn text_of(&self, Name(number): Name) -> Option<String> {
        let place = (number as usize).checked_sub(1)?;
        self.texts.get(place).cloned()
    }
}

#[cfg(test)]
mod tests;
