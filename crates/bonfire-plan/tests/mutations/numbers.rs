//! Damage that may be harmless: what the verifier accepts computes the right numbers.

use super::*;

/// Runs the plan on numbers if the verifier accepts it; it must then compute what was promised.
fn assert_sound(plan: &Plan, slots: usize, seed: u64) -> Result<Verdict, TestCaseError> {
    let Ok(_) = check_plan(plan, elems(slots)) else {
        return Ok(Verdict::Refused);
    };
    let input = Noise(seed).words(plan.schedule());
    let output = execute(plan, slots, input.clone());
    let right = output.is_some_and(|output| is_promised(plan.schedule(), &input, &output));
    prop_assert!(right, "accepted with {slots} slots, but computes something else:\n{plan}");
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
    for schedule in samples().into_iter().filter(|schedule| schedule.world_size().len() < 5) {
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
    assert!(accepted > 0 && refused > accepted, "{accepted} accepted, {refused} refused");
}

/// One way to damage a plan; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Damage {
    Drop { rank: usize, at: usize },
    Move { rank: usize, from: usize, to: usize },
    Repeat { rank: usize, at: usize, to: usize },
    Peer { rank: usize, at: usize, peer: u32 },
    Range { rank: usize, at: usize, start: usize, len: usize },
    Sources { rank: usize, at: usize, first: usize, second: usize },
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
            if let Step::Reduce { target, mut sources, stage } = step {
                let len = sources.len();
                sources.swap(first % len, second % len);
                steps[at] = Step::Reduce { target, sources, stage };
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
            assert!(output.iter().all(|row| bits(row) == bits(&output[0])), "{schedule}");
        }
    }
    assert!(canonical > 0 && fixed > 0);
}
