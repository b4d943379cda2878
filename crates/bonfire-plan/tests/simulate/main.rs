//! The simulator against formulas, against the verifier's counts, and against itself.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod closed_forms;
mod direct;
mod everywhere;
mod ports;
mod refusals;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::num::NonZeroUsize;

use bonfire_plan::simulate::{
    Activity, Class, Detail, Lane, Link, Network, SimulateError, Simulation, Span, simulate,
    simulate_plan,
};
use bonfire_plan::{
    Algorithm, Collective, DType, ElemRange, Hosts, LinkCosts, LinkFigures, Plan, Rank, Schedule,
    ScheduleShape, Source, Stage, Step, WorldSize, check, estimate,
};
use support::{Sizes, all_kinds, possible_count, schedule, schedule_of, shape, world};

/// 1 us, 1 GB/s, and folds at 4 GB/s.
const LINK: Link = Link {
    latency_s: 1e-6,
    s_per_byte: 1e-9,
    overhead_s: 0.0,
    copy_s_per_byte: 0.0,
    fold_s_per_byte: 0.25e-9,
    short_bytes: 0,
    long_latency_s: 0.0,
};

/// Ten times the latency and the time per byte.
const SLOW: Link = Link { latency_s: 1e-5, s_per_byte: 1e-8, ..LINK };

const BROADCAST: Collective = Collective::Broadcast { root: Rank::new(0) };

fn unchunked(ranks: usize, count: usize) -> Sizes {
    Sizes { ranks, count, chunk: count.max(1) }
}

/// The time on one host, of elements of one byte.
fn time_s(collective: Collective, algorithm: Algorithm, sizes: Sizes) -> f64 {
    let network = Network::one_host(world(sizes.ranks), LINK);
    let schedule = schedule(collective, algorithm, sizes);
    let simulation = simulate(&schedule, DType::U8, &network, Detail::Totals);
    simulation.unwrap().time_s
}

#[track_caller]
fn assert_close(seen: f64, expected: f64) {
    assert!((seen - expected).abs() <= 1e-9 * expected, "{seen} is not {expected}");
}

/// Ranks in equal groups, one after the other.
fn hosts(ranks: usize, per_host: usize) -> Hosts {
    Hosts::new((0..ranks).map(|rank| (rank / per_host) as u32).collect())
}

fn put(peer: u32, count: usize) -> Step {
    Step::Put { peer: Rank::new(peer), source: ElemRange::up_to(count) }
}

fn take(peer: u32, count: usize) -> [Step; 3] {
    let peer = Rank::new(peer);
    let target = ElemRange::up_to(count);
    [Step::Wait { peer }, Step::Copy { peer, target }, Step::Release { peer }]
}

/// Lists of steps that no schedule has, over a network with equal links everywhere.
fn by_hand(steps: Vec<Vec<Step>>, hosts: Hosts, slots: usize) -> Result<Simulation, SimulateError> {
    let sizes = unchunked(steps.len(), 1000);
    let plan = Plan::with_steps(schedule(BROADCAST, Algorithm::Binomial, sizes), steps);
    let network =
        Network { slots: NonZeroUsize::new(slots).unwrap(), ..Network::new(hosts, LINK, LINK) };
    simulate_plan(&plan, DType::U8, &network, Detail::Totals)
}

/// All-reduce of 1000 bytes per rank over [`LINK`]: two barriers of so many rounds; a request and its
/// data; the fold; the writes, which the second barrier waits for.
fn zero_copy_s(ranks: usize, rounds: f64) -> f64 {
    let others = ranks as f64 - 1.0;
    (2.0 * rounds + 3.0) * 1e-6 + 2.0 * others * 1e-6 + others * 0.25e-6
}

/// The path leads from the start to the end without a gap.
#[track_caller]
fn assert_path(simulation: &Simulation) {
    let mut clock_s = 0.0;
    for segment in &simulation.path {
        assert!(
            (segment.start_s - clock_s).abs() <= 1e-9 * simulation.time_s,
            "{segment:?} does not begin at {clock_s}"
        );
        assert!(segment.end_s > segment.start_s, "{segment:?}");
        assert_ne!(segment.activity, Activity::Blocked);
        clock_s = segment.end_s;
    }
    assert!((clock_s - simulation.time_s).abs() <= 1e-9 * simulation.time_s);
    let total: f64 = simulation.path_totals().parts.iter().map(|part| part.total_s).sum();
    assert!((total - simulation.time_s).abs() <= 1e-9 * simulation.time_s);
}
