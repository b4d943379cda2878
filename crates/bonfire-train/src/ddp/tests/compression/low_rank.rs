//! Gradients that travel as thin factors.

use super::oracle::{Oracle, norm};
use super::*;
use crate::CompressionError;

/// Each step computes sums of at most `rows + cols` products in f32, and inherits what the one before
/// was off by; the factors turn by at most as much as the gap between the singular values allows, which
/// for these matrices is not small.
#[test]
fn averages_are_those_of_the_paper() {
    let steps = 6;
    for (ranks, rank) in [(2, 1), (3, 2), (4, 4)] {
        let config = power_sgd(rank);
        let gradients =
            |rank: usize, step: usize| Gradients3::random((100 * step + rank) as u64, 1.0);
        let compression = GradientCompression::PowerSgd(config);
        let found = averages(ranks, compression, steps, gradients);
        let ranks = ranks as usize;
        let mut matrix = Oracle::new(config, 0, (ROWS, COLS), ranks);
        let mut cube = Oracle::new(config, 2, (CUBE[0], CUBE[1] * CUBE[2]), ranks);
        for (step, found) in found.iter().enumerate() {
            let own: Vec<Gradients3> = (0..ranks).map(|rank| gradients(rank, step)).collect();
            let of = |parameter: usize| own.iter().map(move |own| &own.0[parameter]);
            for (parameter, oracle) in [(0, &mut matrix), (2, &mut cube)] {
                let terms = (oracle.rows + oracle.cols) as f64;
                let expected = oracle.step(&of(parameter).collect::<Vec<_>>());
                let size = norm(expected.iter().copied());
                let pairs = found.0[parameter].iter().zip(&expected);
                let apart = norm(pairs.map(|(found, expected)| f64::from(*found) - expected));
                let unit = f64::from(f32::EPSILON) / 2.0;
                let allowed = 16.0 * (step + 1) as f64 * terms * unit * size;
                assert!(apart <= allowed, "step {step}: {apart} of {size}");
            }
            // What is no matrix is averaged as ever.
            for (index, found) in found.0[1].iter().enumerate() {
                let sum = of(1).map(|own| own[index]).reduce(|sum, own| sum + own);
                assert_eq!(*found, sum.unwrap() / ranks as f32);
            }
        }
    }
}

/// As many vectors as the matrix has columns (or rows) leave nothing out.
#[test]
fn a_full_rank_is_the_mean() {
    let gradients = |rank: usize, step: usize| Gradients3::random((7 * step + rank) as u64, 1.0);
    let config = power_sgd(1).with_rank(100).with_compression_rate_min(0.1);
    let full = averages(3, GradientCompression::PowerSgd(config), 4, gradients);
    let plain = averages(3, GradientCompression::None, 4, gradients);
    assert_ne!(full, plain, "it was compressed");
    // Sums of `ROWS + COLS` products of numbers up to 1, and the length of a row.
    let terms = (ROWS + COLS) as f64;
    let allowed = 4.0 * terms * terms.sqrt() * f64::from(f32::EPSILON);
    for (full, plain) in full.iter().zip(&plain) {
        let pairs = full.0.iter().flatten().zip(plain.0.iter().flatten());
        for (full, plain) in pairs {
            assert!(f64::from((full - plain).abs()) <= allowed, "{full}, not {plain}");
        }
    }
}

/// How far the sum of what is applied in `steps` steps is from the sum of the gradients, relative to
/// one gradient.
fn left_behind(config: PowerSgdConfig, steps: usize) -> f64 {
    let gradients = |rank: usize, _: usize| Gradients3::random(rank as u64, 1.0);
    let applied = averages(2, GradientCompression::PowerSgd(config), steps, gradients);
    let mean = averages(2, GradientCompression::None, 1, gradients).remove(0);
    let sum =
        |index: usize| -> f64 { applied.iter().map(|step| f64::from(step.0[0][index])).sum() };
    let mean = &mean.0[0];
    let apart =
        mean.iter().enumerate().map(|(index, mean)| sum(index) - steps as f64 * f64::from(*mean));
    norm(apart) / norm(mean.iter().map(|mean| f64::from(*mean)))
}

/// What is left behind stays bounded, so that the mean of what is applied converges to the mean
/// gradient; without feedback it grows with every step.
#[test]
fn with_error_feedback_nothing_is_lost() {
    let with = power_sgd(1);
    let without = with.with_error_feedback(false);
    let (some, more) = (left_behind(with, 50), left_behind(with, 200));
    assert!(some / 50.0 < 0.5, "{some}");
    assert!(more < 1.5 * some, "{some} after 50 steps, {more} after 200");
    let (some, more) = (left_behind(without, 50), left_behind(without, 200));
    assert!(more > 3.0 * some, "{some} after 50 steps, {more} after 200");
}

#[test]
fn a_cold_start_differs_and_feeds_back_too() {
    let cold = power_sgd(1).with_warm_start(false);
    let (some, more) = (left_behind(cold, 50), left_behind(cold, 200));
    assert!(more < 1.5 * some, "{some} after 50 steps, {more} after 200");
    let gradients = |rank: usize, _: usize| Gradients3::random(rank as u64, 1.0);
    let with = |config| averages(2, GradientCompression::PowerSgd(config), 3, gradients);
    let (cold, warm) = (with(cold), with(power_sgd(1)));
    assert_eq!(cold[0], warm[0]);
    assert_ne!(cold[1], warm[1]);
}

/// A zero gradient leaves no direction to start from; the next one must still be seen.
#[test]
fn a_zero_gradient_does_not_end_a_parameter() {
    let gradients = |rank: usize, step: usize| match step {
        0 => Gradients3::random(0, 1.0).map_ref(|v| vec![0.0; v.len()]).into(),
        _ => Gradients3::random(rank as u64, 1.0),
    };
    let found = averages(2, GradientCompression::PowerSgd(power_sgd(2)), 2, gradients);
    assert!(found[0].0.iter().flatten().all(|value| *value == 0.0));
    for values in &found[1].0 {
        assert!(norm(values.iter().map(|v| f64::from(*v))) > 0.1);
    }
}

impl From<[Vec<f32>; 3]> for Gradients3 {
    fn from(values: [Vec<f32>; 3]) -> Self {
        Self(values)
    }
}

/// All ranks see it, as without compression; the step is lost, what was left out before is not.
#[test]
fn an_overflow_on_one_rank_is_seen_by_all_and_forgotten() {
    let clean = |rank: usize, step: usize| Gradients3::random((9 * step + rank) as u64, 1.0);
    let broken = |rank: usize, step: usize| {
        let mut gradients = clean(rank, step);
        if (rank, step) == (1, 2) {
            gradients.0[0][5] = f32::INFINITY;
        }
        gradients
    };
    let found = averages(3, GradientCompression::PowerSgd(power_sgd(1)), 5, broken);
    assert!(found[2].0[0].iter().all(|value| value.is_nan()));
    assert!(found[2].0[2].iter().all(|value| value.is_finite()));
    for step in [3, 4] {
        assert!(found[step].0.iter().flatten().all(|value| value.is_finite()));
    }
    // The parameter next to it does not notice.
    let expected = averages(3, GradientCompression::PowerSgd(power_sgd(1)), 5, clean);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.0[2], expected.0[2]);
    }
}

#[test]
fn the_first_steps_travel_as_they_are() {
    let gradients = |rank: usize, step: usize| Gradients3::random((3 * step + rank) as u64, 1.0);
    let config = power_sgd(1).with_start_step(3);
    let found = averages(2, GradientCompression::PowerSgd(config), 4, gradients);
    let plain = averages(2, GradientCompression::None, 4, gradients);
    assert_eq!(found[..3], plain[..3]);
    assert_ne!(found[3], plain[3]);
}

/// A parameter that no rank uses in a step keeps what was left out for the next one that does.
#[test]
fn unused_parameters_keep_their_errors() {
    let trained = |steps: &[bool]| {
        on_ranks(2, |world| {
            let config = compressed(GradientCompression::PowerSgd(power_sgd(1)));
            let mut ddp = Ddp::with_config(Planted::new(&world.device()), &world, config).unwrap();
            let mut seen = Vec::new();
            let mut used = 0;
            for &uses in steps {
                let own = Gradients3::random(10 * used + u64::from(world.rank().get()), 1.0);
                let loss = |model: &Planted| {
                    if uses { model.loss(&own) } else { (model.vector.val() * 2.0).sum() }
                };
                let gradients = ddp.backward(loss).unwrap().gradients;
                let values = gradient_values(ddp.module(), &gradients);
                assert_eq!(values[0].is_some(), uses);
                if uses {
                    used += 1;
                    seen.push(values);
                }
            }
            // A pass in between lets the factors turn once more, so only sums can be compared.
            let sum = |index: usize| -> f64 {
                let values = seen.iter().map(|step| step[0].as_ref().unwrap()[index]);
                values.map(f64::from).sum()
            };
            (0..ROWS * COLS).map(sum).collect::<Vec<f64>>()
        })
    };
    let expected: Vec<f64> = (0..ROWS * COLS)
        .map(|index| {
            let means = (0..40_u64).map(|step| {
                let own = |rank| f64::from(Gradients3::random(10 * step + rank, 1.0).0[0][index]);
                (own(0) + own(1)) / 2.0
            });
            means.sum()
        })
        .collect();
    let half: Vec<bool> = (0..80).map(|step| step % 2 == 1).collect();
    let behind = |found: &[f64]| norm(found.iter().zip(&expected).map(|(f, e)| f - e));
    let (always, half) = (one_of(trained(&[true; 40])), one_of(trained(&half)));
    let (always, half) = (behind(&always), behind(&half));
    let size = norm(expected.iter().copied());
    assert!(always < size && half < 1.5 * always, "{half}, {always} of {size}");
}

#[test]
fn a_parameter_of_one_rank_keeps_replicas_identical() {
    let models = on_ranks(2, |world| {
        let device = world.device();
        let config = compressed(GradientCompression::PowerSgd(power_sgd(1)));
        let mut ddp = Ddp::with_config(Mlp::new(1, &device), &world, config).unwrap();
        for step in 0..6 {
            let indices = share(&world, step, 2);
            let loss = |model: &Mlp| match (world.is_main(), step % 3) {
                (true, _) | (_, 0) => Loss::mean_over(model.loss(&indices), 2),
                // Of no parameter, and of no sample.
                (false, 1) => Loss::mean_over(Tensor::zeros([1], &device), 2),
                (false, _) => Loss::mean_over(Tensor::full([1], f32::NAN, &device), 0),
            };
            descend(&mut ddp, 0.05, loss);
        }
        bits(ddp.module())
    });
    assert_same(&models);
}

#[test]
fn what_cannot_work_is_refused_on_all_ranks() {
    let refused = |config: PowerSgdConfig| {
        let errors = on_ranks(2, |world| {
            let config = compressed(GradientCompression::PowerSgd(config));
            Ddp::with_config(Mlp::new(1, &world.device()), &world, config).unwrap_err()
        });
        let kind = |error: TrainError| match error {
            TrainError::Compression(error) => error,
            other => panic!("{other}"),
        };
        one_of(errors.into_iter().map(kind).collect())
    };
    assert_eq!(refused(power_sgd(0)), CompressionError::ZeroRank);
    for rate in [0.0, -1.0, f64::INFINITY] {
        let config = power_sgd(1).with_compression_rate_min(rate);
        assert_eq!(refused(config), CompressionError::UnusableRate { rate });
    }
    let config = power_sgd(1).with_orthogonalization_epsilon(-1e-8);
    let epsilon = -1e-8;
    assert_eq!(refused(config), CompressionError::UnusableEpsilon { epsilon });
}
