//! Frames that are missing, unread, too early, too many, or in the wrong place.

use super::*;

#[test]
fn a_missing_put_is_a_deadlock_that_names_who_waits_for_what() {
    let error = violation(one_element(2), |lists| {
        lists[0].remove(0);
    });
    let blocked = vec![Blocked { rank: R1, index: 1, obstacle: Obstacle::FrameFrom(R0) }];
    assert_eq!(error, CheckError::Deadlock { blocked });
    assert_eq!(error.to_string(), "deadlock: rank 1 waits in step 1 for a frame from rank 0");
}

#[test]
fn ranks_that_all_wait_first_are_all_named() {
    let error = violation(one_element(2), |lists| {
        for steps in lists {
            steps.swap(0, 1);
        }
    });
    let CheckError::Deadlock { blocked } = error else { panic!("{error}") };
    let named: Vec<_> = blocked.iter().map(|b| (b.rank, b.index, b.obstacle)).collect();
    assert_eq!(named, [(R0, 0, Obstacle::FrameFrom(R1)), (R1, 0, Obstacle::FrameFrom(R0))]);
}

/// Both ranks put two frames before they release one: enough slots make it a plan.
#[test]
fn too_few_slots_are_a_deadlock_and_enough_are_not() {
    let sizes = Sizes { ranks: 2, count: 2, chunk: 1 };
    let schedule = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
    let mut lists = step_lists(&schedule);
    for steps in &mut lists {
        let second = steps.iter().rposition(|step| matches!(step, Step::Put { .. })).unwrap();
        let put = steps.remove(second);
        steps.insert(0, put);
        steps.swap(0, 1);
    }
    let plan = Plan::with_steps(schedule.clone(), lists);
    let error = check_plan(&plan, elems(1)).unwrap_err();
    let CheckError::Deadlock { blocked } = error else { panic!("{error}") };
    let obstacles: Vec<_> = blocked.iter().map(|blocked| blocked.obstacle).collect();
    assert_eq!(obstacles, [Obstacle::SlotAt(R1), Obstacle::SlotAt(R0)]);
    assert_eq!(check_plan(&plan, elems(2)).unwrap().order, Order::Canonical);
}

#[test]
fn a_frame_that_is_never_released_is_named() {
    let error = violation(one_element(2), |lists| {
        lists[1].pop();
    });
    let left = CheckError::Unreleased { from: R0, to: R1, index: 0, source_range: range(0, 1) };
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
    assert_eq!(fault_at(error.clone(), (R1, 1)), Fault::NotAwaited { peer: R0 });
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
    assert_eq!(fault_at(error, (R1, 2)), Fault::Unread { peer: R0, sent: range(0, 1) });
}

#[test]
fn a_rank_is_no_peer_of_itself_and_strangers_are_no_peers() {
    for peer in [R0, R2] {
        let step = Step::Put { peer, source: range(0, 1) };
        let error = violation(one_element(2), |lists| lists[0][0] = step);
        assert_eq!(fault_at(error, (R0, 0)), Fault::NotAPeer { peer });
    }
}

#[test]
fn ranges_must_fit_the_buffer_the_slot_and_the_frame() {
    let sizes = Sizes { ranks: 2, count: 4, chunk: 2 };
    let schedule = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
    let put = |start, end| Step::Put { peer: R1, source: range(start, end) };
    let error = violation(schedule.clone(), |lists| lists[0][0] = put(3, 5));
    let outside = Fault::OutOfBounds { range: range(3, 5), count: 4 };
    assert_eq!(fault_at(error, (R0, 0)), outside);
    let error = violation(schedule.clone(), |lists| lists[0][0] = put(0, 3));
    let long = Fault::FrameTooLong { range: range(0, 3), chunk_elems_max: 2 };
    assert_eq!(fault_at(error, (R0, 0)), long);
    // As long as it should be, but other elements.
    let error = violation(schedule, |lists| lists[0][0] = put(1, 3));
    let moved = Fault::FrameMismatch { peer: R0, sent: range(1, 3), target: range(0, 2) };
    assert_eq!(fault_at(error, (R1, 2)), moved);
}

#[test]
fn a_rank_touches_only_what_it_has() {
    let sizes = Sizes { ranks: 3, count: 3, chunk: 1 };
    let gather = schedule(Collective::Gather { root: R0 }, Algorithm::OneShot, sizes);
    let error = violation(gather.clone(), |lists| {
        lists[1][0] = Step::Put { peer: R0, source: range(2, 3) };
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
    let sizes = Sizes { ranks: 4, count: 0, chunk: 1 };
    let schedule = schedule(Collective::Barrier, Algorithm::Dissemination, sizes);
    let error = violation(schedule, |lists| lists.iter_mut().for_each(|steps| steps.truncate(3)));
    assert_eq!(error, CheckError::EarlyLeave { rank: R0, missing: R1 });
}
