//! A verifier that cannot fail is worthless: correct plans are damaged in every small way, and
//! each damaged plan must be refused; and what is accepted must compute the right numbers.

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
                samples.push(schedule(
                    collective,
                    algorithm,
                    Sizes {
                        ranks,
                        count,
                        chunk,
                    },
                ));
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
        everyone
            .filter_map(|peer| with_peer(step, peer))
            .map(|step| vec![step])
            .collect()
    });
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
        let mut others = vec![
            ElemRange::new(start, end + 1),
            ElemRange::new(start + 1, end + 1),
        ];
        if !range.is_empty() {
            others.extend([
                ElemRange::new(start + 1, end),
                ElemRange::new(start, end - 1),
            ]);
            others.extend([ElemRange::new(start, start), ElemRange::new(end, end)]);
        }
        if start > 0 {
            others.extend([
                ElemRange::new(start - 1, end),
                ElemRange::new(start - 1, end - 1),
            ]);
        }
        // Where an empty frame is empty makes no difference.
        others.retain(|other| !(range.is_empty() && other.is_empty() && other.end() <= count));
        // Nor does a copy of more than is due, if it stays between the barriers.
        if matches!(step, Step::ReduceDirect { sources, .. } if sources.len() == 1) {
            others.retain(|other| start < other.start() || other.end() < end);
        }
        others
            .into_iter()
            .map(|range| vec![with_range(step, range)])
            .collect()
    });
}

fn with_range(step: &Step, range: ElemRange) -> Step {
    match step.clone() {
        Step::Put { peer, .. } => Step::Put {
            peer,
            source: range,
        },
        Step::Reduce { sources, stage, .. } => Step::Reduce {
            target: range,
            sources,
            stage,
        },
        Step::Copy { peer, .. } => Step::Copy {
            peer,
            target: range,
        },
        Step::ReduceDirect {
            sources,
            targets,
            stage,
            ..
        } => Step::ReduceDirect {
            range,
            sources,
            targets,
            stage,
        },
        step @ (Step::Wait { .. } | Step::Release { .. }) => step,
    }
}

#[test]
fn another_stage_is_refused() {
    refuse_everywhere("has another stage", |_, _, step| match step.clone() {
        Step::Reduce {
            target,
            sources,
            stage,
        } => {
            let stage = match stage {
                Stage::Partial => Stage::Final,
                Stage::Final => Stage::Partial,
            };
            vec![vec![Step::Reduce {
                target,
                sources,
                stage,
            }]]
        }
        _ => vec![],
    });
}

#[test]
fn other_sources_are_refused() {
    refuse_everywhere("has other sources", |schedule, _, step| {
        let Step::Reduce {
            target,
            sources,
            stage,
        } = step
        else {
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
        others
            .into_iter()
            .map(|sources| vec![reduce(sources)])
            .collect()
    });
}

#[test]
fn other_ranks_of_a_direct_step_are_refused() {
    refuse_everywhere("has other ranks", |schedule, _, step| {
        let Step::ReduceDirect {
            range,
            sources,
            targets,
            stage,
        } = step
        else {
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
        let other_sources = changed(schedule, sources)
            .into_iter()
            .map(|sources| direct(sources, targets.to_vec()));
        // One target too many may be harmless; one that is missing never is.
        let other_targets = changed(schedule, targets)
            .into_iter()
            .map(|targets| direct(sources.to_vec(), targets));
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
                    assert_refused(
                        &plan,
                        &format!("rank {rank} swaps step {index} and the next"),
                    );
                    damaged += 1;
                }
            }
        }
    }
    assert!(damaged > 100, "only {damaged} plans were damaged");
}

/// Runs the plan on numbers if the verifier accepts it; it must then compute what was promised.
fn assert_sound(plan: &Plan, slots: usize, seed: u64) -> Result<Verdict, TestCaseError> {
    let Ok(_) = check_plan(plan, elems(slots)) else {
        return Ok(Verdict::Refused);
    };
    let input = Noise(seed).words(plan.schedule());
    let output = execute(plan, slots, input.clone());
    let right = output.is_some_and(|output| is_promised(plan.schedule(), &input, &output));
    prop_assert!(
        right,
        "accepted with {slots} slots, but computes something else:\n{plan}"
    );
    Ok(Verdict::Accepted)
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Refused,
}

/// Swaps every two steps of a rank. Some swaps are harmless; the others must be refused.
#[test]
fn swapped_steps_are_refused_unless_the_numbers_stay_right() {
    let (mut accepted, mut refused) = (0, 0);
    for schedule in samples()
        .into_iter()
        .filter(|schedule| schedule.world_size().len() < 5)
    {
        let rank = Rank::new(schedule.world_size().get() - 1);
        let steps = schedule.steps(rank);
        for first in 0..steps.len() {
            for second in first + 1..steps.len() {
                let mut lists = step_lists(&schedule);
                lists[rank.index()].swap(first, second);
                let plan = Plan::with_steps(schedule.clone(), lists);
                match assert_sound(&plan, 1, 7).unwrap() {
                    Verdict::Accepted => accepted += 1,
                    Verdict::Refused => refused += 1,
                }
            }
        }
    }
    assert!(
        accepted > 0 && refused > accepted,
        "{accepted} accepted, {refused} refused"
    );
}

/// One way to damage a plan; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Damage {
    Drop {
        rank: usize,
        at: usize,
    },
    Move {
        rank: usize,
        from: usize,
        to: usize,
    },
    Repeat {
        rank: usize,
        at: usize,
        to: usize,
    },
    Peer {
        rank: usize,
        at: usize,
        peer: u32,
    },
    Range {
        rank: usize,
        at: usize,
        start: usize,
        len: usize,
    },
    Sources {
        rank: usize,
        at: usize,
        first: usize,
        second: usize,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || (any::<usize>(), any::<usize>());
    prop_oneof![
        place().prop_map(|(rank, at)| Damage::Drop { rank, at }),
        (place(), any::<usize>()).prop_map(|((rank, from), to)| Damage::Move { rank, from, to }),
        (place(), any::<usize>()).prop_map(|((rank, at), to)| Damage::Repeat { rank, at, to }),
        (place(), 0..6_u32).prop_map(|((rank, at), peer)| Damage::Peer { rank, at, peer }),
        (place(), 0..14_usize, 0..5_usize).prop_map(|((rank, at), start, len)| Damage::Range {
            rank,
            at,
            start,
            len
        }),
        (place(), place()).prop_map(|((rank, at), (first, second))| Damage::Sources {
            rank,
            at,
            first,
            second
        }),
    ]
}

fn inflict(lists: &mut [Vec<Step>], damage: &Damage) {
    let (Damage::Drop { rank, at }
    | Damage::Move { rank, from: at, .. }
    | Damage::Repeat { rank, at, .. }
    | Damage::Peer { rank, at, .. }
    | Damage::Range { rank, at, .. }
    | Damage::Sources { rank, at, .. }) = *damage;
    let ranks = lists.len();
    let steps = &mut lists[rank % ranks];
    if steps.is_empty() {
        return;
    }
    let at = at % steps.len();
    let step = steps[at].clone();
    match *damage {
        Damage::Drop { .. } => drop(steps.remove(at)),
        Damage::Move { to, .. } => {
            steps.remove(at);
            steps.insert(to % (steps.len() + 1), step);
        }
        Damage::Repeat { to, .. } => steps.insert(to % (steps.len() + 1), step),
        Damage::Peer { peer, .. } => {
            steps[at] = with_peer(&step, Rank::new(peer)).unwrap_or(step);
        }
        Damage::Range { start, len, .. } => {
            steps[at] = with_range(&step, ElemRange::new(start, start + len));
        }
        Damage::Sources { first, second, .. } => {
            if let Step::Reduce {
                target,
                mut sources,
                stage,
            } = step
            {
                let len = sources.len();
                sources.swap(first % len, second % len);
                steps[at] = Step::Reduce {
                    target,
                    sources,
                    stage,
                };
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    /// The verifier may refuse a plan that happens to work, but never accepts one that does not.
    #[test]
    fn an_accepted_plan_computes_what_was_promised(
        ranks in 1..6_usize,
        kind in any::<usize>(),
        count in 0..14_usize,
        chunk in 1..5_usize,
        slots in 1..4_usize,
        damages in prop::collection::vec(damage(), 0..4),
        seed in any::<u64>(),
    ) {
        let kinds = all_kinds(ranks);
        let (collective, algorithm) = kinds[kind % kinds.len()];
        let count = possible_count(collective, ranks, count);
        let schedule = schedule(collective, algorithm, Sizes { ranks, count, chunk });
        let mut lists = step_lists(&schedule);
        for damage in &damages {
            inflict(&mut lists, damage);
        }
        let verdict = assert_sound(&Plan::with_steps(schedule.clone(), lists), slots, seed)?;
        prop_assert!(!damages.is_empty() || verdict == Verdict::Accepted);
    }
}

/// The engine of these tests agrees with the canonical fold bit by bit, where the verifier says so.
#[test]
fn canonical_plans_give_the_bits_of_the_fold_in_rank_order() {
    let (mut canonical, mut fixed) = (0, 0);
    for schedule in samples() {
        let report = check_plan(&Plan::new(schedule.clone()), NonZeroUsize::MIN).unwrap();
        let input = Noise(11).floats(&schedule);
        let output = execute(&Plan::new(schedule.clone()), 1, input.clone()).unwrap();
        if report.order == bonfire_plan::Order::Canonical {
            assert!(is_promised(&schedule, &input, &output), "{schedule}");
            canonical += 1;
        } else {
            fixed += 1;
        }
        if schedule.collective() == Collective::AllReduce {
            let bits = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(
                output.iter().all(|row| bits(row) == bits(&output[0])),
                "{schedule}"
            );
        }
    }
    assert!(canonical > 0 && fixed > 0);
}
