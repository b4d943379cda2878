//! What is printed and kept of a simulation.

use bonfire_plan::Bytes;
use bonfire_plan::simulate::{Class, PathPart};
use serde::Serialize;

use super::scenario::{Outcome, Scenario, Skipped};
use crate::quantity::{counted, show_seconds};

/// One simulation as written to the JSON file; fields that `bonfire bench` has too have its names.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    operation: &'static str,
    algorithm: &'static str,
    size_bytes: usize,
    count: usize,
    dtype: &'static str,
    ranks: u32,
    hosts: usize,
    chunk_bytes: usize,
    slots: usize,
    intra_link: String,
    inter_link: String,
    time_us: f64,
    /// In GB/s of 10^9 bytes.
    algbw: f64,
    /// In GB/s of 10^9 bytes.
    busbw: f64,
    rounds: u64,
    frames: u64,
    rank_bytes_sent_max: u64,
    nic_bytes_sent_max: u64,
    critical_path: Vec<PathPart>,
    rank_end_us: Vec<f64>,
    rank_blocked_us: Vec<f64>,
}

impl Record {
    pub(super) fn new(scenario: &Scenario, outcome: &Outcome) -> Self {
        let simulation = &outcome.simulation;
        let of_ranks = |seconds: fn(&bonfire_plan::simulate::RankTotals) -> f64| {
            simulation.ranks.iter().map(|rank| seconds(rank) * 1e6).collect()
        };
        Self {
            operation: scenario.operation.name(),
            algorithm: outcome.algorithm.name(),
            size_bytes: outcome.size.bytes,
            count: outcome.size.count,
            dtype: scenario.dtype.name(),
            ranks: scenario.world_size.get(),
            hosts: scenario.hosts.host_count(),
            chunk_bytes: scenario.chunk_bytes,
            slots: scenario.slots.get(),
            intra_link: scenario.intra.to_string(),
            inter_link: scenario.inter.to_string(),
            time_us: simulation.time_s * 1e6,
            algbw: outcome.algbw,
            busbw: outcome.busbw,
            rounds: simulation.rounds,
            frames: simulation.frames_sent_total(),
            rank_bytes_sent_max: rank_bytes_max(outcome),
            nic_bytes_sent_max: nic_bytes_max(outcome),
            critical_path: simulation.path_totals().parts,
            rank_end_us: of_ranks(|rank| rank.end_s),
            rank_blocked_us: of_ranks(|rank| rank.blocked_s),
        }
    }
}

pub(super) fn text(scenario: &Scenario, outcomes: &[Outcome], skipped: &[Skipped]) -> String {
    let mut text = String::new();
    let host_count = scenario.hosts.host_count();
    if let Some(first) = outcomes.first() {
        text += &format!(
            "# {} of {}, {}, {} on {}, chunks of {}, {} slots\n",
            scenario.collective(),
            Bytes::new(first.size.bytes as u64),
            scenario.dtype,
            counted(scenario.world_size.len(), "rank"),
            counted(host_count, "host"),
            Bytes::new(scenario.chunk_bytes as u64),
            scenario.slots,
        );
    }
    text += &format!("# within a host: {}\n", scenario.intra);
    if host_count > 1 {
        text += &format!("# between hosts: {}\n", scenario.inter);
    }
    for [algorithm, time, algbw, busbw, rounds, frames, rank, nic] in [
        ["algorithm", "time", "algbw", "busbw", "rounds", "frames", "rank sends", "NIC sends"],
        ["", "(us)", "(GB/s)", "(GB/s)", "", "", "(at most)", "(at most)"],
    ] {
        let bandwidths = format!("{algbw:>9} {busbw:>9}");
        let sent = format!("{frames:>10} {rank:>12} {nic:>12}");
        text += &format!("{algorithm:<17} {time:>12} {bandwidths} {rounds:>7} {sent}\n");
    }
    for outcome in outcomes {
        let simulation = &outcome.simulation;
        text += &format!(
            "{:<17} {:>12.2} {:>9.3} {:>9.3} {:>7} {:>10} {:>12} {:>12}\n",
            outcome.algorithm.name(),
            simulation.time_s * 1e6,
            outcome.algbw,
            outcome.busbw,
            simulation.rounds,
            simulation.frames_sent_total(),
            Bytes::new(rank_bytes_max(outcome)).to_string(),
            Bytes::new(nic_bytes_max(outcome)).to_string(),
        );
    }
    for Skipped { algorithm, reason } in skipped {
        text += &format!("# {algorithm} is left out: {reason:#}\n");
    }
    text + &outcomes.first().map(path).unwrap_or_default()
}

/// What the last rank waited for, in as many lines as there are kinds of it.
fn path(outcome: &Outcome) -> String {
    let simulation = &outcome.simulation;
    let (Some(first), Some(last)) = (simulation.path.first(), simulation.path.last()) else {
        return String::new();
    };
    let mut text = format!(
        "\n# critical path of {}: {} from rank {} to rank {}\n",
        outcome.algorithm,
        counted(simulation.path.len(), "segment"),
        first.rank,
        last.to.map_or(last.rank, |(rank, _)| rank),
    );
    for part in simulation.path_totals().parts {
        let place = match part.class {
            Some(Class::Intra) => " within a host",
            Some(Class::Inter) => " between hosts",
            None => "",
        };
        text += &format!(
            "{:<26} {:>7} x {:>10} = {:>10}  {:>5.1} %\n",
            format!("{}{place}", part.activity.name()),
            part.count,
            show_seconds(part.total_s / part.count as f64),
            show_seconds(part.total_s),
            100.0 * part.total_s / simulation.time_s,
        );
    }
    let ends = simulation.ranks.iter().map(|rank| rank.end_s);
    let blocked: f64 = simulation.ranks.iter().map(|rank| rank.blocked_s).sum();
    text += &format!(
        "# ranks end from {} to {}; a rank is blocked for {} on average\n",
        show_seconds(ends.fold(f64::INFINITY, f64::min)),
        show_seconds(simulation.time_s),
        show_seconds(blocked / simulation.ranks.len() as f64),
    );
    text
}

fn rank_bytes_max(outcome: &Outcome) -> u64 {
    let ranks = outcome.simulation.ranks.iter();
    ranks.map(|rank| rank.bytes_sent).max().unwrap_or(0)
}

fn nic_bytes_max(outcome: &Outcome) -> u64 {
    let nics = outcome.simulation.nics.iter();
    nics.map(|nic| nic.bytes_sent).max().unwrap_or(0)
}
