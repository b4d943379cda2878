//! Ends that all ranks agree on, wherever they begin.

use super::*;

#[test]
fn a_sample_that_cannot_be_read_on_one_rank_ends_all() {
    let errors = on_ranks(3, |world| {
        let folder = tempfile::tempdir().unwrap();
        // In order, the elements 1, 4, 7, 10 and so on are rank 1's.
        let numbers =
            Numbers { len: SAMPLES, broken: (world.rank() == Rank::new(1)).then_some(10) };
        let train = dealt(&world, numbers, Order::Sequential, Remainder::Exact);
        let training = training_of(folder.path(), 2, train, valid_loader(&world));
        let result = training.distributed(&world).launch(learner(&world));
        result.error.unwrap().to_string()
    });
    assert!(errors[1].contains("sample 10 is torn"), "{}", errors[1]);
    assert_each_says([&errors[0], &errors[2]], &["rank 1 failed", "sample 10 is torn"]);
}

#[test]
fn a_stop_on_any_rank_is_one_on_all() {
    let models = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        let training = training(&world, folder.path(), 1000);
        if world.rank() == Rank::new(1) {
            training.interrupter().stop(Some("enough"));
        }
        let result = training.distributed(&world).launch(learner(&world));
        assert!(result.error.is_none());
        let interrupted = result.interrupted.unwrap().reason.unwrap();
        (interrupted, result.model.bits())
    });
    assert_eq!(models[0].0, "rank 1 was asked to stop");
    assert_eq!(models[1].0, "enough");
    assert_eq!(models[0].1, models[1].1);
}

/// Stops after two epochs, and notes who asked.
#[derive(Clone)]
struct AfterTwo(Arc<Mutex<Vec<usize>>>);

impl EarlyStoppingStrategy for AfterTwo {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let (name, split) = (LossMetric::new().name(), Split::Valid);
        let loss = store.find_metric(&name, epoch, Aggregate::Mean, &split);
        assert!(loss.unwrap().is_finite());
        self.0.lock().unwrap().push(epoch);
        epoch == 2
    }
}

#[test]
fn the_early_stop_of_rank_0_is_one_on_all() {
    let asked = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        let stopper = AfterTwo(Arc::default());
        let asked = Arc::clone(&stopper.0);
        let training = training(&world, folder.path(), 1000).early_stopping(stopper);
        let model = finished(training.distributed(&world).launch(learner(&world)));
        (asked.lock().unwrap().clone(), model.bits())
    });
    assert_eq!(asked[0].0, [1, 2]);
    assert_eq!(asked[1].0, [0; 0], "only rank 0 has the metrics");
    assert_eq!(asked[0].1, asked[1].1);
}

/// Checkpoints of every epoch in `folder` of rank 0.
fn saving(world: &World, folder: &Path, epochs: usize) -> SupervisedTraining<Net> {
    use burn_train::checkpoint::KeepLastNCheckpoints;
    training(world, folder, epochs)
        .with_default_checkpointers()
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(1))
}

#[test]
fn a_resumed_training_ends_like_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let results = on_ranks(2, |world| {
        // Only rank 0 has the files: the others have folders of their own.
        let own = folder.path().join(world.rank().to_string());
        let whole = saving(&world, &own.join("whole"), 4).distributed(&world);
        let whole = finished(whole.launch(learner(&world)));
        let half = saving(&world, &own.join("parts"), 2).distributed(&world);
        finished(half.launch(learner(&world)));
        let rest = saving(&world, &own.join("parts"), 4).checkpoint(2);
        let rest = finished(rest.distributed(&world).launch(learner(&world)));
        (whole.bits(), rest.bits())
    });
    for (whole, rest) in &results {
        assert_eq!(whole, rest);
        assert_eq!(*whole, results[0].0);
    }
    let files = |rank: u32| folder.path().join(rank.to_string()).join("parts/checkpoint");
    let count = |rank: u32| files(rank).read_dir().unwrap().count();
    assert!(count(0) > 0);
    assert_eq!(count(1), 0, "only rank 0 writes");
}

#[test]
fn models_that_differ_are_told_apart() {
    let errors = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Net::new(0, &world.device().autodiff());
        if !world.is_main() {
            model.second = LinearConfig::new(6, 2).init(&world.device().autodiff());
        }
        let optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let training = training(&world, folder.path(), 1);
        let result = training.distributed(&world).launch(Learner::new(model, optimizer, RATE));
        result.error.unwrap().to_string()
    });
    assert_each_says(errors, &["parameter second.weight"]);
}

#[test]
fn a_model_without_gradients_is_an_error() {
    let errors = on_ranks(1, |world| {
        let folder = tempfile::tempdir().unwrap();
        let model = Net::new(0, &world.device());
        let optimizer: ModuleOptimizer = AdamWConfig::new().init();
        let training = training(&world, folder.path(), 1);
        let result = training.distributed(&world).launch(Learner::new(model, optimizer, RATE));
        result.error.unwrap().to_string()
    });
    assert!(errors[0].contains("Module::train"), "{}", errors[0]);
}

#[test]
fn sixteen_bits_that_need_a_scaled_loss_are_an_error() {
    let errors = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        let config = DdpConfig::default().with_precision(Precision::F16);
        let training = training(&world, folder.path(), 1).distributed_with(&world, config);
        training.launch(learner(&world)).error.unwrap().to_string()
    });
    assert_each_says(errors, &["Precision::Bf16"]);
}

#[test]
fn gradients_that_are_no_numbers_end_all_before_they_are_learnt() {
    let results = on_ranks(2, |world| {
        let folder = tempfile::tempdir().unwrap();
        // An infinite loss, on one rank.
        let batcher = ToPoints {
            added: (world.rank() == Rank::new(1)).then_some(f32::INFINITY),
            ..ToPoints::default()
        };
        let train = DatasetLoader::new(&world, whole(SAMPLES), batcher, BATCH).with_order(ORDER);
        let training = training_of(folder.path(), 2, Arc::new(train), valid_loader(&world));
        let result = training.distributed(&world).launch(learner(&world));
        let error = result.error.unwrap().to_string();
        (error, result.model.bits())
    });
    for (error, bits) in &results {
        assert!(error.contains("is not finite"), "{error}");
        assert_eq!(*bits, results[0].1);
        assert!(bits.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    }
}
