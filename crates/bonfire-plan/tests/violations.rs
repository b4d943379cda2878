//! Each kind of violation is named for what it is, with the rank and the step.

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
    let sizes = Sizes {
        ranks,
        count: 1,
        chunk: 1,
    };
    schedule(Collective::AllReduce, Algorithm::OneShot, sizes)
}

fn range(start: usize, end: usize) -> ElemRange {
    ElemRange::new(start, end)
}

/// The first violation of `schedule` after `damage` to its step lists, with one slot.
fn violation(schedule: Schedule, damage: impl FnOnce(&mut Vec<Vec<Step>>)) -> CheckError {
    let mut lists = step_lists(&schedule);
    damage(&mut lists);
    let checked = check_plan(
        &Plan::with_steps(schedule.clone(), lists),
        NonZeroUsize::MIN,
    );
    checked.expect_err("the plan was damaged")
}

/// The fault of the step that was refused, after checking where it is.
fn fault_at(error: CheckError, at: (Rank, usize)) -> Fault {
    match error {
        CheckError::Step {
            rank, index, fault, ..
        } if (rank, index) == at => fault,
        other => panic!("not a fault of rank {}, step {}: {other}", at.0, at.1),
    }
}

#[test]
fn a_missing_put_is_a_deadlock_that_names_who_waits_for_what() {
    let error = violation(one_element(2), |lists| {
        lists[0].remove(0);
    });
    let blocked = vec![Blocked {
        rank: R1,
        index: 1,
        obstacle: Obstacle::FrameFrom(R0),
    }];
    assert_eq!(error, CheckError::Deadlock { blocked });
    assert_eq!(
        error.to_string(),
        "deadlock: rank 1 waits in step 1 for a frame from rank 0"
    );
}

#[test]
fn ranks_that_all_wait_first_are_all_named() {
    let error = violation(one_element(2), |lists| {
        for steps in lists {
            steps.swap(0, 1);
        }
    });
    let CheckError::Deadlock { blocked } = error else {
        panic!("{error}")
    };
    let named: Vec<_> = blocked
        .iter()
        .map(|b| (b.rank, b.index, b.obstacle))
        .collect();
    assert_eq!(
        named,
        [
            (R0, 0, Obstacle::FrameFrom(R1)),
            (R1, 0, Obstacle::FrameFrom(R0))
        ]
    );
}

/// Both ranks put two frames before they release one: enough slots make it a plan.
#[test]
fn too_few_slots_are_a_deadlock_and_enough_are_not() {
    let sizes = Sizes {
        ranks: 2,
        count: 2,
        chunk: 1,
    };
    let schedule = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
    let mut lists = step_lists(&schedule);
    for steps in &mut lists {
        let second = steps
            .iter()
            .rposition(|step| matches!(step, Step::Put { .. }))
            .unwrap();
        let put = steps.remove(second);
        steps.insert(0, put);
        steps.swap(0, 1);
    }
    let plan = Plan::with_steps(schedule.clone(), lists);
    let error = check_plan(&plan, elems(1)).unwrap_err();
    let CheckError::Deadlock { blocked } = error else {
        panic!("{error}")
    };
    let obstacles: Vec<_> = blocked.iter().map(|blocked| blocked.obstacle).collect();
    assert_eq!(obstacles, [Obstacle::SlotAt(R1), Obstacle::SlotAt(R0)]);
    assert_eq!(check_plan(&plan, elems(2)).unwrap().order, Order::Canonical);
}

#[test]
fn a_frame_that_is_never_released_is_named() {
    let error = violation(one_element(2), |lists| {
        lists[1].pop();
    });
    let left = CheckError::Unreleased {
        from: R0,
        to: R1,
        index: 0,
        source_range: range(0, 1),
    };
    assert_eq!(error, left);
}

#[test]
fn a_wait_before_the_last_release_is_named() {
    let error = violation(one_element(2), |lists| {
        lists[1].insert(2, Step::Wait { peer: R0 });
    });
    assert_eq!(fault_at(error, (R1, 2)), Fault::StillHeld { peer: R0 });
}

#[test]
fn a_read_or_release_without_a_wait_is_named() {
    let error = violation(one_element(2), |lists| {
        lists[1].remove(1);
    });
    assert_eq!(
        fault_at(error.clone(), (R1, 1)),
        Fault::NotAwaited { peer: R0 }
    );
    assert_eq!(
        error.to_string(),
        "rank 1, step 1 (reduce 0..1 = inbox[0] + own, final): no frame from rank 0 was waited for"
    );
    let error = violation(one_element(2), |lists| {
        lists[1].insert(0, Step::Release { peer: R0 });
    });
    assert_eq!(fault_at(error, (R1, 0)), Fault::NotAwaited { peer: R0 });
}

#[test]
fn an_unread_frame_is_named() {
    let error = violation(one_element(2), |lists| {
        lists[1].remove(2);
    });
    assert_eq!(
        fault_at(error, (R1, 2)),
        Fault::Unread {
            peer: R0,
            sent: range(0, 1)
        }
    );
}

#[test]
fn a_rank_is_no_peer_of_itself_and_strangers_are_no_peers() {
    for peer in [R0, R2] {
        let step = Step::Put {
            peer,
            source: range(0, 1),
        };
        let error = violation(one_element(2), |lists| lists[0][0] = step);
        assert_eq!(fault_at(error, (R0, 0)), Fault::NotAPeer { peer });
    }
}

#[test]
fn ranges_must_fit_the_buffer_the_slot_and_the_frame() {
    let sizes = Sizes {
        ranks: 2,
        count: 4,
        chunk: 2,
    };
    let schedule = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
    let put = |start, end| Step::Put {
        peer: R1,
        source: range(start, end),
    };
    let error = violation(schedule.clone(), |lists| lists[0][0] = put(3, 5));
    let outside = Fault::OutOfBounds {
        range: range(3, 5),
        count: 4,
    };
    assert_eq!(fault_at(error, (R0, 0)), outside);
    let error = violation(schedule.clone(), |lists| lists[0][0] = put(0, 3));
    let long = Fault::FrameTooLong {
        range: range(0, 3),
        chunk_elems_max: 2,
    };
    assert_eq!(fault_at(error, (R0, 0)), long);
    // As long as it should be, but other elements.
    let error = violation(schedule, |lists| lists[0][0] = put(1, 3));
    let moved = Fault::FrameMismatch {
        peer: R0,
        sent: range(1, 3),
        target: range(0, 2),
    };
    assert_eq!(fault_at(error, (R1, 2)), moved);
}

#[test]
fn a_reduce_of_nothing_is_named() {
    let nothing = Step::Reduce {
        target: range(0, 1),
        sources: Box::new([]),
        stage: Stage::Final,
    };
    let error = violation(one_element(1), |lists| lists[0][0] = nothing);
    assert_eq!(fault_at(error, (R0, 0)), Fault::NoSources);
}

#[test]
fn unwritten_data_is_not_sent() {
    let sizes = Sizes {
        ranks: 3,
        count: 3,
        chunk: 1,
    };
    let schedule = schedule(Collective::AllGather, Algorithm::Ring, sizes);
    let put = Step::Put {
        peer: R1,
        source: range(1, 2),
    };
    let error = violation(schedule, |lists| lists[0][0] = put);
    assert_eq!(
        fault_at(error, (R0, 0)),
        Fault::Undefined { range: range(1, 2) }
    );
}

#[test]
fn unwritten_data_is_not_folded() {
    let sizes = Sizes {
        ranks: 3,
        count: 3,
        chunk: 1,
    };
    let schedule = schedule(Collective::AllGather, Algorithm::Ring, sizes);
    let sources = Box::new([Source::Own]);
    let fold = Step::Reduce {
        target: range(1, 2),
        sources,
        stage: Stage::Partial,
    };
    let error = violation(schedule, |lists| lists[0].insert(0, fold));
    assert_eq!(
        fault_at(error, (R0, 0)),
        Fault::Undefined { range: range(1, 2) }
    );
}

#[test]
fn a_rank_that_contributes_twice_is_named() {
    let error = violation(one_element(2), |lists| {
        let sources = Box::new([Source::Inbox(R0), Source::Own, Source::Inbox(R0)]);
        lists[1][2] = Step::Reduce {
            target: range(0, 1),
            sources,
            stage: Stage::Final,
        };
    });
    let twice = Fault::FoldedTwice {
        rank: R0,
        range: range(0, 1),
    };
    assert_eq!(fault_at(error, (R1, 2)), twice);
}

#[test]
fn a_second_final_stage_is_named() {
    let finish = Step::Reduce {
        target: range(0, 1),
        sources: Box::new([Source::Own]),
        stage: Stage::Final,
    };
    let error = violation(one_element(2), |lists| lists[1].push(finish));
    assert_eq!(
        fault_at(error, (R1, 4)),
        Fault::AlreadyFinal { range: range(0, 1) }
    );
}

#[test]
fn a_result_without_its_final_stage_is_named() {
    let sources = Box::new([Source::Inbox(R0), Source::Own]);
    let partial = Step::Reduce {
        target: range(0, 1),
        sources,
        stage: Stage::Partial,
    };
    let error = violation(one_element(2), |lists| lists[1][2] = partial);
    let unfinished = CheckError::Result {
        rank: R1,
        range: range(0, 1),
        flaw: Flaw::NotFinal,
    };
    assert_eq!(error, unfinished);
}

#[test]
fn a_result_without_a_ranks_data_is_named() {
    let sources = Box::new([Source::Inbox(R0)]);
    let lonely = Step::Reduce {
        target: range(0, 1),
        sources,
        stage: Stage::Final,
    };
    let error = violation(one_element(2), |lists| lists[1][2] = lonely);
    let flaw = Flaw::Missing { rank: R1 };
    assert_eq!(
        error,
        CheckError::Result {
            rank: R1,
            range: range(0, 1),
            flaw
        }
    );
}

#[test]
fn ranks_that_fold_in_different_orders_are_named() {
    let folding = |sources: [Source; 3]| Step::Reduce {
        target: range(0, 1),
        sources: Box::new(sources),
        stage: Stage::Final,
    };
    let is_reduce = |step: &Step| matches!(step, Step::Reduce { .. });
    // The first two operands commute; the third does not.
    let harmless = [Source::Inbox(R1), Source::Inbox(R0), Source::Own];
    let regrouped = [Source::Own, Source::Inbox(R1), Source::Inbox(R0)];
    let mut lists = step_lists(&one_element(3));
    let at = lists[2].iter().position(is_reduce).unwrap();
    lists[2][at] = folding(harmless);
    let plan = Plan::with_steps(one_element(3), lists);
    assert_eq!(check_plan(&plan, elems(1)).unwrap().order, Order::Canonical);
    let error = violation(one_element(3), |lists| lists[2][at] = folding(regrouped));
    let differ = CheckError::Divergence {
        first: R0,
        second: R2,
        range: range(0, 1),
    };
    assert_eq!(error, differ);
}

/// All ranks in the same order, but not in the order of their numbers.
#[test]
fn a_common_order_that_is_not_the_canonical_one_is_fixed() {
    let mut lists = step_lists(&one_element(3));
    for steps in &mut lists {
        for step in steps {
            if let Step::Reduce { sources, .. } = step {
                sources.reverse();
            }
        }
    }
    let plan = Plan::with_steps(one_element(3), lists);
    assert_eq!(check_plan(&plan, elems(1)).unwrap().order, Order::Fixed);
}

/// Folding hop by hop rounds on the way, so its 16-bit results are not those of one fold.
#[test]
fn a_fold_in_rank_order_that_is_rounded_on_the_way_is_fixed() {
    let whole = range(0, 1);
    let put = |peer| Step::Put {
        peer,
        source: whole,
    };
    let taken = |peer, step| vec![Step::Wait { peer }, step, Step::Release { peer }];
    let copied = |peer| {
        taken(
            peer,
            Step::Copy {
                peer,
                target: whole,
            },
        )
    };
    let folded = |peer, stage| {
        let sources = Box::new([Source::Inbox(peer), Source::Own]);
        taken(
            peer,
            Step::Reduce {
                target: whole,
                sources,
                stage,
            },
        )
    };
    let lists = vec![
        [vec![put(R1)], copied(R2)].concat(),
        [folded(R0, Stage::Partial), vec![put(R2)], copied(R2)].concat(),
        [folded(R1, Stage::Final), vec![put(R0), put(R1)]].concat(),
    ];
    let report = check_plan(&Plan::with_steps(one_element(3), lists), elems(1)).unwrap();
    assert_eq!(report.order, Order::Fixed);
    assert_eq!(report.cost.rounds(), 3);
}

#[test]
fn data_that_is_not_its_owners_is_named() {
    let sizes = Sizes {
        ranks: 2,
        count: 1,
        chunk: 1,
    };
    let schedule = schedule(Collective::AllGather, Algorithm::Ring, sizes);
    let sources = Box::new([Source::Inbox(R0)]);
    let finished = Step::Reduce {
        target: range(0, 1),
        sources,
        stage: Stage::Final,
    };
    let error = violation(schedule, |lists| {
        let at = lists[1]
            .iter()
            .position(|step| matches!(step, Step::Copy { target, .. } if !target.is_empty()));
        lists[1][at.unwrap()] = finished;
    });
    let flaw = Flaw::NotTheOwners {
        owner: R0,
        found: vec![R0],
    };
    assert_eq!(
        error,
        CheckError::Result {
            rank: R1,
            range: range(0, 1),
            flaw
        }
    );
}

#[test]
fn a_result_that_was_never_written_is_named() {
    let sizes = Sizes {
        ranks: 2,
        count: 1,
        chunk: 1,
    };
    let schedule = schedule(
        Collective::Broadcast { root: R1 },
        Algorithm::Binomial,
        sizes,
    );
    let error = violation(schedule, |lists| lists.iter_mut().for_each(Vec::clear));
    let flaw = Flaw::Undefined;
    assert_eq!(
        error,
        CheckError::Result {
            rank: R0,
            range: range(0, 1),
            flaw
        }
    );
}

/// All ranks fold their shard of everyone's buffers, one element each.
fn direct(ranks: usize) -> Schedule {
    let sizes = Sizes {
        ranks,
        count: ranks,
        chunk: 1,
    };
    schedule(Collective::AllReduce, Algorithm::ZeroCopy, sizes)
}

/// The steps of a two-rank barrier: put, wait, release.
const BARRIER_STEPS: usize = 3;

#[test]
fn a_direct_step_before_the_others_have_entered_is_a_race() {
    let error = violation(direct(2), |lists| {
        for steps in lists {
            steps.drain(..BARRIER_STEPS);
        }
    });
    let race = Fault::Race {
        other: R1,
        owner: R1,
        range: range(0, 1),
    };
    assert_eq!(fault_at(error.clone(), (R0, 0)), race);
    assert_eq!(
        error.to_string(),
        "rank 0, step 0 (reduce 0..1 of ranks 0, 1 = ranks 0 + 1, final): rank 1 may access 0..1 \
         of rank 1's buffer at the same time"
    );
}

#[test]
fn a_rank_that_leaves_while_others_still_write_is_named() {
    let error = violation(direct(2), |lists| {
        for steps in lists {
            steps.truncate(BARRIER_STEPS + 1);
        }
    });
    let late = CheckError::LateAccess {
        rank: R1,
        owner: R0,
        range: range(1, 2),
    };
    assert_eq!(error, late);
    assert_eq!(
        error.to_string(),
        "rank 1 may still access 1..2 of rank 0's buffer when that rank is done"
    );
}

/// The race that the violation is: which of two unordered steps is refused depends on turns.
#[track_caller]
fn race_of(error: CheckError) -> (Rank, Fault) {
    match error {
        CheckError::Step { rank, fault, .. } => (rank, fault),
        other => panic!("not a fault of a step: {other}"),
    }
}

/// A rank that also writes another's shard has no frame between the two writes.
#[test]
fn two_writers_between_the_same_barriers_race() {
    let is_direct = |step: &Step| matches!(step, Step::ReduceDirect { .. });
    let at = |steps: &[Step]| steps.iter().position(is_direct).unwrap();
    let error = violation(direct(3), |lists| {
        let (from, to) = (at(&lists[0]), at(&lists[1]));
        lists[1][to] = lists[0][from].clone();
    });
    let (rank, fault) = race_of(error);
    let race = Fault::Race {
        other: if rank == R0 { R1 } else { R0 },
        owner: R0,
        range: range(0, 1),
    };
    assert_eq!(fault, race);
}

#[test]
fn a_local_write_beside_a_direct_read_is_a_race() {
    let error = violation(direct(2), |lists| {
        let own = Step::Reduce {
            target: range(0, 1),
            sources: Box::new([Source::Own]),
            stage: Stage::Partial,
        };
        lists[1].insert(BARRIER_STEPS, own);
    });
    let (rank, fault) = race_of(error);
    let race = Fault::Race {
        other: if rank == R0 { R1 } else { R0 },
        owner: R1,
        range: range(0, 1),
    };
    assert_eq!(fault, race);
}

#[test]
fn direct_steps_name_members_and_write_somewhere() {
    for (sources, targets, expected) in [
        (&[] as &[Rank], &[R0] as &[Rank], Fault::NoSources),
        (&[R0, R1], &[], Fault::NoTargets),
        (&[R0, R2], &[R0], Fault::NotAMember { rank: R2 }),
        (&[R0, R1], &[R2], Fault::NotAMember { rank: R2 }),
    ] {
        let error = violation(direct(2), |lists| {
            lists[0][BARRIER_STEPS] = Step::ReduceDirect {
                range: range(0, 1),
                sources: sources.into(),
                targets: targets.into(),
                stage: Stage::Final,
            };
        });
        assert_eq!(fault_at(error, (R0, BARRIER_STEPS)), expected);
    }
}

/// The same step, but for its stage, behind the fold of rank 0's shard.
fn again(stage: Stage) -> Plan {
    let schedule = direct(2);
    let mut lists = step_lists(&schedule);
    let step = Step::ReduceDirect {
        range: range(0, 1),
        sources: [R0].into(),
        targets: [R1].into(),
        stage,
    };
    lists[0].insert(BARRIER_STEPS + 1, step);
    Plan::with_steps(schedule, lists)
}

#[test]
fn a_finished_value_is_copied_directly_but_not_finished_again() {
    check_plan(&again(Stage::Partial), NonZeroUsize::MIN).unwrap();
    let error = check_plan(&again(Stage::Final), NonZeroUsize::MIN).unwrap_err();
    assert_eq!(
        fault_at(error, (R0, BARRIER_STEPS + 1)),
        Fault::AlreadyFinal { range: range(0, 1) }
    );
}

#[test]
fn a_rank_touches_only_what_it_has() {
    let sizes = Sizes {
        ranks: 3,
        count: 3,
        chunk: 1,
    };
    let gather = schedule(Collective::Gather { root: R0 }, Algorithm::OneShot, sizes);
    let error = violation(gather.clone(), |lists| {
        lists[1][0] = Step::Put {
            peer: R0,
            source: range(2, 3),
        };
    });
    let outside = Fault::OutsideExtent { range: range(2, 3) };
    assert_eq!(fault_at(error.clone(), (R1, 0)), outside);
    assert_eq!(
        error.to_string(),
        "rank 1, step 0 (put 2..3 -> rank 0): 2..3 is outside of what the rank brings and ends with"
    );
    // What a rank brings to a gather stays as it is.
    let error = violation(gather, |lists| {
        lists[1].push(Step::Reduce {
            target: range(1, 2),
            sources: Box::new([Source::Own]),
            stage: Stage::Partial,
        });
    });
    let kept = Fault::WritesInput { range: range(1, 2) };
    assert_eq!(fault_at(error, (R1, 1)), kept);
}

/// Without its last round nobody has heard of everyone, although every frame finds its reader.
#[test]
fn a_barrier_that_lacks_a_round_is_left_too_early() {
    let sizes = Sizes {
        ranks: 4,
        count: 0,
        chunk: 1,
    };
    let schedule = schedule(Collective::Barrier, Algorithm::Dissemination, sizes);
    let error = violation(schedule, |lists| {
        lists.iter_mut().for_each(|steps| steps.truncate(3))
    });
    assert_eq!(
        error,
        CheckError::EarlyLeave {
            rank: R0,
            missing: R1
        }
    );
}
