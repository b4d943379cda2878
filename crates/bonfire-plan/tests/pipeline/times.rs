//! What a simulation says: bubbles, times of passes, messages that take time.

use bonfire_plan::pipeline::{Costs, Kind, PassTimes, simulate};

use crate::{EVEN, complete, schedule, usual};

/// Of 4 ranks, 8 micro-batches and a backward pass of twice the forward pass, in percent.
#[track_caller]
fn check_bubble(kind: Kind, expected: f64) {
    let schedule = usual(kind);
    for schedule in [schedule.clone(), complete(schedule)] {
        let timing = simulate(&schedule, &Costs::even(EVEN, &schedule, 0.0).unwrap()).unwrap();
        let bubble = 100.0 * timing.bubble();
        assert!((bubble - expected).abs() < 0.05, "{kind}: {bubble} is not {expected}");
    }
}

#[test]
fn bubbles_are_those_of_the_papers() {
    check_bubble(Kind::GPipe, 27.3);
    check_bubble(Kind::OneForwardOneBackward, 27.3);
    check_bubble(Kind::Interleaved, 15.8);
    check_bubble(Kind::ZeroBubbleH1, 11.1);
    check_bubble(Kind::ZeroBubbleV, 5.9);
}

#[test]
fn more_stages_and_micro_batches_make_the_bubble_smaller() {
    let bubble = |sizes| {
        let schedule = schedule(Kind::Interleaved, sizes);
        let costs = Costs::even(EVEN, &schedule, 0.0).unwrap();
        simulate(&schedule, &costs).unwrap().bubble()
    };
    // (p - 1)/(v m + p - 1).
    assert!((bubble([4, 2, 8]) - 3.0 / 19.0).abs() < 1e-12);
    assert!((bubble([4, 4, 8]) - 3.0 / 35.0).abs() < 1e-12);
    assert!((bubble([4, 2, 16]) - 3.0 / 35.0).abs() < 1e-12);
}

/// ZBV is made for passes of equal times.
#[test]
fn the_bubble_of_zbv_grows_when_the_passes_differ() {
    let check =
        |ranks, micro_batches, [input_gradient_s, weight_gradient_s]: [f64; 2], expected: f64| {
            let times = PassTimes { forward_s: 1.0, input_gradient_s, weight_gradient_s };
            let schedule = schedule(Kind::ZeroBubbleV, [ranks, 2, micro_batches]);
            let costs = Costs::even(times, &schedule, 0.0).unwrap();
            let bubble = simulate(&schedule, &costs).unwrap().bubble();
            assert!((bubble - expected).abs() < 0.0005, "{bubble} is not {expected}");
        };
    check(4, 8, [1.0, 1.0], 0.059);
    check(4, 16, [1.0, 1.0], 0.030);
    check(8, 32, [1.0, 1.0], 0.035);
    check(4, 8, [1.4, 0.6], 0.091);
    check(4, 16, [1.4, 0.6], 0.048);
    check(8, 32, [1.4, 0.6], 0.055);
    check(4, 8, [2.0, 1.0], 0.086);
}

#[test]
fn passes_of_a_rank_follow_one_another_and_are_behind_their_inputs() {
    for &kind in Kind::ALL {
        let schedule = complete(usual(kind));
        let message_s = 0.25;
        let timing =
            simulate(&schedule, &Costs::even(EVEN, &schedule, message_s).unwrap()).unwrap();
        let end_of = |text: String| {
            let mut spans = timing.spans.iter().flatten();
            let span = spans.find(|span| span.compute.to_string() == text);
            span.map(|span| span.end_s)
        };
        let last = schedule.stages() - 1;
        for (rank, spans) in timing.spans.iter().enumerate() {
            let busy_s: f64 = spans.iter().map(|span| span.end_s - span.start_s).sum();
            assert!((busy_s - timing.busy_s[rank]).abs() < 1e-9);
            assert!((busy_s - 24.0).abs() < 1e-9, "{kind}: {busy_s}");
            for pair in spans.windows(2) {
                assert!(pair[0].end_s <= pair[1].start_s, "{kind}: {pair:?}");
            }
            for span in spans {
                let (stage, m) = (span.compute.stage, span.compute.micro_batch);
                let text = span.compute.to_string();
                let needs_next = stage < last && !text.contains('W');
                let next = needs_next.then_some(stage + 1);
                let neighbour = if text.contains('F') { stage.checked_sub(1) } else { next };
                let Some(neighbour) = neighbour else {
                    continue;
                };
                let words: &[&str] = if text.contains('F') { &["F"] } else { &["B", "I"] };
                let input = words.iter().find_map(|word| end_of(format!("{neighbour}{word}{m}")));
                let is_here = schedule.owner(neighbour) == schedule.owner(stage);
                let transfer_s = if is_here { 0.0 } else { message_s };
                assert!(input.unwrap() + transfer_s <= span.start_s + 1e-9, "{kind}: {text}");
            }
        }
    }
}

#[test]
fn messages_are_waited_for_once_each_way() {
    let schedule = schedule(Kind::GPipe, [3, 1, 1]);
    let timing = simulate(&schedule, &Costs::even(EVEN, &schedule, 0.5).unwrap()).unwrap();
    assert!((timing.makespan_s - (9.0 + 4.0 * 0.5)).abs() < 1e-12);
    assert_eq!(timing.live_max, [1, 1, 1]);
}

#[test]
fn stages_may_differ() {
    let schedule = schedule(Kind::OneForwardOneBackward, [2, 1, 4]);
    let times = |scale: f64| PassTimes {
        forward_s: scale,
        input_gradient_s: scale,
        weight_gradient_s: scale,
    };
    let costs = Costs::new(vec![times(1.0), times(2.0)], 0.0).unwrap();
    let timing = simulate(&schedule, &costs).unwrap();
    // The slow stage is busy from the end of the first forward pass to the start of the last backward pass.
    assert!((timing.makespan_s - (1.0 + 4.0 * 6.0 + 2.0)).abs() < 1e-12);
}

#[test]
fn what_is_no_time_is_refused() {
    let schedule = usual(Kind::GPipe);
    for (forward_s, message_s, figure) in
        [(-1.0, 0.0, "forward_s"), (f64::NAN, 0.0, "forward_s"), (1.0, f64::INFINITY, "message_s")]
    {
        let times = PassTimes { forward_s, ..EVEN };
        let error = Costs::even(times, &schedule, message_s).unwrap_err();
        assert_eq!(error.figure, figure);
    }
    let nothing = PassTimes { forward_s: 0.0, input_gradient_s: 0.0, weight_gradient_s: 0.0 };
    let timing = simulate(&schedule, &Costs::even(nothing, &schedule, 0.0).unwrap()).unwrap();
    assert_eq!(timing.bubble(), 0.0);
}
