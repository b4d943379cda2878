//! A verifier that cannot fail is worthless: correct plans are damaged in every small way, and
//! each damaged plan must be refused; and what is accepted must compute the right numbers.

mod numbers;
mod steps;
#[path = "../support/mod.rs"]
mod support;

use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Collective, ElemRange, Plan, Rank, Schedule, Source, Stage, Step, check_plan,
};
use proptest::prelude::*;
use support::{
    Noise, Sizes, all_kinds, elems, execute, is_promised, possible_count, schedule, step_lists,
};

/// Schedules without an empty frame of data, in which nothing can be left out unnoticed; shards
/// of unequal length, in one chunk and in several.
fn samples() -> Vec<Schedule> {
    let mut samples = Vec::new();
    for ranks in 1..=5 {
        for (collective, algorithm) in all_kinds(ranks) {
            for chunk in [2, 64] {
                let count = possible_count(collective, ranks, 3 * ranks + 2);
                samples.push(schedule(collective, algorithm, Sizes { ranks, count, chunk }));
            }
        }
    }
    samples
}

/// Replaces steps `at` of one rank by others.
fn replaced(schedule: &Schedule, rank: Rank, at: std::ops::Range<usize>, by: Vec<Step>) -> Plan {
    let mut lists = step_lists(schedule);
    lists[rank.index()].splice(at, by);
    Plan::with_steps(schedule.clone(), lists)
}

/// The plan is refused with any number of slots.
#[track_caller]
fn assert_refused(plan: &Plan, damage: &str) {
    for slots in [1, 2, 5] {
        if let Ok(report) = check_plan(plan, elems(slots)) {
            panic!("accepted with {slots} slots although {damage}: {report:?}\n{plan}");
        }
    }
}

/// Applies `damage` to every step of every sample; it yields the steps to put instead.
fn refuse_everywhere(name: &str, damage: impl Fn(&Schedule, Rank, &Step) -> Vec<Vec<Step>>) {
    let mut damaged = 0;
    for schedule in samples() {
        for rank in schedule.world_size().ranks() {
            for (index, step) in schedule.steps(rank).iter().enumerate() {
                for by in damage(&schedule, rank, step) {
                    let plan = replaced(&schedule, rank, index..index + 1, by);
                    assert_refused(&plan, &format!("rank {rank}, step {index} ({step}) {name}"));
                    damaged += 1;
                }
            }
        }
    }
    assert!(damaged > 100, "{name}: only {damaged} plans were damaged");
}

/// The step with another peer; `None` when it is the same step, or has none.
fn with_peer(step: &Step, peer: Rank) -> Option<Step> {
    let changed = match *step {
        Step::Put { source, .. } => Step::Put { peer, source },
        Step::Wait { .. } => Step::Wait { peer },
        Step::Copy { target, .. } => Step::Copy { peer, target },
        Step::Release { .. } => Step::Release { peer },
        Step::Reduce { .. } | Step::ReduceDirect { .. } => return None,
    };
    (changed != *step).then_some(changed)
}

fn with_range(step: &Step, range: ElemRange) -> Step {
    match step.clone() {
        Step::Put { peer, .. } => Step::Put { peer, source: range },
        Step::Reduce { sources, stage, .. } => Step::Reduce { target: range, sources, stage },
        Step::Copy { peer, .. } => Step::Copy { peer, target: range },
        Step::ReduceDirect { sources, targets, stage, .. } => {
            Step::ReduceDirect { range, sources, targets, stage }
        }
        step @ (Step::Wait { .. } | Step::Release { .. }) => step,
    }
}
