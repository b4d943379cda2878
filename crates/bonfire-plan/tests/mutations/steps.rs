//! Damage to one step that no plan survives.

use super::*;

#[test]
fn undamaged_samples_are_accepted() {
    for schedule in samples() {
        let plan = Plan::new(schedule.clone());
        for slots in 1..4 {
            assert!(check_plan(&plan, elems(slots)).is_ok(), "{plan}");
        }
    }
}

#[test]
fn a_dropped_step_is_refused() {
    refuse_everywhere("is dropped", |_, _, _| vec![vec![]]);
}

#[test]
fn a_doubled_step_is_refused() {
    // Copying the same data twice to the same place is harmless.
    refuse_everywhere("is doubled", |_, _, step| match step {
        Step::Copy { .. } => vec![],
        Step::ReduceDirect { sources, .. } if sources.len() == 1 => vec![],
        _ => vec![vec![step.clone(), step.clone()]],
    });
}

#[test]
fn another_peer_is_refused() {
    refuse_everywhere("has another peer", |schedule, _, step| {
        let outsider = Rank::new(schedule.world_size().get());
        let everyone = schedule.world_size().ranks().chain([outsider]);
        everyone.filter_map(|peer| with_peer(step, peer)).map(|step| vec![step]).collect()
    });
}

#[test]
fn another_range_is_refused() {
    refuse_everywhere("has another range", |schedule, _, step| {
        let count = schedule.count();
        let (Step::Put { source: range, .. }
        | Step::Reduce { target: range, .. }
        | Step::Copy { target: range, .. }
        | Step::ReduceDirect { range, .. }) = step
        else {
            return vec![];
        };
        let (start, end) = (range.start(), range.end());
        let mut others = vec![ElemRange::new(start, end + 1), ElemRange::new(start + 1, end + 1)];
        if !range.is_empty() {
            others.extend([ElemRange::new(start + 1, end), ElemRange::new(start, end - 1)]);
            others.extend([ElemRange::new(start, start), ElemRange::new(end, end)]);
        }
        if start > 0 {
            others.extend([ElemRange::new(start - 1, end), ElemRange::new(start - 1, end - 1)]);
        }
        // Where an empty frame is empty makes no difference.
        others.retain(|other| !(range.is_empty() && other.is_empty() && other.end() <= count));
        // Nor does a copy of more than is due, if it stays between the barriers.
        if matches!(step, Step::ReduceDirect { sources, .. } if sources.len() == 1) {
            others.retain(|other| start < other.start() || other.end() < end);
        }
        others.into_iter().map(|range| vec![with_range(step, range)]).collect()
    });
}

#[test]
fn another_stage_is_refused() {
    refuse_everywhere("has another stage", |_, _, step| match step.clone() {
        Step::Reduce { target, sources, stage } => {
            let stage = match stage {
                Stage::Partial => Stage::Final,
                Stage::Final => Stage::Partial,
            };
            vec![vec![Step::Reduce { target, sources, stage }]]
        }
        _ => vec![],
    });
}

#[test]
fn other_sources_are_refused() {
    refuse_everywhere("has other sources", |schedule, _, step| {
        let Step::Reduce { target, sources, stage } = step else {
            return vec![];
        };
        let inboxes = schedule.world_size().ranks().map(Source::Inbox);
        let every_source: Vec<_> = inboxes.chain([Source::Own]).collect();
        let mut others = Vec::new();
        for index in 0..sources.len() {
            let mut fewer = sources.to_vec();
            let removed = fewer.remove(index);
            others.push(fewer);
            for &source in every_source.iter().filter(|&&source| source != removed) {
                let mut changed = sources.to_vec();
                changed[index] = source;
                others.push(changed);
            }
        }
        for &source in &every_source {
            others.push(sources.iter().copied().chain([source]).collect());
        }
        let reduce = |sources: Vec<Source>| Step::Reduce {
            target: *target,
            sources: sources.into(),
            stage: *stage,
        };
        others.into_iter().map(|sources| vec![reduce(sources)]).collect()
    });
}

#[test]
fn other_ranks_of_a_direct_step_are_refused() {
    refuse_everywhere("has other ranks", |schedule, _, step| {
        let Step::ReduceDirect { range, sources, targets, stage } = step else {
            return vec![];
        };
        let direct = |sources: Vec<Rank>, targets: Vec<Rank>| {
            vec![Step::ReduceDirect {
                range: *range,
                sources: sources.into(),
                targets: targets.into(),
                stage: *stage,
            }]
        };
        let other_sources =
            changed(schedule, sources).into_iter().map(|sources| direct(sources, targets.to_vec()));
        // One target too many may be harmless; one that is missing never is.
        let other_targets =
            changed(schedule, targets).into_iter().map(|targets| direct(sources.to_vec(), targets));
        other_sources.chain(other_targets).collect()
    });
}

/// The list without one of its ranks, and with one that is not in it in that one's place.
fn changed(schedule: &Schedule, ranks: &[Rank]) -> Vec<Vec<Rank>> {
    let outsider = Rank::new(schedule.world_size().get());
    let others: Vec<_> = schedule
        .world_size()
        .ranks()
        .chain([outsider])
        .filter(|rank| !ranks.contains(rank))
        .collect();
    let mut lists = Vec::new();
    for index in 0..ranks.len() {
        let mut fewer = ranks.to_vec();
        fewer.remove(index);
        lists.push(fewer);
        for &other in &others {
            let mut replaced = ranks.to_vec();
            replaced[index] = other;
            lists.push(replaced);
        }
    }
    lists
}

#[test]
fn a_direct_step_outside_of_its_barriers_is_refused() {
    let mut damaged = 0;
    for schedule in samples() {
        let has_barriers = schedule.algorithm() == Algorithm::ZeroCopy;
        if !has_barriers || schedule.world_size().len() == 1 {
            continue;
        }
        for rank in schedule.world_size().ranks() {
            let steps = schedule.steps(rank);
            for at in 0..steps.len() {
                if !matches!(steps[at], Step::ReduceDirect { .. }) {
                    continue;
                }
                let is_wait = |step: &Step| matches!(step, Step::Wait { .. });
                let is_put = |step: &Step| matches!(step, Step::Put { .. });
                let last_wait = steps[..at].iter().rposition(is_wait).unwrap();
                let next_put = at + steps[at..].iter().position(is_put).unwrap();
                for to in [last_wait, next_put] {
                    let mut lists = step_lists(&schedule);
                    let step = lists[rank.index()].remove(at);
                    lists[rank.index()].insert(to, step);
                    let plan = Plan::with_steps(schedule.clone(), lists);
                    assert_refused(&plan, &format!("rank {rank} moves step {at} to {to}"));
                    damaged += 1;
                }
            }
        }
    }
    assert!(damaged > 100, "only {damaged} plans were damaged");
}

#[test]
fn a_frame_used_outside_of_wait_and_release_is_refused() {
    let mut damaged = 0;
    for schedule in samples() {
        for rank in schedule.world_size().ranks() {
            let steps = schedule.steps(rank);
            for (index, pair) in steps.windows(2).enumerate() {
                let uses_one_frame = match pair {
                    [Step::Wait { peer }, Step::Copy { peer: read, .. }]
                    | [Step::Wait { peer }, Step::Release { peer: read }]
                    | [Step::Copy { peer, .. }, Step::Release { peer: read }] => peer == read,
                    [Step::Wait { peer }, Step::Reduce { sources, .. }]
                    | [Step::Reduce { sources, .. }, Step::Release { peer }] => {
                        sources.contains(&Source::Inbox(*peer))
                    }
                    _ => false,
                };
                if uses_one_frame {
                    let by = vec![pair[1].clone(), pair[0].clone()];
                    let plan = replaced(&schedule, rank, index..index + 2, by);
                    assert_refused(&plan, &format!("rank {rank} swaps step {index} and the next"));
                    damaged += 1;
                }
            }
        }
    }
    assert!(damaged > 100, "only {damaged} plans were damaged");
}
