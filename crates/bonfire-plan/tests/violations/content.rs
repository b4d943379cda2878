//! Data that is not what the collective promises.

use super::*;

#[test]
fn a_reduce_of_nothing_is_named() {
    let nothing = Step::Reduce { target: range(0, 1), sources: Box::new([]), stage: Stage::Final };
    let error = violation(one_element(1), |lists| lists[0][0] = nothing);
    assert_eq!(fault_at(error, (R0, 0)), Fault::NoSources);
}

#[test]
fn unwritten_data_is_not_sent() {
    let sizes = Sizes { ranks: 3, count: 3, chunk: 1 };
    let schedule = schedule(Collective::AllGather, Algorithm::Ring, sizes);
    let put = Step::Put { peer: R1, source: range(1, 2) };
    let error = violation(schedule, |lists| lists[0][0] = put);
    assert_eq!(fault_at(error, (R0, 0)), Fault::Undefined { range: range(1, 2) });
}

#[test]
fn unwritten_data_is_not_folded() {
    let sizes = Sizes { ranks: 3, count: 3, chunk: 1 };
    let schedule = schedule(Collective::AllGather, Algorithm::Ring, sizes);
    let sources = Box::new([Source::Own]);
    let fold = Step::Reduce { target: range(1, 2), sources, stage: Stage::Partial };
    let error = violation(schedule, |lists| lists[0].insert(0, fold));
    assert_eq!(fault_at(error, (R0, 0)), Fault::Undefined { range: range(1, 2) });
}

#[test]
fn a_rank_that_contributes_twice_is_named() {
    let error = violation(one_element(2), |lists| {
        let sources = Box::new([Source::Inbox(R0), Source::Own, Source::Inbox(R0)]);
        lists[1][2] = Step::Reduce { target: range(0, 1), sources, stage: Stage::Final };
    });
    let twice = Fault::FoldedTwice { rank: R0, range: range(0, 1) };
    assert_eq!(fault_at(error, (R1, 2)), twice);
}

#[test]
fn a_second_final_stage_is_named() {
    let finish =
        Step::Reduce { target: range(0, 1), sources: Box::new([Source::Own]), stage: Stage::Final };
    let error = violation(one_element(2), |lists| lists[1].push(finish));
    assert_eq!(fault_at(error, (R1, 4)), Fault::AlreadyFinal { range: range(0, 1) });
}

#[test]
fn a_result_without_its_final_stage_is_named() {
    let sources = Box::new([Source::Inbox(R0), Source::Own]);
    let partial = Step::Reduce { target: range(0, 1), sources, stage: Stage::Partial };
    let error = violation(one_element(2), |lists| lists[1][2] = partial);
    let unfinished = CheckError::Result { rank: R1, range: range(0, 1), flaw: Flaw::NotFinal };
    assert_eq!(error, unfinished);
}

#[test]
fn a_result_without_a_ranks_data_is_named() {
    let sources = Box::new([Source::Inbox(R0)]);
    let lonely = Step::Reduce { target: range(0, 1), sources, stage: Stage::Final };
    let error = violation(one_element(2), |lists| lists[1][2] = lonely);
    let flaw = Flaw::Missing { rank: R1 };
    assert_eq!(error, CheckError::Result { rank: R1, range: range(0, 1), flaw });
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
    let differ = CheckError::Divergence { first: R0, second: R2, range: range(0, 1) };
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
fn a_fold_in_rank_order_that_is_rounded_on_the_way_is_found() {
    let whole = range(0, 1);
    let put = |peer| Step::Put { peer, source: whole };
    let taken = |peer, step| vec![Step::Wait { peer }, step, Step::Release { peer }];
    let copied = |peer| taken(peer, Step::Copy { peer, target: whole });
    let folded = |peer, stage| {
        let sources = Box::new([Source::Inbox(peer), Source::Own]);
        taken(peer, Step::Reduce { target: whole, sources, stage })
    };
    let lists = vec![
        [vec![put(R1)], copied(R2)].concat(),
        [folded(R0, Stage::Partial), vec![put(R2)], copied(R2)].concat(),
        [folded(R1, Stage::Final), vec![put(R0), put(R1)]].concat(),
    ];
    let report = check_plan(&Plan::with_steps(one_element(3), lists), elems(1)).unwrap();
    assert_eq!(report.order, Order::Rounded);
    assert_eq!(report.cost.rounds(), 3);
}

#[test]
fn data_that_is_not_its_owners_is_named() {
    let sizes = Sizes { ranks: 2, count: 1, chunk: 1 };
    let schedule = schedule(Collective::AllGather, Algorithm::Ring, sizes);
    let sources = Box::new([Source::Inbox(R0)]);
    let finished = Step::Reduce { target: range(0, 1), sources, stage: Stage::Final };
    let error = violation(schedule, |lists| {
        let at = lists[1]
            .iter()
            .position(|step| matches!(step, Step::Copy { target, .. } if !target.is_empty()));
        lists[1][at.unwrap()] = finished;
    });
    let flaw = Flaw::NotTheOwners { owner: R0, found: vec![R0] };
    assert_eq!(error, CheckError::Result { rank: R1, range: range(0, 1), flaw });
}

#[test]
fn a_result_that_was_never_written_is_named() {
    let sizes = Sizes { ranks: 2, count: 1, chunk: 1 };
    let schedule = schedule(Collective::Broadcast { root: R1 }, Algorithm::Binomial, sizes);
    let error = violation(schedule, |lists| lists.iter_mut().for_each(Vec::clear));
    let flaw = Flaw::Undefined;
    assert_eq!(error, CheckError::Result { rank: R0, range: range(0, 1), flaw });
}
