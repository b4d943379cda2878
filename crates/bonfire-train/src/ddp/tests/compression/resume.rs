//! A compressed training that ends in the middle and goes on.

use super::*;
use crate::{Checkpoints, CompressionError, CompressionState, Keep, Milestone};

fn config() -> DdpConfig {
    let start_step = 2;
    compressed(GradientCompression::PowerSgd(power_sgd(1).with_start_step(start_step)))
}

/// Trains up to `steps` steps from the last checkpoint on, saving each.
fn train_saving(world: &World, folder: &std::path::Path, steps: u64) -> (Bits, CompressionState) {
    let checkpoints = Checkpoints::open(world, folder, Keep::default()).unwrap();
    let mut ddp = Ddp::with_config(Mlp::new(1, &world.device()), world, config()).unwrap();
    let mut optimizer = AdamWConfig::new().init();
    let resumed = checkpoints.resume::<_, CompressionState>(&mut ddp, &mut optimizer);
    let resumed = resumed.unwrap();
    if let Some(resumed) = &resumed {
        ddp.restore_compression(&resumed.state).unwrap();
    }
    for step in resumed.map_or(0, |resumed| resumed.milestone.step)..steps {
        let indices = share(world, step as usize, 3);
        take_step(&mut ddp, &mut optimizer, 0.01, |model| model.loss(&indices));
        let milestone = Milestone { step: step + 1, metric: None };
        let state = ddp.compression_state().unwrap();
        checkpoints.save(milestone, &mut ddp, &optimizer, &state).unwrap();
    }
    (bits(ddp.module()), ddp.compression_state().unwrap())
}

#[test]
fn a_resumed_training_goes_on_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let whole = on_ranks(3, |world| train_saving(&world, &whole, 9));
    assert_same(&whole);
    assert_ne!(whole[0].1, CompressionState::default());
    // Before, at and after the first compressed step.
    for middle in [1, 2, 3, 6] {
        let parts = folder.path().join(format!("parts {middle}"));
        on_ranks(3, |world| train_saving(&world, &parts, middle));
        assert!(on_ranks(3, |world| train_saving(&world, &parts, 9)) == whole);
    }
}

/// What the factors leave out of constant gradients is applied later, by whoever is there then.
#[test]
fn other_numbers_of_ranks_go_on_without_losing_what_was_left_out() {
    let gradients = Gradients3::random(5, 1.0);
    let steps = |world: &World, state: &CompressionState, steps: usize| {
        let config = compressed(GradientCompression::PowerSgd(power_sgd(1)));
        let mut ddp = Ddp::with_config(Planted::new(&world.device()), world, config).unwrap();
        ddp.restore_compression(state).unwrap();
        let mut sum = vec![0.0_f64; ROWS * COLS];
        for _ in 0..steps {
            let found = ddp.backward(|model| model.loss(&gradients)).unwrap().gradients;
            let found = gradient_values(ddp.module(), &found).remove(0).unwrap();
            sum.iter_mut().zip(found).for_each(|(sum, value)| *sum += f64::from(value));
        }
        (sum, ddp.compression_state().unwrap())
    };
    let empty = CompressionState::default();
    let (first, state) = on_ranks(2, |world| steps(&world, &empty, 3)).remove(0);
    let (whole, _) = on_ranks(2, |world| steps(&world, &empty, 6)).remove(0);
    for ranks in [2, 3, 4] {
        let (second, _) = on_ranks(ranks, |world| steps(&world, &state, 3)).remove(0);
        // All ranks have equal gradients, so their number changes nothing but rounding.
        let size = whole.iter().fold(0.0_f64, |size, value| size.max(value.abs()));
        let allowed = 6.0 * (ROWS + COLS) as f64 * f64::from(f32::EPSILON) * size;
        for (index, whole) in whole.iter().enumerate() {
            let found = first[index] + second[index];
            assert!((found - whole).abs() <= allowed, "{ranks} ranks: {found}, not {whole}");
        }
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let results = on_ranks(2, |world| {
        let device = world.device();
        let with = |compression| {
            Ddp::with_config(Mlp::new(1, &device), &world, compressed(compression)).unwrap()
        };
        let low_rank = |rank| with(GradientCompression::PowerSgd(power_sgd(rank)));
        let state = low_rank(1).compression_state().unwrap();
        let refused = |mut ddp: Ddp<Mlp>| match ddp.restore_compression(&state).unwrap_err() {
            TrainError::Compression(error) => error,
            other => panic!("{other}"),
        };
        let other = refused(low_rank(2));
        assert!(other.to_string().contains("at rank 1 with error"), "{other}");
        low_rank(1).restore_compression(&state).unwrap();
        (other, refused(with(GradientCompression::None)))
    });
    for (other, none) in results {
        assert!(matches!(other, CompressionError::OtherMatrix { .. }), "{other}");
        assert_eq!(none, CompressionError::NothingToRestore);
    }
}
