//! Compression across a training that is resumed.

use std::path::PathBuf;

use burn_train::checkpoint::KeepLastNCheckpoints;

use super::*;
use bonfire_train::PowerSgdConfig;

/// Both matrices of the net travel as factors of rank 1, from the first step on.
fn power_sgd() -> DdpConfig {
    let power_sgd = PowerSgdConfig::default().with_start_step(0).with_compression_rate_min(0.1);
    DdpConfig::default().with_compression(GradientCompression::PowerSgd(power_sgd))
}

/// A training that saves every epoch, and keeps the last, or goes on from one of them.
struct Part<'a> {
    folder: &'a Path,
    keeps: bool,
    from: Option<usize>,
    epochs: usize,
}

impl Part<'_> {
    /// The bits of the model at its end.
    fn bits(&self, world: &World) -> Vec<u32> {
        // Only rank 0 has files: the others have folders of their own, and none for the state.
        let own = self.folder.join(world.rank().to_string());
        let kept = CompressionCheckpoints::new(kept_in(&own));
        let mut config = LearnerConfig::from(power_sgd());
        let mut training = training(world, &own, self.epochs).with_default_checkpointers();
        let last = KeepLastNCheckpoints::new(1);
        if self.keeps {
            config = config.with_compression_checkpoints(&kept);
            training = training.with_checkpointing_strategy(kept.follow(last));
        } else {
            training = training.with_checkpointing_strategy(last);
        }
        if let Some(epoch) = self.from {
            training = training.checkpoint(epoch);
        }
        let training = training.distributed_with(world, config);
        finished(training.launch(learner(world))).bits()
    }
}

fn kept_in(own: &Path) -> PathBuf {
    own.join("compression")
}

/// The epochs of which rank 0 has a state.
fn epochs_kept(folder: &Path, rank: u32) -> Vec<String> {
    let Ok(entries) = kept_in(&folder.join(rank.to_string())).read_dir() else {
        return Vec::new();
    };
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let names = entries.map(|entry| name(entry).into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).collect()
}

/// Two epochs on `first` ranks and two more on `then`: the bits of each of these, which must be the same.
#[track_caller]
fn in_two_parts(folder: &Path, keeps: bool, first: u32, then: u32) -> Vec<u32> {
    let part = |from, epochs| Part { folder, keeps, from, epochs };
    on_ranks(first, |world| part(None, 2).bits(&world));
    let bits = on_ranks(then, |world| part(Some(2), 4).bits(&world));
    for (rank, own) in bits.iter().enumerate() {
        assert_eq!(*own, bits[0], "rank {rank} differs from rank 0");
    }
    bits[0].clone()
}

#[test]
fn a_resumed_training_goes_on_with_what_compression_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let whole = on_ranks(2, |world| {
        let part = Part { folder: &whole, keeps: false, from: None, epochs: 4 };
        part.bits(&world)
    });
    let kept = folder.path().join("kept");
    assert_eq!(in_two_parts(&kept, true, 2, 2), whole[0]);
    // Saved with the learner's checkpoints, and deleted with them.
    assert_eq!(epochs_kept(&kept, 0), ["step-000000004"]);
    assert_eq!(epochs_kept(&kept, 1), [""; 0], "only rank 0 writes");
    let lost = in_two_parts(&folder.path().join("lost"), false, 2, 2);
    assert_ne!(lost, whole[0], "it matters that it is kept");
}

#[test]
fn with_more_or_fewer_ranks_it_goes_on_with_the_mean_of_what_was_left_out() {
    for (first, then) in [(2, 3), (3, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let kept = in_two_parts(&folder.path().join("kept"), true, first, then);
        let lost = in_two_parts(&folder.path().join("lost"), false, first, then);
        assert_ne!(kept, lost, "{first} ranks, then {then}");
    }
}

#[test]
fn an_epoch_without_a_state_is_gone_on_from_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let lost = in_two_parts(&folder.path().join("lost"), false, 2, 2);
    // The first two epochs kept nothing; the rest would.
    let none = folder.path().join("none");
    let part = |keeps, from, epochs| Part { folder: &none, keeps, from, epochs };
    on_ranks(2, |world| part(false, None, 2).bits(&world));
    let bits = on_ranks(2, |world| part(true, Some(2), 4).bits(&world));
    assert_eq!(bits[0], lost);
    assert_eq!(epochs_kept(&none, 0), ["step-000000004"]);
}

#[test]
fn a_damaged_state_ends_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let part = |from| Part { folder: folder.path(), keeps: true, from, epochs: 2 };
    on_ranks(2, |world| part(None).bits(&world));
    let file = kept_in(&folder.path().join("0")).join("step-000000002/compression.cbor");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let errors = on_ranks(2, |world| {
        let own = folder.path().join(world.rank().to_string());
        let kept = CompressionCheckpoints::new(kept_in(&own));
        let training = training(&world, &own, 4)
            .with_default_checkpointers()
            .with_checkpointing_strategy(kept.follow(KeepLastNCheckpoints::new(1)))
            .checkpoint(2)
            .distributed_with(
                &world,
                LearnerConfig::from(power_sgd()).with_compression_checkpoints(&kept),
            );
        training.launch(learner(&world)).error.unwrap().to_string()
    });
    assert_each_says(errors, &["has changed since it was saved"]);
}

#[test]
fn a_strategy_that_is_not_followed_is_an_error() {
    let errors = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        let kept = CompressionCheckpoints::new(kept_in(folder.path()));
        let training =
            training(&world, folder.path(), 1).with_default_checkpointers().distributed_with(
                &world,
                LearnerConfig::from(power_sgd()).with_compression_checkpoints(&kept),
            );
        training.launch(learner(&world)).error.unwrap().to_string()
    });
    assert_each_says(errors, &["kept.follow"]);
}
