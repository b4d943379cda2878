//! Direct steps that race, or that name the wrong ranks.

use super::*;

/// All ranks fold their shard of everyone's buffers, one element each.
fn direct(ranks: usize) -> Schedule {
    let sizes = Sizes { ranks, count: ranks, chunk: 1 };
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
    let race = Fault::Race { other: R1, owner: R1, range: range(0, 1) };
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
    let late = CheckError::LateAccess { rank: R1, owner: R0, range: range(1, 2) };
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
    let race =
        Fault::Race { other: if rank == R0 { R1 } else { R0 }, owner: R0, range: range(0, 1) };
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
    let race =
        Fault::Race { other: if rank == R0 { R1 } else { R0 }, owner: R1, range: range(0, 1) };
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
