//! The simulation itself: its state, its loop, and the ports.
//!
//! A rank runs ahead of the others until it needs something that has not been decided: a frame, a slot, the data of a
//! direct load. What ranks compete for, the ports, is decided in the order of time: a frame on its way is an event
//! per port, except for a port out that only one rank ever uses, whose order is that rank's own. Whatever a rank or a
//! frame does next lies at or after the event that is being handled, so nothing that was decided is ever overtaken.

use super::card::Card;
use super::events::{Arrival, Events, Hop};
use super::path::critical_path;
use super::program::{Kind, LinkEnds, NONE, Op, Program};
use super::trace::{Cause, SlotReturn, Transit, Wake};
use super::{
    Activity, Class, Detail, Lane, Link, Network, NicTotals, RankTotals, SimulateError, Simulation,
    Span,
};
use crate::{Bytes, DType, Rank};

pub(super) struct Engine<'a> {
    pub(super) program: &'a Program,
    pub(super) costs: [Link; 2],
    elem_bytes: u64,
    pub(super) slots: u32,
    pub(super) detail: Detail,
    events: Events,
    pub(super) ready: Vec<u32>,
    pub(super) ranks: Vec<RankState>,
    pub(super) links: Vec<LinkState>,
    /// As many as there are slots, for one link after the other.
    pub(super) slot_states: Vec<SlotState>,
    /// Until when each rank's ports are taken.
    out_free_s: Vec<f64>,
    in_free_s: Vec<f64>,
    /// Whether a rank's port out has more users than its own puts.
    has_direct: bool,
    pub(super) cards_out: Vec<Card>,
    pub(super) cards_in: Vec<Card>,
    pub(super) nics: Vec<NicTotals>,
    pub(super) transits: Vec<Transit>,
    pub(super) wakes: Vec<Vec<Wake>>,
    pub(super) slot_returns: Vec<SlotReturn>,
    pub(super) spans: Vec<Span>,
}

/// A rank's place in its list, and what it waits for.
#[derive(Debug)]
pub(super) struct RankState {
    pub(super) clock_s: f64,
    pub(super) next: u32,
    pub(super) end: u32,
    /// The link whose next frame it waits for, and the one whose slot.
    pub(super) awaits_frame: u32,
    pub(super) awaits_slot: u32,
    /// Whether the loads of the direct step at hand have been asked for.
    pub(super) has_asked: bool,
    /// Whether it waits for its direct writes.
    pub(super) awaits_stores: bool,
    pub(super) loads: Outstanding,
    pub(super) stores: Outstanding,
    pub(super) round: u32,
    pub(super) totals: RankTotals,
}

#[derive(Debug, Default)]
pub(super) struct Outstanding {
    pub(super) count: u32,
    /// The last to have arrived, if any has.
    pub(super) last: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkState {
    pub(super) sent: u32,
    pub(super) arrived: u32,
    pub(super) waited: u32,
    pub(super) released: u32,
}

/// The frame in a slot of a link, or the return of the slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotState {
    pub(super) transit: u32,
    pub(super) round: u32,
    pub(super) free_s: f64,
    pub(super) release: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Launch {
    pub(super) link: u32,
    pub(super) op: u32,
    pub(super) issued_s: f64,
    pub(super) reach_s: f64,
    /// Its turn among those that reach it at the same time.
    pub(super) turn: u32,
}

impl Launch {
    pub(super) fn at(time_s: f64, link: u32, op: u32) -> Self {
        Self { link, op, issued_s: time_s, reach_s: time_s, turn: 0 }
    }
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        program: &'a Program,
        dtype: DType,
        network: &Network,
        detail: Detail,
    ) -> Result<Self, SimulateError> {
        network.intra.validate()?;
        network.inter.validate()?;
        let (ranks, hosts) = (program.hosts.len(), program.host_ranks.len());
        // More slots than frames change nothing.
        let most_puts = program.links.iter().map(|link| link.puts).max();
        let most_slots = most_puts.unwrap_or(1).max(1);
        let slots =
            u32::try_from(network.slots.get()).map_or(most_slots, |slots| slots.min(most_slots));
        let slot = SlotState { transit: NONE, round: 0, free_s: 0.0, release: NONE };
        let rank = |pair: &[u32]| RankState {
            clock_s: 0.0,
            next: pair[0],
            end: pair[1],
            awaits_frame: NONE,
            awaits_slot: NONE,
            has_asked: false,
            awaits_stores: false,
            loads: Outstanding::default(),
            stores: Outstanding::default(),
            round: 0,
            totals: RankTotals::default(),
        };
        Ok(Self {
            program,
            costs: [network.intra, network.inter],
            elem_bytes: dtype.size_bytes() as u64,
            slots,
            detail,
            events: Events::default(),
            ready: Vec::with_capacity(ranks),
            ranks: program.starts.windows(2).map(rank).collect(),
            links: vec![LinkState::default(); program.links.len()],
            slot_states: vec![slot; program.links.len() * slots as usize],
            out_free_s: vec![0.0; ranks],
            in_free_s: vec![0.0; ranks],
            has_direct: !program.directs.is_empty(),
            cards_out: (0..hosts).map(|_| Card::default()).collect(),
            cards_in: (0..hosts).map(|_| Card::default()).collect(),
            nics: vec![NicTotals::default(); hosts],
            transits: Vec::new(),
            wakes: vec![Vec::new(); ranks],
            slot_returns: Vec::new(),
            spans: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<Simulation, SimulateError> {
        let ranks = u32::try_from(self.ranks.len()).expect("ranks are counted in 32 bits");
        self.ready.extend((0..ranks).rev());
        loop {
            while let Some(rank) = self.ready.pop() {
                self.advance(rank)?;
            }
            let Some(event) = self.events.pop() else {
                return self.finish();
            };
            match event.hop {
                Hop::Out => self.leave(event.transit, event.time_s),
                Hop::In => self.enter(event.transit, event.time_s),
                Hop::Left => self.left(event.transit, event.time_s),
                Hop::Entered => self.entered(event.transit, event.time_s),
            }
        }
    }

    fn finish(mut self) -> Result<Simulation, SimulateError> {
        let unfinished = (0..self.ranks.len()).find(|&rank| {
            let state = &self.ranks[rank];
            state.next < state.end || state.stores.count > 0
        });
        if let Some(rank) = unfinished {
            return Err(self.stuck(rank as u32));
        }
        let (mut last, mut time_s) = (0, 0.0);
        for (rank, state) in (0..).zip(&mut self.ranks) {
            state.totals.end_s = state.clock_s;
            if state.clock_s > time_s {
                (last, time_s) = (rank, state.clock_s);
            }
        }
        let rounds = self.ranks.iter().map(|rank| rank.round).max();
        Ok(Simulation {
            time_s,
            rounds: rounds.map_or(0, u64::from),
            path: critical_path(&self, last),
            ranks: self.ranks.into_iter().map(|rank| rank.totals).collect(),
            nics: self.nics,
            spans: self.spans,
        })
    }

    pub(super) fn stuck(&self, rank: u32) -> SimulateError {
        let start = self.program.starts[rank as usize];
        SimulateError::Stuck {
            rank: Rank::new(rank),
            step: (self.ranks[rank as usize].next - start) as usize,
        }
    }

    /// Sets a frame or direct data going; its number.
    pub(super) fn launch(&mut self, launch: Launch) -> u32 {
        let transit = u32::try_from(self.transits.len()).expect("transits are fewer than steps");
        self.transits.push(Transit {
            link: launch.link,
            op: launch.op,
            issued_s: launch.issued_s,
            arrived_s: 0.0,
            is_halfway: false,
            queued_out_s: 0.0,
            queued_in_s: 0.0,
        });
        let class = self.program.links[launch.link as usize].class;
        if self.has_direct || class == Class::Inter {
            self.expect(launch.reach_s, launch.turn, transit, Hop::Out);
        } else {
            self.leave(transit, launch.reach_s);
        }
        transit
    }

    pub(super) fn expect(&mut self, time_s: f64, turn: u32, transit: u32, hop: Hop) {
        self.events.push(Arrival { time_s, turn, transit, hop });
    }

    /// A transit's first byte reaches the port out at `reach_s`.
    fn leave(&mut self, transit: u32, reach_s: f64) {
        let (ends, bytes) = self.cargo(transit);
        self.ranks[ends.source as usize].totals.bytes_sent += bytes;
        if ends.class == Class::Inter {
            return self.leave_host(transit, reach_s);
        }
        let free_s = &mut self.out_free_s[ends.port_out as usize];
        let start_s = reach_s.max(*free_s);
        *free_s = start_s + bytes as f64 * self.costs[Class::Intra as usize].s_per_byte;
        self.transits[transit as usize].queued_out_s = (start_s - reach_s) as f32;
        let latency_s = self.transit_latency_s(transit);
        self.expect(start_s + latency_s, 0, transit, Hop::In);
    }

    /// A transit's first byte reaches the port in at `reach_s`.
    fn enter(&mut self, transit: u32, reach_s: f64) {
        let (ends, bytes) = self.cargo(transit);
        self.ranks[ends.target as usize].totals.bytes_received += bytes;
        if ends.class == Class::Inter {
            return self.enter_host(transit, reach_s);
        }
        let free_s = &mut self.in_free_s[ends.port_in as usize];
        let start_s = reach_s.max(*free_s);
        *free_s = start_s + bytes as f64 * self.costs[Class::Intra as usize].s_per_byte;
        let arriving = &mut self.transits[transit as usize];
        arriving.queued_in_s = (start_s - reach_s) as f32;
        arriving.arrived_s = *free_s;
        self.deliver(transit, &ends);
    }

    /// Lets the rank that waits for this transit continue.
    pub(super) fn deliver(&mut self, transit: u32, ends: &LinkEnds) {
        let Transit { link, op, .. } = self.transits[transit as usize];
        if self.program.ops[op as usize].kind() == Kind::Put {
            self.links[link as usize].arrived += 1;
            let target = &mut self.ranks[ends.target as usize];
            if target.awaits_frame == link {
                target.awaits_frame = NONE;
                self.ready.push(ends.target);
            }
            return;
        }
        let initiator = self.program.initiator(op, ends);
        let rank = &mut self.ranks[initiator as usize];
        let is_load = initiator == ends.target;
        let outstanding = if is_load { &mut rank.loads } else { &mut rank.stores };
        outstanding.count -= 1;
        // Transits arrive in the order of their first bytes, which need not be that of their last.
        let arrived_s = |transit: u32| self.transits[transit as usize].arrived_s;
        let last = outstanding.last.get_or_insert(transit);
        if arrived_s(*last) < arrived_s(transit) {
            *last = transit;
        }
        if outstanding.count == 0 && (is_load || std::mem::take(&mut rank.awaits_stores)) {
            self.ready.push(initiator);
        }
    }

    /// The ends of a transit's link, and its bytes.
    pub(super) fn cargo(&self, transit: u32) -> (LinkEnds, u64) {
        let Transit { link, op, .. } = self.transits[transit as usize];
        let bytes = self.bytes(self.program.ops[op as usize]);
        (self.program.links[link as usize], bytes)
    }

    /// How long the first byte of a transit takes from port to port.
    pub(super) fn transit_latency_s(&self, transit: u32) -> f64 {
        let Transit { link, op, .. } = self.transits[transit as usize];
        let link = &self.costs[self.program.links[link as usize].class as usize];
        let op = self.program.ops[op as usize];
        match op.kind() {
            Kind::Put => link.frame_latency_s(Bytes::new(self.bytes(op))),
            _ => link.latency_s,
        }
    }

    pub(super) fn bytes(&self, op: Op) -> u64 {
        op.elems() * self.elem_bytes
    }

    /// What a step costs its rank, once it has all that it waits for.
    pub(super) fn busy_parts(&self, op: Op) -> [(Activity, f64); 2] {
        let bytes = self.bytes(op) as f64;
        let nothing = (Activity::Overhead, 0.0);
        let link = || &self.costs[self.program.links[op.index()].class as usize];
        let copy = |link: &Link| (Activity::Copy, bytes * link.copy_s_per_byte);
        match op.kind() {
            Kind::Put => [(Activity::Overhead, link().overhead_s), copy(link())],
            Kind::Wait => [(Activity::Overhead, link().overhead_s), nothing],
            Kind::Release => [nothing, nothing],
            Kind::Copy => [copy(&self.costs[op.index()]), nothing],
            Kind::Fold => {
                let [intra, inter] = self.program.folds[op.index()].0.map(f64::from);
                let s_per_byte =
                    intra * self.costs[0].fold_s_per_byte + inter * self.costs[1].fold_s_per_byte;
                [(Activity::Fold, bytes * s_per_byte), nothing]
            }
            Kind::Direct => {
                let direct = &self.program.directs[op.index()];
                let link = &self.costs[Class::Intra as usize];
                let (folds, copies) = (f64::from(direct.folds), f64::from(direct.copies));
                let fold = (Activity::Fold, bytes * folds * link.fold_s_per_byte);
                [fold, (Activity::Copy, bytes * copies * link.copy_s_per_byte)]
            }
        }
    }

    pub(super) fn work(&mut self, rank: u32, op: Op) {
        for (activity, duration_s) in self.busy_parts(op) {
            let clock_s = &mut self.ranks[rank as usize].clock_s;
            let start_s = *clock_s;
            *clock_s += duration_s;
            self.note(Span {
                lane: Lane::Rank(Rank::new(rank)),
                activity,
                peer: None,
                bytes: self.bytes(op),
                start_s,
                end_s: start_s + duration_s,
            });
        }
    }

    /// Adds to the timeline what took time.
    pub(super) fn note(&mut self, span: Span) {
        if self.detail == Detail::Timeline && span.end_s > span.start_s {
            self.spans.push(span);
        }
    }

    /// A rank was blocked until `until_s`, if that is not past already.
    pub(super) fn block(&mut self, rank: u32, cause: Cause, until_s: f64) {
        let state = &mut self.ranks[rank as usize];
        let start_s = state.clock_s;
        if until_s <= start_s {
            return;
        }
        state.clock_s = until_s;
        state.totals.blocked_s += until_s - start_s;
        let op = state.next;
        self.wakes[rank as usize].push(Wake { op, cause });
        let link = match cause {
            Cause::Arrival(transit) => self.transits[transit as usize].link,
            Cause::Slot(index) => self.slot_returns[index as usize].link,
        };
        let ends = &self.program.links[link as usize];
        let peer = if ends.source == rank { ends.target } else { ends.source };
        self.note(Span {
            lane: Lane::Rank(Rank::new(rank)),
            activity: Activity::Blocked,
            peer: Some(Rank::new(peer)),
            bytes: 0,
            start_s,
            end_s: until_s,
        });
    }
}
