//! What each step does to its rank, and to those that wait for it.

use super::engine::{Engine, Launch, Outstanding};
use super::program::{Kind, NONE, Op};
use super::trace::{Cause, SlotReturn};
use super::{Class, SimulateError};

/// Whether a rank can take its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    Blocked,
}

impl Engine<'_> {
    /// Runs steps of `rank` until it is blocked, or at its end.
    pub(super) fn advance(&mut self, rank: u32) -> Result<(), SimulateError> {
        loop {
            let state = &self.ranks[rank as usize];
            if state.next == state.end {
                self.settle_stores(rank);
                return Ok(());
            }
            let op = self.program.ops[state.next as usize];
            let progress = match op.kind() {
                Kind::Put => self.put(rank, op),
                Kind::Wait => self.wait(rank, op),
                Kind::Release => self.release(rank, op)?,
                Kind::Copy | Kind::Fold => {
                    self.work(rank, op);
                    Progress::Done
                }
                Kind::Direct => self.direct(rank, op),
            };
            if progress == Progress::Blocked {
                return Ok(());
            }
            self.ranks[rank as usize].next += 1;
        }
    }

    fn put(&mut self, rank: u32, op: Op) -> Progress {
        if self.settle_stores(rank) == Progress::Blocked {
            return Progress::Blocked;
        }
        let link = op.index();
        let state = self.links[link];
        if state.sent - state.released == self.slots {
            self.ranks[rank as usize].awaits_slot = link as u32;
            return Progress::Blocked;
        }
        let slot = self.slot(link, state.sent);
        let returned = self.slot_states[slot];
        if returned.free_s > self.ranks[rank as usize].clock_s {
            let index = self.slot_returns.len() as u32;
            self.slot_returns.push(SlotReturn {
                time_s: returned.free_s,
                op: returned.release,
                link: link as u32,
            });
            self.block(rank, Cause::Slot(index), returned.free_s);
        }
        self.work(rank, op);
        let sender = &mut self.ranks[rank as usize];
        sender.totals.frames_sent += 1;
        let (clock_s, next) = (sender.clock_s, sender.next);
        self.slot_states[slot].round = sender.round + 1;
        self.links[link].sent += 1;
        let launch = Launch::at(clock_s, link as u32, next);
        self.slot_states[slot].transit = self.launch(launch);
        Progress::Done
    }

    fn wait(&mut self, rank: u32, op: Op) -> Progress {
        let link = op.index();
        let state = self.links[link];
        if state.arrived == state.waited {
            self.ranks[rank as usize].awaits_frame = link as u32;
            return Progress::Blocked;
        }
        let slot = self.slot_states[self.slot(link, state.waited)];
        self.await_transit(rank, Some(slot.transit));
        self.links[link].waited += 1;
        let receiver = &mut self.ranks[rank as usize];
        receiver.round = receiver.round.max(slot.round);
        self.work(rank, op);
        Progress::Done
    }

    fn release(&mut self, rank: u32, op: Op) -> Result<Progress, SimulateError> {
        let link = op.index();
        let state = self.links[link];
        if state.released == state.waited {
            return Err(self.stuck(rank));
        }
        let ends = self.program.links[link];
        let receiver = &self.ranks[rank as usize];
        let slot = self.slot(link, state.released);
        let latency_s = self.costs[ends.class as usize].latency_s;
        self.slot_states[slot].free_s = receiver.clock_s + latency_s;
        self.slot_states[slot].release = receiver.next;
        self.links[link].released += 1;
        let sender = &mut self.ranks[ends.source as usize];
        if sender.awaits_slot == link as u32 {
            sender.awaits_slot = NONE;
            self.ready.push(ends.source);
        }
        Ok(Progress::Done)
    }

    fn direct(&mut self, rank: u32, op: Op) -> Progress {
        let direct = &self.program.directs[op.index()];
        let state = &mut self.ranks[rank as usize];
        let (next, issued_s) = (state.next, state.clock_s);
        if !state.has_asked && !direct.loads.is_empty() {
            state.has_asked = true;
            state.loads = Outstanding { count: direct.loads.len() as u32, last: None };
            let reach_s = issued_s + self.costs[Class::Intra as usize].latency_s;
            // The first load of every rank is from its next neighbour, and so on: so no two ranks
            // are served the first by the same one.
            for (turn, &link) in (0..).zip(&direct.loads) {
                self.launch(Launch { reach_s, turn, ..Launch::at(issued_s, link, next) });
            }
            return Progress::Blocked;
        }
        state.has_asked = false;
        let last = state.loads.last.take();
        self.await_transit(rank, last);
        self.work(rank, op);
        let clock_s = self.ranks[rank as usize].clock_s;
        self.ranks[rank as usize].stores.count += direct.stores.len() as u32;
        for &link in &direct.stores {
            self.launch(Launch::at(clock_s, link, next));
        }
        Progress::Done
    }

    /// Waits for the direct writes of `rank` to arrive.
    fn settle_stores(&mut self, rank: u32) -> Progress {
        let state = &mut self.ranks[rank as usize];
        if state.stores.count > 0 {
            state.awaits_stores = true;
            return Progress::Blocked;
        }
        let last = state.stores.last.take();
        self.await_transit(rank, last);
        Progress::Done
    }

    fn await_transit(&mut self, rank: u32, transit: Option<u32>) {
        if let Some(transit) = transit {
            let arrived_s = self.transits[transit as usize].arrived_s;
            self.block(rank, Cause::Arrival(transit), arrived_s);
        }
    }

    /// The place of a link's frame with this number.
    fn slot(&self, link: usize, number: u32) -> usize {
        link * self.slots as usize + (number % self.slots) as usize
    }
}
