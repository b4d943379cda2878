//! The ranks of a communicator: where they meet.

use std::collections::{HashMap, VecDeque};
use std::env;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::operation::{Data, Operation, Together};
use super::{IN_PROGRESS, INVALID_USAGE, SUCCESS};
use crate::table::lock;

pub(super) struct Clique {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The device of each rank that has joined.
    devices: Vec<Option<usize>>,
    /// Who has given up.
    gone: Vec<bool>,
    /// How many operations with all ranks each rank has begun.
    begun: Vec<u64>,
    /// Those operations, by their number.
    meetings: HashMap<u64, Meeting>,
    /// Messages by source and target.
    messages: HashMap<(usize, usize), Messages>,
    /// Ranks asked for different things.
    broken: bool,
}

/// An operation of all ranks.
struct Meeting {
    here: Vec<Option<(Data, Data, Together)>>,
    done: bool,
    left: usize,
}

#[derive(Default)]
struct Messages {
    waiting: VecDeque<Data>,
    sent: u64,
    taken: u64,
}

impl Clique {
    pub(super) fn of(ranks: usize) -> Self {
        Self {
            state: Mutex::new(State {
                devices: vec![None; ranks],
                gone: vec![false; ranks],
                begun: vec![0; ranks],
                meetings: HashMap::new(),
                messages: HashMap::new(),
                broken: false,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn join(&self, rank: usize, device: usize) {
        lock(&self.state).devices[rank] = Some(device);
    }

    /// Frees what waits on the rank's stream.
    pub(super) fn leave(&self, rank: usize) {
        lock(&self.state).gone[rank] = true;
        self.changed.notify_all();
    }

    /// An `ncclResult_t`.
    pub(super) fn state(&self) -> c_int {
        let state = lock(&self.state);
        let mut devices: Vec<usize> = state.devices.iter().copied().flatten().collect();
        let joined = devices.len();
        devices.sort_unstable();
        devices.dedup();
        let may_share = env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
        if state.broken || (devices.len() < joined && !may_share) {
            return INVALID_USAGE;
        }
        if joined < state.devices.len() {
            return IN_PROGRESS;
        }
        SUCCESS
    }

    /// Does what a task of the rank's stream is to do. Messages come last, all at once: each is offered before
    /// any is waited for.
    pub(super) fn perform(&self, rank: usize, operations: &[Operation]) {
        for operation in operations {
            if let Operation::Together {
                source,
                target,
                what,
            } = *operation
            {
                self.meet(rank, (source, target, what));
            }
        }
        let mut offers = Vec::new();
        for operation in operations {
            if let Operation::Send { source, peer } = *operation {
                let mut state = lock(&self.state);
                let messages = state.messages.entry((rank, peer)).or_default();
                messages.waiting.push_back(source);
                messages.sent += 1;
                offers.push((peer, messages.sent));
                self.changed.notify_all();
            }
        }
        for operation in operations {
            if let Operation::Recv { target, peer } = *operation {
                self.take(rank, peer, target);
            }
        }
        for (peer, number) in offers {
            let taken = |state: &State| state.messages[&(rank, peer)].taken >= number;
            drop(self.wait_until(rank, taken));
        }
    }

    fn meet(&self, rank: usize, own: (Data, Data, Together)) {
        let mut state = lock(&self.state);
        let ranks = state.devices.len();
        let number = state.begun[rank];
        state.begun[rank] += 1;
        let meeting = state.meetings.entry(number).or_insert_with(|| Meeting {
            here: vec![None; ranks],
            done: false,
            left: ranks,
        });
        meeting.here[rank] = Some(own);
        let here: Vec<_> = meeting.here.iter().copied().flatten().collect();
        if here.len() == ranks {
            // The memory of those who have given up may be free by now.
            let complete = !state.gone.contains(&true);
            state.broken |= complete && !run(&here);
            if let Some(meeting) = state.meetings.get_mut(&number) {
                meeting.done = true;
            }
            self.changed.notify_all();
        }
        drop(state);
        let mut state = self.wait_until(rank, |state| state.meetings[&number].done);
        if let Some(meeting) = state.meetings.get_mut(&number) {
            meeting.left -= 1;
            if meeting.left == 0 {
                state.meetings.remove(&number);
            }
        }
    }

    fn take(&self, rank: usize, peer: usize, target: Data) {
        let pair = (peer, rank);
        let offered = |state: &State| {
            let messages = state.messages.get(&pair);
            messages.is_some_and(|messages| !messages.waiting.is_empty())
        };
        let mut state = self.wait_until(rank, offered);
        let is_gone = state.gone[peer] || state.gone[rank];
        let messages = state.messages.entry(pair).or_default();
        let Some(source) = messages.waiting.pop_front().filter(|_| !is_gone) else {
            return;
        };
        messages.taken += 1;
        if source.bytes == target.bytes {
            copy(source, target);
        } else {
            state.broken = true;
        }
        self.changed.notify_all();
    }

    /// Waits, until then or until the rank has given up.
    fn wait_until(&self, rank: usize, is_so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        while !is_so(&state) && !state.gone[rank] {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }
}

/// Does it for all ranks, if they ask for the same.
fn run(here: &[(Data, Data, Together)]) -> bool {
    let (first, _, what) = here[0];
    let is_same = |(source, target, other): &(Data, Data, Together)| {
        (*other, source.bytes, target.bytes) == (what, first.bytes, first.bytes)
    };
    if !here.iter().all(is_same) {
        return false;
    }
    let sources: Vec<Data> = here.iter().map(|(source, ..)| *source).collect();
    let targets: Vec<Data> = here.iter().map(|(_, target, _)| *target).collect();
    match what {
        Together::Reduce(reduction, None) => reduction.run(&sources, &targets),
        Together::Reduce(reduction, Some(root)) => {
            reduction.run(&sources, &targets[root..=root]);
        }
        Together::Broadcast(root) => targets
            .iter()
            .for_each(|target| copy(sources[root], *target)),
    }
    true
}

fn copy(source: Data, target: Data) {
    // SAFETY: both were memory of a device when they were queued, equally long, and their owners keep them until
    // their streams are done, which wait for this. They may be the same.
    unsafe {
        std::ptr::copy(
            source.address as *const u8,
            target.address as *mut u8,
            source.bytes,
        );
    }
}
