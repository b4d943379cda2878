//! The learner trains as a loop with `Ddp` does, bit for bit.

use super::*;

/// A loop of its own over the same data.
fn own_loop(
    world: &World,
    config: DdpConfig,
    remainder: Remainder,
    epochs: usize,
    accumulation: usize,
) -> Net {
    let device = world.device();
    let model = Net::new(world.rank().index(), &device);
    let mut ddp = Ddp::with_config(model, world, config).unwrap();
    let mut optimizer: ModuleOptimizer = AdamWConfig::new().init();
    let loader = Loader::new(world, SAMPLES, BATCH).with_order(ORDER);
    let mut loader = loader.with_remainder(remainder);
    for _ in 0..epochs {
        let batches: Vec<Vec<usize>> = loader.next_epoch().collect();
        // All ranks go on until the one with the most has none left.
        let longest = SAMPLES.div_ceil(world.world_size().len()).div_ceil(BATCH);
        let loss = |model: &Net, step: usize| match batches.get(step) {
            Some(batch) => {
                let loss = model.regression(points(batch, &device)).loss;
                Loss::mean_over(loss, batch.len())
            }
            None => Loss::mean_over(Tensor::zeros([1], &device), 0),
        };
        for step in 0..longest {
            if (step + 1) % accumulation != 0 && step + 1 < longest {
                ddp.no_sync(|model| loss(model, step)).unwrap();
                continue;
            }
            let gradients = ddp.backward(|model| loss(model, step)).unwrap().gradients;
            ddp.step(&mut optimizer, RATE, gradients).unwrap();
        }
    }
    ddp.into_module()
}

#[track_caller]
fn check(config: DdpConfig, ranks: u32, remainder: Remainder, accumulation: usize) {
    let epochs = 3;
    let bits = on_ranks(ranks, |world| {
        let folder = tempfile::tempdir().unwrap();
        let train = train_loader(&world, remainder);
        let mut training = training_of(folder.path(), epochs, train, valid_loader(&world));
        if accumulation > 1 {
            training = training.grads_accumulation(accumulation);
        }
        let learned = training.distributed_with(&world, config.clone()).launch(learner(&world));
        let learned = finished(learned).bits();
        let own = own_loop(&world, config.clone(), remainder, epochs, accumulation).bits();
        assert_eq!(learned, own, "rank {}", world.rank());
        learned
    });
    for (rank, own) in bits.iter().enumerate() {
        assert_eq!(*own, bits[0], "rank {rank} differs from rank 0");
    }
    let untrained = Net::new(0, &Device::flex()).bits();
    assert_ne!(bits[0], untrained, "it trains at all");
}

#[test]
fn the_learner_gives_the_parameters_of_an_own_loop() {
    for (ranks, remainder, accumulation) in [
        (2, Remainder::Exact, 1),
        (1, Remainder::Exact, 1),
        (2, Remainder::Pad, 1),
        // 8, 8 and 7 samples in batches of 4: one has fewer batches.
        (3, Remainder::Exact, 1),
        // A window that does not divide the epoch.
        (2, Remainder::Exact, 2),
        // 5, 5, 5, 4 and 4 samples: the last two have one batch, the others two.
        (5, Remainder::Exact, 2),
    ] {
        check(DdpConfig::default(), ranks, remainder, accumulation);
    }
}

#[test]
fn with_gradients_that_travel_in_16_bits_and_buckets_of_one() {
    let config = DdpConfig::default()
        .with_bucket_bytes_max(1)
        .with_first_bucket_bytes_max(1)
        .with_compression(GradientCompression::Bf16);
    check(config, 2, Remainder::Exact, 1);
}
