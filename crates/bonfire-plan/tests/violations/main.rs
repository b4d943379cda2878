//! Each kind of violation is named for what it is, with the rank and the step.

mod content;
mod direct;
mod frames;
#[path = "../support/mod.rs"]
mod support;

use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Blocked, CheckError, Collective, ElemRange, Fault, Flaw, Obstacle, Order, Plan,
    Rank, Schedule, Source, Stage, Step, check_plan,
};
use support::{Sizes, elems, schedule, step_lists};

const R0: Rank = Rank::new(0);

const R1: Rank = Rank::new(1);

const R2: Rank = Rank::new(2);

/// An all-reduce of one element by everyone with everyone.
fn one_element(ranks: usize) -> Schedule {
    let sizes = Sizes { ranks, count: 1, chunk: 1 };
    schedule(Collective::AllReduce, Algorithm::OneShot, sizes)
}

fn range(start: usize, end: usize) -> ElemRange {
    ElemRange::new(start, end)
}

/// The first violation of `schedule` after `damage` to its step lists, with one slot.
fn violation(schedule: Schedule, damage: impl FnOnce(&mut Vec<Vec<Step>>)) -> CheckError {
    let mut lists = step_lists(&schedule);
    damage(&mut lists);
    let checked = check_plan(&Plan::with_steps(schedule.clone(), lists), NonZeroUsize::MIN);
    checked.expect_err("the plan was damaged")
}

/// The fault of the step that was refused, after checking where it is.
fn fault_at(error: CheckError, at: (Rank, usize)) -> Fault {
    match error {
        CheckError::Step { rank, index, fault, .. } if (rank, index) == at => fault,
        other => panic!("not a fault of rank {}, step {}: {other}", at.0, at.1),
    }
}
