//! A rank of a communicator, which does its part of every operation.
//!
//! It sends the others the place of its data, reads theirs, and writes to its own memory when all
//! have read that: whether they are threads of one process or processes makes no difference. It
//! waits for the others until it gives up, as NCCL does: that one of them is gone somebody else
//! must notice.

use std::collections::HashMap;
use std::env;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::mailbox::{Mailbox, Sent};
use super::note::{Lane, Note, Offer, Place, Traffic};
use super::number::Step;
use super::operation::{Data, Operation, Together};
use super::{IN_PROGRESS, INVALID_USAGE, REMOTE_ERROR, SUCCESS};
use crate::settings::{Fault, Settings};
use crate::table::lock;

pub(super) struct Member {
    rank: usize,
    mailbox: Mailbox,
    state: Mutex<State>,
    changed: Condvar,
    reader: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    /// The device of each rank that is known to have joined.
    devices: Vec<Option<u64>>,
    traffic: HashMap<(usize, Lane), Traffic>,
    /// This rank has given up.
    is_gone: bool,
    is_broken: bool,
    /// The others are out of reach.
    is_cut_off: bool,
}

impl State {
    fn of(&mut self, peer: usize, lane: Lane) -> &mut Traffic {
        self.traffic.entry((peer, lane)).or_default()
    }
}

impl Member {
    pub(super) fn join(
        rank: usize,
        group: &str,
        ranks: usize,
        device: u64,
    ) -> io::Result<Arc<Self>> {
        let mut devices = vec![None; ranks];
        devices[rank] = Some(device);
        let member = Arc::new(Self {
            rank,
            mailbox: Mailbox::open(group, rank)?,
            state: Mutex::new(State {
                devices,
                traffic: HashMap::new(),
                is_gone: false,
                is_broken: false,
                is_cut_off: false,
            }),
            changed: Condvar::new(),
            reader: Mutex::new(None),
        });
        let (own, name) = (Arc::clone(&member), "stand-in NCCL".to_owned());
        let reader =
            thread::Builder::new().name(name).spawn(move || own.listen(Note::Here(device)))?;
        *lock(&member.reader) = Some(reader);
        Ok(member)
    }

    /// Gives up: frees what waits on the rank's stream.
    pub(super) fn leave(&self) {
        lock(&self.state).is_gone = true;
        self.changed.notify_all();
        let reader = lock(&self.reader).take();
        // It panics nowhere.
        let _ = reader.map(JoinHandle::join);
    }

    /// The state as an `ncclResult_t`.
    pub(super) fn state(&self) -> c_int {
        let state = lock(&self.state);
        let mut devices: Vec<u64> = state.devices.iter().copied().flatten().collect();
        let joined = devices.len();
        devices.sort_unstable();
        devices.dedup();
        let may_share = env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
        if state.is_broken || (devices.len() < joined && !may_share) {
            return INVALID_USAGE;
        }
        if state.is_cut_off {
            return REMOTE_ERROR;
        }
        if joined < state.devices.len() {
            return IN_PROGRESS;
        }
        SUCCESS
    }

    /// Does what a task of the rank's stream is to do. Messages come last, all at once: each is offered before
    /// any is waited for.
    pub(super) fn perform(&self, operations: &[Operation]) {
        if Settings::get().has(Fault::NcclLinkBreaks) {
            thread::sleep(Duration::from_millis(200));
            lock(&self.state).is_cut_off = true;
            let _ = self.wait(|_| None::<()>);
            return;
        }
        for operation in operations {
            if let Operation::Together { source, target, what } = *operation
                && self.meet(source, target, what).is_none()
            {
                return;
            }
        }
        // Who has given up does not come back.
        let _ = self.exchange(operations);
    }

    /// An operation of all ranks. `None` if this one has given up.
    fn meet(&self, source: Data, target: Data, what: Together) -> Option<()> {
        let number = what.number();
        let peers = self.peers();
        let offered: Option<Vec<u64>> =
            peers.iter().map(|peer| self.offer(*peer, Lane::Together, number, source)).collect();
        let (offered, ranks) = (offered?, peers.len() + 1);
        let mut result: Option<Vec<u8>> = None;
        for rank in 0..ranks {
            let place = if rank == self.rank {
                Place::of(source)?
            } else {
                self.next_offer(rank, Lane::Together, number, source.bytes)?
            };
            if what.needs(rank, self.rank) {
                let mut brought = self.read(place)?;
                if let Together::Reduce(reduction, _) = what {
                    reduction.apply(&mut brought, Step::Share(ranks));
                }
                match (&mut result, what) {
                    (Some(folded), Together::Reduce(reduction, _)) => {
                        reduction.apply(folded, Step::Add(&brought));
                    }
                    _ => result = Some(brought),
                }
            }
            if rank != self.rank {
                self.tell(rank, Note::Taken(Lane::Together));
            }
        }
        // The target may be the source, which others read until here.
        for (peer, number) in peers.into_iter().zip(offered) {
            self.wait_taken(peer, Lane::Together, number)?;
        }
        if let (Some(folded), Together::Reduce(reduction, _)) = (&mut result, what) {
            reduction.apply(folded, Step::Divide(ranks));
        }
        if let Some(result) = result {
            write(&result, target);
        }
        Some(())
    }

    /// All messages of a task. `None` if this rank has given up.
    fn exchange(&self, operations: &[Operation]) -> Option<()> {
        let mut offered = Vec::new();
        for operation in operations {
            if let Operation::Send { source, peer } = *operation {
                offered.push((peer, self.offer(peer, Lane::Message, 0, source)?));
            }
        }
        for operation in operations {
            if let Operation::Recv { target, peer } = *operation {
                let place = self.next_offer(peer, Lane::Message, 0, target.bytes)?;
                write(&self.read(place)?, target);
                self.tell(peer, Note::Taken(Lane::Message));
            }
        }
        for (peer, number) in offered {
            self.wait_taken(peer, Lane::Message, number)?;
        }
        Some(())
    }

    fn peers(&self) -> Vec<usize> {
        let ranks = lock(&self.state).devices.len();
        (0..ranks).filter(|rank| *rank != self.rank).collect()
    }

    /// Offers data; how many were offered to the peer by then.
    fn offer(&self, peer: usize, lane: Lane, what: u64, source: Data) -> Option<u64> {
        let place = Place::of(source)?;
        let number = {
            let mut state = lock(&self.state);
            let traffic = state.of(peer, lane);
            traffic.sent += 1;
            traffic.sent
        };
        self.tell(peer, Note::Offer(lane, Offer { what, place }));
        Some(number)
    }

    /// Waits for the peer's next offer, which must be of this kind and length.
    fn next_offer(&self, peer: usize, lane: Lane, what: u64, bytes: usize) -> Option<Place> {
        let offer = self.wait(|state| state.of(peer, lane).offers.pop_front())?;
        if (offer.what, offer.place.bytes) == (what, bytes as u64) {
            return Some(offer.place);
        }
        lock(&self.state).is_broken = true;
        for peer in self.peers() {
            self.tell(peer, Note::Broken);
        }
        self.wait(|_| None)
    }

    fn wait_taken(&self, peer: usize, lane: Lane, number: u64) -> Option<()> {
        self.wait(|state| (state.of(peer, lane).taken >= number).then_some(()))
    }

    /// Data of a rank. Those of one that is gone never come.
    fn read(&self, place: Place) -> Option<Vec<u8>> {
        place.read().ok().or_else(|| self.wait(|_| None))
    }

    /// Waits until there is something, or until this rank gives up: `None`.
    fn wait<T>(&self, mut find: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        let mut state = lock(&self.state);
        while !state.is_gone {
            let found = find(&mut state);
            if found.is_some() {
                return found;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Sends a note, unless this rank gives up while the peer reads none.
    fn tell(&self, peer: usize, note: Note) {
        while self.mailbox.send(peer, note) == Sent::Full && !lock(&self.state).is_gone {}
    }

    /// Reads notes until this rank gives up. Never waits for a peer to read one: that may be waiting for this.
    fn listen(&self, here: Note) {
        // A rank that joins later says so, and gets the answer then.
        let mut unsent = self.peers();
        while !lock(&self.state).is_gone {
            unsent.retain(|peer| self.mailbox.send(*peer, here) == Sent::Full);
            let Some((from, note)) = self.mailbox.receive() else {
                continue;
            };
            let mut state = lock(&self.state);
            if from >= state.devices.len() {
                continue;
            }
            match note {
                Note::Here(device) => {
                    if state.devices[from].replace(device).is_none() {
                        unsent.push(from);
                    }
                }
                Note::Offer(lane, offer) => state.of(from, lane).offers.push_back(offer),
                Note::Taken(lane) => state.of(from, lane).taken += 1,
                Note::Broken => state.is_broken = true,
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

fn write(bytes: &[u8], target: Data) {
    assert_eq!(bytes.len(), target.bytes, "what was brought and its place");
    // SAFETY: the target was memory of a device when the operation was queued, and its owner keeps it until the
    // stream is done, which waits for this; the bytes are this process's own, and so elsewhere.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.address as *mut u8, target.bytes);
    }
}
