//! A simulation as a trace: a host is a process; its ranks are threads, and so are the two directions of
//! its network card.

use std::path::Path;

use anyhow::bail;
use bonfire_plan::Hosts;
use bonfire_plan::simulate::{Lane, Simulation, Span};
use serde_json::{Value, json};

use crate::trace::{self, Event};

/// More events than this are a file that no viewer opens.
const EVENTS_MAX: u64 = 2_000_000;

/// Events of a frame, about: the work of both ends, two waits, and two network cards.
const EVENTS_PER_FRAME: u64 = 6;

/// Refuses what would be too large, before anything is kept in memory for it.
pub(super) fn check_size(simulation: &Simulation) -> anyhow::Result<()> {
    let events = simulation.frames_sent_total() * EVENTS_PER_FRAME;
    if events > EVENTS_MAX {
        bail!(
            "a timeline of {} frames is too large for any viewer; use fewer ranks, or larger \
             chunks",
            simulation.frames_sent_total()
        );
    }
    Ok(())
}

pub(super) fn write(path: &Path, hosts: &Hosts, simulation: &Simulation) -> anyhow::Result<()> {
    let threads = Threads(hosts.numbers().collect());
    let spans = &simulation.spans;
    let events = spans.iter().map(|span| threads.event(span));
    trace::write(path, &threads.names(spans), events)
}

struct Threads(Vec<u32>);

impl Threads {
    fn place(&self, lane: Lane) -> (u32, usize) {
        let ranks = self.0.len();
        match lane {
            Lane::Rank(rank) => (self.0[rank.index()], rank.index()),
            Lane::NicOut(host) => (host, ranks),
            Lane::NicIn(host) => (host, ranks + 1),
        }
    }

    fn names(&self, spans: &[Span]) -> Vec<Value> {
        let mut lanes: Vec<Lane> = spans.iter().map(|span| span.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let mut hosts = self.0.clone();
        hosts.dedup();
        let named = |host| trace::process_name(host, &format!("host {host}"));
        let mut names: Vec<Value> = hosts.into_iter().map(named).collect();
        for lane in lanes {
            let (pid, tid) = self.place(lane);
            let name = match lane {
                Lane::Rank(rank) => format!("rank {rank}"),
                Lane::NicOut(_) => "network card, out".to_owned(),
                Lane::NicIn(_) => "network card, in".to_owned(),
            };
            names.push(trace::thread_name(pid, tid, &name));
        }
        names
    }

    fn event(&self, span: &Span) -> Event {
        let (pid, tid) = self.place(span.lane);
        let activity = span.activity.name();
        let name = match (span.lane, span.peer) {
            (Lane::Rank(_), Some(peer)) => format!("{activity} by rank {peer}"),
            (_, Some(peer)) => format!("{activity} to rank {peer}"),
            (_, None) => activity.to_owned(),
        };
        Event {
            name,
            cat: activity,
            ph: "X",
            pid,
            tid,
            ts: span.start_s * 1e6,
            dur: (span.end_s - span.start_s) * 1e6,
            args: json!({ "bytes": span.bytes }),
        }
    }
}
