//! All sizes up to 8 ranks, 17 micro-batches and 4 stages on a rank.

use bonfire_plan::pipeline::{
    Costs, Kind, PassTimes, Schedule, Shape, ShapeError, simulate, verify,
};

use crate::{EVEN, complete, shape, toy};

fn every_shape() -> impl Iterator<Item = Shape> {
    Kind::ALL.iter().flat_map(|&kind| {
        (1..=8).flat_map(move |ranks| {
            (1..=4).flat_map(move |chunks| {
                (1..=17).map(move |micro_batches| shape(kind, [ranks, chunks, micro_batches]))
            })
        })
    })
}

/// Those of which there is a schedule.
fn every_schedule() -> impl Iterator<Item = (Shape, Schedule)> {
    every_shape().filter_map(|shape| Some((shape, Schedule::new(shape).ok()?)))
}

#[test]
fn every_schedule_is_proved_or_refused_with_a_rule() {
    let mut proved = 0;
    for shape in every_shape() {
        let chunks = shape.chunks.get();
        let (p, m) = (shape.ranks.get(), shape.micro_batches.get());
        let has_chunks = match shape.kind {
            Kind::GPipe | Kind::OneForwardOneBackward | Kind::ZeroBubbleH1 => chunks == 1,
            Kind::Interleaved => chunks > 1,
            Kind::ZeroBubbleV => chunks == 2,
        };
        let is_even = shape.kind != Kind::Interleaved || m < p || m % (m / p) == 0;
        match Schedule::new(shape) {
            Ok(schedule) => {
                assert!(has_chunks && is_even, "{shape:?}");
                let proof =
                    verify(&schedule).unwrap_or_else(|broken| panic!("{shape:?}: {broken}"));
                assert_eq!(proof.messages, 0);
                proved += 1;
            }
            Err(ShapeError::Chunks { .. }) => assert!(!has_chunks, "{shape:?}"),
            Err(ShapeError::UnevenRounds { .. }) => assert!(has_chunks && !is_even, "{shape:?}"),
            Err(other) => panic!("{shape:?}: {other}"),
        }
    }
    assert_eq!(proved, 865);
}

#[test]
fn every_complete_schedule_is_proved_and_computes_the_gradients() {
    for (shape, schedule) in every_schedule() {
        let schedule = complete(schedule);
        let proof = verify(&schedule).unwrap_or_else(|broken| panic!("{shape:?}: {broken}"));
        // Each micro-batch crosses each boundary between ranks twice; in a V one boundary is within a rank.
        let turns = u32::from(shape.kind == Kind::ZeroBubbleV);
        let boundaries = match shape.ranks.get() {
            1 => 0,
            _ => shape.stages() - 1 - turns,
        };
        let messages = 2 * boundaries * shape.micro_batches.get();
        assert_eq!(proof.messages, messages as usize, "{shape:?}");
        let (gradients, live_max) = toy::train(&schedule).expect("a schedule that was proved ends");
        assert_eq!(gradients, toy::expected(&schedule), "{shape:?}");
        assert_eq!(live_max, proof.live_max, "{shape:?}");
    }
}

#[test]
fn activations_and_makespan_are_those_of_the_closed_forms() {
    let uneven = |forward_s, input_gradient_s, weight_gradient_s| PassTimes {
        forward_s,
        input_gradient_s,
        weight_gradient_s,
    };
    for (shape, schedule) in every_schedule() {
        let live_max: Vec<_> = shape.ranks.ranks().map(|rank| shape.live_max(rank)).collect();
        assert_eq!(schedule.live_max(), live_max, "{shape:?}");
        for (rank, live) in shape.ranks.ranks().zip(live_max) {
            let alone = verify(&schedule.alone(rank)).unwrap();
            assert_eq!(alone.live_max, [live], "{shape:?}, rank {rank} alone");
        }
        for times in [EVEN, uneven(1.0, 1.5, 0.5), uneven(3.0, 1.0, 2.0)] {
            let costs = Costs::even(times, &schedule, 0.0).unwrap();
            let timing = simulate(&schedule, &costs).unwrap();
            let is_zero_bubble = matches!(shape.kind, Kind::ZeroBubbleH1 | Kind::ZeroBubbleV);
            match shape.makespan_s(times) {
                Some(known_s) => {
                    let error_s = (timing.makespan_s - known_s).abs();
                    assert!(error_s < 1e-9, "{shape:?}: {} is not {known_s}", timing.makespan_s);
                }
                None => assert!(is_zero_bubble && times != EVEN, "{shape:?}"),
            }
        }
    }
}

#[test]
fn activations_are_those_of_the_papers() {
    for (shape, schedule) in every_schedule() {
        let (p, m) = (shape.ranks.get(), shape.micro_batches.get());
        for (rank, live) in (0..).zip(schedule.live_max()) {
            let expected = match shape.kind {
                Kind::GPipe => m,
                Kind::OneForwardOneBackward => m.min(p - rank),
                Kind::ZeroBubbleH1 => m.min(p),
                Kind::ZeroBubbleV if m >= 2 * p => 2 * p,
                Kind::Interleaved if m.is_multiple_of(p) => {
                    let v = shape.chunks.get();
                    ((v - 1) * p + 2 * (p - 1 - rank) + 1).min(v * m)
                }
                _ => continue,
            };
            assert_eq!(live, expected, "{shape:?}, rank {rank}");
        }
    }
}

#[test]
fn what_is_added_can_be_added_in_any_order_and_once() {
    for (shape, schedule) in every_schedule().filter(|(shape, _)| shape.micro_batches.get() < 6) {
        let other = schedule.clone().with_gathers().with_reductions().with_messages().unwrap();
        verify(&other).unwrap_or_else(|broken| panic!("{shape:?}: {broken}"));
        let schedule = complete(schedule);
        assert_eq!(complete(schedule.clone()), schedule, "{shape:?}");
    }
}
