//! Schedules are damaged in every small way, and each that is refused is refused with the rule that it breaks.

use bonfire_plan::pipeline::{Action, Broken, Kind, Pass, Payload, Rule, Schedule, verify};

use crate::{complete, rank, schedule, toy};

/// Every kind, with messages, sums and gathers; small, so that every pair of actions can be exchanged.
fn samples() -> Vec<Schedule> {
    let sizes = |kind| match kind {
        Kind::Interleaved => vec![[2, 2, 4], [3, 2, 3], [2, 3, 2]],
        Kind::ZeroBubbleV => vec![[1, 2, 2], [2, 2, 4], [3, 2, 5]],
        _ => vec![[2, 1, 2], [2, 1, 4], [3, 1, 4]],
    };
    // Without gathers, sums directly follow the gradients.
    let both = |sizes, kind| {
        let plain = schedule(kind, sizes).with_messages().unwrap();
        [plain.with_reductions(), complete(schedule(kind, sizes))]
    };
    let of_kind = |&kind| sizes(kind).into_iter().flat_map(move |sizes| both(sizes, kind));
    Kind::ALL.iter().flat_map(of_kind).collect()
}

/// Applies `damage` to a copy of one rank's list for every action, and gives the verdict to `check`.
fn everywhere(
    damage: impl Fn(&mut Vec<Action>, usize),
    check: impl Fn(&Schedule, u32, usize, Action, Result<(), Broken>),
) {
    for schedule in samples() {
        for (number, list) in (0..).zip(schedule.lists()) {
            for (index, &action) in list.iter().enumerate() {
                let mut lists = schedule.lists().to_vec();
                damage(&mut lists[number as usize], index);
                let damaged = schedule.clone().with_lists(lists);
                check(&schedule, number, index, action, verify(&damaged).map(|_| ()));
            }
        }
    }
}

#[test]
fn an_action_that_is_left_out_is_missed() {
    everywhere(
        |list, index| {
            list.remove(index);
        },
        |schedule, number, index, action, verdict| {
            let broken = verdict.expect_err("an action is missing");
            let rank = rank(number);
            match action {
                Action::Gather { stage } => {
                    // The first pass over the stage has moved up by one.
                    let list = &schedule.actions(rank)[index + 1..];
                    let is_first = |it: &Action| {
                        matches!(it, Action::Compute(_) | Action::Release { .. })
                            && it.stage() == stage
                    };
                    let first = index + list.iter().position(is_first).unwrap();
                    assert!(
                        matches!(broken, Broken::Action { rank: at, index, rule: Rule::NotGathered, .. }
                            if (at, index) == (rank, first)),
                        "{action}: {broken}"
                    );
                }
                _ => assert_eq!(broken, Broken::Missing { rank, action }),
            }
        },
    );
}

#[test]
fn an_action_that_is_there_twice_is_found() {
    everywhere(
        |list, index| list.insert(index + 1, list[index]),
        |_, number, index, action, verdict| {
            let rule = match action {
                Action::Gather { .. } => Rule::AlreadyGathered,
                Action::Release { .. } => Rule::NotGathered,
                _ => Rule::Repeated { first: index },
            };
            let expected = Broken::Action { rank: rank(number), index: index + 1, action, rule };
            assert_eq!(verdict, Err(expected));
        },
    );
}

/// What is wrong when `second` comes in front of `first`, which it directly follows.
fn dependence(schedule: &Schedule, first: Action, second: Action) -> Option<Rule> {
    let needs = first;
    let same = first.stage() == second.stage();
    match (first, second) {
        (Action::Compute(one), Action::Compute(two)) => {
            if one.micro_batch != two.micro_batch {
                return None;
            }
            let is_here = schedule.owner(one.stage) == schedule.owner(two.stage);
            match (one.pass, two.pass) {
                (Pass::Forward, Pass::Backward | Pass::InputGradient) if same => {
                    Some(Rule::BeforeForward(needs))
                }
                (Pass::InputGradient, Pass::WeightGradient) if same => {
                    Some(Rule::BeforeInputGradient(needs))
                }
                (Pass::Forward, Pass::Forward) if is_here && one.stage + 1 == two.stage => {
                    Some(Rule::BeforeNeighbour(needs))
                }
                (Pass::Backward | Pass::InputGradient, Pass::Backward | Pass::InputGradient)
                    if is_here && one.stage == two.stage + 1 =>
                {
                    Some(Rule::BeforeNeighbour(needs))
                }
                _ => None,
            }
        }
        (Action::Receive(message), Action::Compute(two)) => {
            let is_input = match message.payload {
                Payload::Activation => two.pass == Pass::Forward,
                Payload::Gradient => matches!(two.pass, Pass::Backward | Pass::InputGradient),
            };
            let is_its = is_input && same && message.micro_batch == two.micro_batch;
            is_its.then_some(Rule::BeforeReceive(needs))
        }
        (Action::Compute(one), Action::Send(message)) => {
            let is_output = match message.payload {
                Payload::Activation => one.pass == Pass::Forward,
                Payload::Gradient => matches!(one.pass, Pass::Backward | Pass::InputGradient),
            };
            let is_its = is_output && same && message.micro_batch == one.micro_batch;
            is_its.then_some(Rule::BeforeResult(needs))
        }
        (Action::Compute(one), Action::ReduceGradients { .. }) => {
            let adds = matches!(one.pass, Pass::Backward | Pass::WeightGradient);
            (same && adds).then_some(Rule::BeforeGradient(needs))
        }
        (Action::Gather { .. }, Action::Compute(_))
        | (Action::Compute(_), Action::Release { .. }) => same.then_some(Rule::NotGathered),
        _ => None,
    }
}

#[test]
fn neighbours_that_depend_on_each_other_cannot_be_exchanged() {
    let mut rules = std::collections::BTreeMap::new();
    for schedule in samples() {
        for (number, list) in (0..).zip(schedule.lists()) {
            for (index, pair) in list.windows(2).enumerate() {
                let mut lists = schedule.lists().to_vec();
                lists[number as usize].swap(index, index + 1);
                let verdict = verify(&schedule.clone().with_lists(lists));
                let Some(rule) = dependence(&schedule, pair[0], pair[1]) else {
                    continue;
                };
                // A release that comes too early is found at the pass behind it.
                let (index, action) = match pair[1] {
                    Action::Release { .. } => (index + 1, pair[0]),
                    second => (index, second),
                };
                *rules
                    .entry(format!("{rule:?}").split('(').next().unwrap().to_owned())
                    .or_insert(0) += 1;
                let expected = Broken::Action { rank: rank(number), index, action, rule };
                assert_eq!(verdict, Err(expected), "{} and {}", pair[0], pair[1]);
            }
        }
    }
    // Every rule was met.
    assert_eq!(rules.len(), 7, "{rules:?}");
}

/// What is accepted must still compute the gradients, and what is refused for waiting must not end.
#[test]
fn any_two_actions_exchanged_are_refused_or_harmless() {
    let (mut harmless, mut refused) = (0, 0);
    for schedule in samples() {
        let expected = toy::expected(&schedule);
        for number in 0..schedule.lists().len() {
            let count = schedule.lists()[number].len();
            let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |two| (one, two)));
            for (one, two) in pairs {
                let mut lists = schedule.lists().to_vec();
                lists[number].swap(one, two);
                let damaged = schedule.clone().with_lists(lists);
                match verify(&damaged) {
                    Ok(proof) => {
                        let (gradients, live_max) = toy::train(&damaged).expect("it was proved");
                        assert_eq!((gradients, live_max), (expected.clone(), proof.live_max));
                        harmless += 1;
                    }
                    Err(Broken::Live { live, promised, .. }) => {
                        assert_ne!(live, promised);
                        assert_eq!(toy::train(&damaged).unwrap().0, expected);
                    }
                    Err(Broken::Deadlock { blocked }) => {
                        assert!(!blocked.is_empty());
                        assert_eq!(toy::train(&damaged), None, "{blocked:?}");
                    }
                    Err(Broken::MessageOrder { .. }) => assert_eq!(toy::train(&damaged), None),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(harmless > 100 && refused > 10 * harmless, "{harmless} harmless, {refused} refused");
}
