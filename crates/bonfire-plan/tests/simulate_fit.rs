//! Links fitted to measurements that were made up from known ones.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use bonfire_plan::simulate::{FitError, FitSample, Knot, Link, LinkModel, Mover};
use bonfire_plan::{Algorithm, Bytes, Collective, DType};
use support::{Sizes, schedule};

/// 5 us, 2 GB/s.
const LINK: Link = Link::new(5e-6, 0.5e-9);

/// An all-reduce of so many elements, as Bonfire runs it by default.
fn sample(ranks: usize, count: usize, time_s: f64) -> FitSample {
    let algorithm = if count > 4096 { Algorithm::TwoShot } else { Algorithm::OneShot };
    let sizes = Sizes { ranks, count, chunk: 1 << 16 };
    FitSample {
        schedule: schedule(Collective::AllReduce, algorithm, sizes),
        dtype: DType::F32,
        bytes: Bytes::of(count as u64, DType::F32),
        time_s,
    }
}

/// What `model` would have measured, for every power of two of bytes up to 2^`most`.
fn measure(model: &LinkModel, ranks: usize, most: u32) -> Vec<FitSample> {
    (3..=most)
        .map(|log2| {
            let unmeasured = sample(ranks, 1 << (log2 - 2), 1.0);
            let time_s = model.predict_s(&unmeasured).unwrap();
            FitSample { time_s, ..unmeasured }
        })
        .collect()
}

#[track_caller]
fn assert_within(seen: f64, expected: f64, share: f64) {
    let error = (seen - expected).abs() / expected;
    assert!(error <= share, "{seen} is not {expected}: off by {error}");
}

#[test]
fn the_link_behind_the_measurements_is_found() {
    for ranks in [2, 4] {
        for mover in [Mover::Port, Mover::Processor] {
            let link = match mover {
                Mover::Port => LINK,
                Mover::Processor => Link {
                    s_per_byte: 0.0,
                    copy_s_per_byte: 0.5e-9,
                    fold_s_per_byte: 0.5e-9,
                    ..LINK
                },
            };
            let measured = measure(&LinkModel::uniform(link), ranks, 24);
            let model = LinkModel::fit(&measured, mover).unwrap();
            let found = model.link();
            assert_within(found.latency_s, link.latency_s, 0.01);
            let cost = |link: &Link| link.s_per_byte + link.copy_s_per_byte;
            assert_within(cost(found), cost(&link), 0.01);
            assert_eq!(found.fold_s_per_byte, found.copy_s_per_byte);
            for knot in model.knots() {
                assert_within(knot.factor, 1.0, 0.01);
            }
        }
    }
}

/// Half as fast beyond a cache, with a protocol that is slow in between. All knots are among the sizes
/// that a fit to every second one sees.
fn uneven() -> LinkModel {
    let knot = |log2: u32, factor| Knot { bytes: 1 << log2, factor };
    let knots = vec![knot(11, 1.0), knot(17, 1.6), knot(19, 0.9), knot(23, 2.0)];
    LinkModel::new(LINK, knots).unwrap()
}

#[test]
fn fitted_sizes_take_the_measured_time_and_those_between_come_close() {
    for ranks in [2, 4] {
        let measured = measure(&uneven(), ranks, 26);
        let fitted: Vec<FitSample> = measured.iter().step_by(2).cloned().collect();
        let model = LinkModel::fit(&fitted, Mover::Port).unwrap();
        for sample in &fitted {
            assert_within(model.predict_s(sample).unwrap(), sample.time_s, 1e-6);
        }
        for sample in &measured {
            assert_within(model.predict_s(sample).unwrap(), sample.time_s, 0.05);
        }
    }
}

#[test]
fn a_fitted_link_predicts_other_plans_and_worlds() {
    let model = LinkModel::fit(&measure(&uneven(), 2, 26), Mover::Port).unwrap();
    for log2 in [6, 17, 24] {
        let sizes = Sizes { ranks: 8, count: 1 << (log2 - 2), chunk: 1 << 16 };
        let ring = FitSample {
            schedule: schedule(Collective::AllReduce, Algorithm::Ring, sizes),
            dtype: DType::F32,
            bytes: Bytes::new(1 << log2),
            time_s: 1.0,
        };
        let (seen, expected) = (model.predict_s(&ring), uneven().predict_s(&ring));
        assert_within(seen.unwrap(), expected.unwrap(), 0.15);
    }
}

#[test]
fn a_size_measured_twice_gets_the_geometric_mean() {
    let samples = [sample(2, 1 << 20, 1e-3), sample(2, 1 << 20, 4e-3)];
    let model = LinkModel::fit(&samples, Mover::Port).unwrap();
    assert_eq!(model.knots().len(), 1);
    assert_within(model.predict_s(&samples[0]).unwrap(), 2e-3, 1e-6);
}

#[test]
fn factors_are_interpolated_in_logarithms_and_constant_outside() {
    let knot = |bytes, factor| Knot { bytes, factor };
    let model = LinkModel::new(LINK, vec![knot(100, 1.0), knot(10_000, 4.0)]).unwrap();
    let factor = |bytes| model.at(Bytes::new(bytes)).latency_s / LINK.latency_s;
    for (bytes, expected) in [(0, 1.0), (100, 1.0), (1000, 2.0), (10_000, 4.0), (1 << 40, 4.0)] {
        assert_within(factor(bytes), expected, 1e-9);
    }
    assert_eq!(LinkModel::uniform(LINK).at(Bytes::new(7)), LINK);
}

#[test]
fn knots_must_be_a_function() {
    let knot = |bytes, factor| Knot { bytes, factor };
    for knots in [
        vec![knot(2, 1.0), knot(2, 1.0)],
        vec![knot(3, 1.0), knot(2, 1.0)],
        vec![knot(2, 0.0)],
        vec![knot(2, f64::NAN)],
    ] {
        assert_eq!(LinkModel::new(LINK, knots), Err(FitError::Knots));
    }
    assert!(LinkModel::new(Link::new(-1.0, 0.0), Vec::new()).is_err());
}

#[test]
fn measurements_that_say_nothing_are_refused() {
    let fit = |samples: &[FitSample]| LinkModel::fit(samples, Mover::Port).unwrap_err();
    assert_eq!(fit(&[]), FitError::NoSamples);
    assert_eq!(fit(&[sample(1, 1024, 1e-6)]), FitError::NothingMoves { bytes: 4096 });
    for bad in [0.0, -1.0, f64::INFINITY] {
        let error = fit(&[sample(2, 1024, bad)]);
        assert!(matches!(error, FitError::NotATime { bytes: 4096, .. }), "{error}");
    }
}

/// Messages of two ranks up to 32 bytes are short frames; the fit does not see those of 64.
#[test]
fn what_long_frames_add_is_found_and_predicts_the_sizes_beside_the_step() {
    let link = Link {
        copy_s_per_byte: 0.1e-9,
        fold_s_per_byte: 0.1e-9,
        short_bytes: 16,
        long_latency_s: 80e-9,
        ..Link::new(200e-9, 0.0)
    };
    let measured = measure_two_shot(&LinkModel::uniform(link));
    let fitted: Vec<FitSample> = measured.iter().step_by(2).cloned().collect();
    let model = LinkModel::fit(&fitted, Mover::Processor).unwrap();
    let found = model.link();
    assert_eq!(found.short_bytes, 16);
    assert_within(found.long_latency_s / found.latency_s, 0.4, 0.01);
    for sample in &measured {
        assert_within(model.predict_s(sample).unwrap(), sample.time_s, 0.01);
    }
    // Sizes on one side of the step alone say nothing about it, and sockets have none.
    let long = LinkModel::fit(&measured[5..], Mover::Processor).unwrap();
    assert_eq!(long.link().long_latency_s, 0.0);
    let socket = LinkModel::fit(&fitted, Mover::Port).unwrap();
    assert_eq!(socket.link().long_latency_s, 0.0);
}

/// What two ranks would have measured by `two_shot`, from 8 bytes to 1 MiB.
fn measure_two_shot(model: &LinkModel) -> Vec<FitSample> {
    (3..=20)
        .map(|log2| {
            let sizes = Sizes { ranks: 2, count: 1 << (log2 - 2), chunk: 1 << 16 };
            let unmeasured = FitSample {
                schedule: schedule(Collective::AllReduce, Algorithm::TwoShot, sizes),
                ..sample(2, sizes.count, 1.0)
            };
            let time_s = model.predict_s(&unmeasured).unwrap();
            FitSample { time_s, ..unmeasured }
        })
        .collect()
}
