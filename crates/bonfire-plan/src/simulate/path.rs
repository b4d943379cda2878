//! The critical path: from the end of the last rank back to the start, always to what it waited for.
//!
//! Between two moments at which a rank was blocked it is busy without a gap, so only what unblocked
//! it needs to be known; the rest is added up again from its steps.

use serde::Serialize;

use super::Class;
use super::engine::Engine;
use super::trace::{Cause, Transit};
use crate::Rank;

/// An activity that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activity {
    /// The fixed cost of a frame to a rank.
    Overhead,
    /// A rank copies the data of frames.
    Copy,
    /// A rank folds data into others.
    Fold,
    /// A rank waits; only in a timeline, for a path says for what.
    Blocked,
    /// How much longer a frame takes at a port because others use it.
    Queue,
    /// A frame's bytes pass a port.
    Transfer,
    /// A frame, or a request for data, is under way.
    Latency,
    /// The news that a slot is free is under way.
    SlotReturn,
}

/// A stretch of the critical path, in seconds from the start.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Segment {
    /// What took the time; never [`Activity::Blocked`].
    pub activity: Activity,
    /// The rank that was busy, or that sent what was awaited.
    pub rank: Rank,
    /// The rank it was sent to, and over which link; none where a rank was busy.
    pub to: Option<(Rank, Class)>,
    /// The end of the segment before; 0 for the first one.
    pub start_s: f64,
    /// The start of the next one; for the last, the simulated time.
    pub end_s: f64,
}

/// All segments of one activity over one class of links.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PathPart {
    /// What took the time; never [`Activity::Blocked`].
    pub activity: Activity,
    /// Over which link; none where a rank was busy.
    pub class: Option<Class>,
    /// Segments of the path that are added up here.
    pub count: usize,
    /// Seconds that these segments take together.
    pub total_s: f64,
}

/// A critical path, added up.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PathTotals {
    /// What took time, the longest first.
    pub parts: Vec<PathPart>,
}

impl Activity {
    /// The activity's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overhead => "overhead",
            Self::Copy => "copy",
            Self::Fold => "fold",
            Self::Blocked => "blocked",
            Self::Queue => "queue",
            Self::Transfer => "transfer",
            Self::Latency => "latency",
            Self::SlotReturn => "slot return",
        }
    }
}

impl PathTotals {
    pub(super) fn of(path: &[Segment]) -> Self {
        let mut parts: Vec<PathPart> = Vec::new();
        for segment in path {
            let (activity, class) = (segment.activity, segment.to.map(|(_, class)| class));
            let duration_s = segment.end_s - segment.start_s;
            let is_same = |part: &PathPart| (part.activity, part.class) == (activity, class);
            let known = parts.iter().position(is_same).unwrap_or_else(|| {
                parts.push(PathPart { activity, class, count: 0, total_s: 0.0 });
                parts.len() - 1
            });
            parts[known].count += 1;
            parts[known].total_s += duration_s;
        }
        parts.sort_by(|a, b| b.total_s.total_cmp(&a.total_s));
        Self { parts }
    }
}

pub(super) fn critical_path(engine: &Engine<'_>, rank: u32) -> Vec<Segment> {
    let mut trail = Trail { engine, backwards: Vec::new() };
    let state = &engine.ranks[rank as usize];
    let mut place =
        Some(Place { rank, until: state.end, time_s: state.clock_s, wakes: state.end + 1 });
    while let Some(current) = place {
        place = trail.back(current);
    }
    trail.backwards.reverse();
    trail.backwards
}

/// A rank at the end of some of its steps.
#[derive(Clone, Copy)]
struct Place {
    rank: u32,
    /// The steps before this one are done.
    until: u32,
    time_s: f64,
    /// What unblocked the rank lies at a step before this one. A put whose frame is on the path was
    /// itself unblocked before; the loads of a direct step were asked for before it was.
    wakes: u32,
}

struct Trail<'a, 'b> {
    engine: &'a Engine<'b>,
    /// The segments found so far, the last first.
    backwards: Vec<Segment>,
}

impl Trail<'_, '_> {
    /// Adds what the rank did since it was last blocked, and what it waited for then.
    fn back(&mut self, place: Place) -> Option<Place> {
        let engine = self.engine;
        let wakes = &engine.wakes[place.rank as usize];
        let before = wakes.partition_point(|wake| wake.op < place.wakes);
        let Some(wake) = before.checked_sub(1).map(|index| wakes[index]) else {
            let start = engine.program.starts[place.rank as usize];
            self.busy(place, start, 0.0);
            return None;
        };
        match wake.cause {
            Cause::Arrival(number) => {
                let transit = &engine.transits[number as usize];
                self.busy(place, wake.op, transit.arrived_s);
                Some(self.transfer(transit, engine.transit_latency_s(number)))
            }
            Cause::Slot(index) => {
                let slot = &engine.slot_returns[index as usize];
                self.busy(place, wake.op, slot.time_s);
                let ends = &engine.program.links[slot.link as usize];
                let released_s = slot.time_s - engine.costs[ends.class as usize].latency_s;
                if slot.time_s > released_s {
                    self.backwards.push(Segment {
                        activity: Activity::SlotReturn,
                        rank: Rank::new(ends.target),
                        to: Some((Rank::new(ends.source), ends.class)),
                        start_s: released_s,
                        end_s: slot.time_s,
                    });
                }
                Some(Place {
                    rank: ends.target,
                    until: slot.op,
                    time_s: released_s,
                    wakes: slot.op,
                })
            }
        }
    }

    /// The steps from `first` on, which began at `start_s`.
    fn busy(&mut self, place: Place, first: u32, start_s: f64) {
        let mut forwards = Vec::new();
        let mut clock_s = start_s;
        for op in first..place.until {
            let parts = self.engine.busy_parts(self.engine.program.ops[op as usize]);
            for (activity, duration_s) in parts.into_iter().filter(|(_, time_s)| *time_s > 0.0) {
                forwards.push(Segment {
                    activity,
                    rank: Rank::new(place.rank),
                    to: None,
                    start_s: clock_s,
                    end_s: clock_s + duration_s,
                });
                clock_s += duration_s;
            }
        }
        debug_assert!((clock_s - place.time_s).abs() <= 1e-9 * place.time_s);
        if let Some(last) = forwards.last_mut() {
            last.end_s = place.time_s;
        }
        self.backwards.extend(forwards.into_iter().rev());
    }

    /// The parts of a journey, and the place of the rank that began it.
    fn transfer(&mut self, transit: &Transit, latency_s: f64) -> Place {
        let program = self.engine.program;
        let ends = &program.links[transit.link as usize];
        let initiator = program.initiator(transit.op, ends);
        let is_load = initiator == ends.target;
        let request_s = if is_load { latency_s } else { 0.0 };
        let parts = [
            (Activity::Latency, request_s),
            (Activity::Queue, f64::from(transit.queued_out_s)),
            (Activity::Latency, latency_s),
            (Activity::Queue, f64::from(transit.queued_in_s)),
        ];
        let mut forwards = Vec::with_capacity(parts.len() + 1);
        let mut clock_s = transit.issued_s;
        let mut add = |activity, end_s: f64| {
            let start_s = clock_s;
            clock_s = end_s;
            if end_s > start_s {
                forwards.push(Segment {
                    activity,
                    rank: Rank::new(ends.source),
                    to: Some((Rank::new(ends.target), ends.class)),
                    start_s,
                    end_s,
                });
            }
            end_s
        };
        let mut end_s = transit.issued_s;
        for (activity, duration_s) in parts {
            // The times of queues are kept in fewer bits; they must not lead past the arrival.
            end_s = add(activity, (end_s + duration_s).min(transit.arrived_s));
        }
        add(Activity::Transfer, transit.arrived_s);
        self.backwards.extend(forwards.into_iter().rev());
        let until = if is_load { transit.op } else { transit.op + 1 };
        Place { rank: initiator, until, time_s: transit.issued_s, wakes: until }
    }
}
