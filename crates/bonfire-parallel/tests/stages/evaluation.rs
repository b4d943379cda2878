//! Forward passes alone.

use super::*;

/// Micro-batches of different sizes, more than a step has, on a device without autodiff.
fn uneven(device: &Device) -> Vec<Batch> {
    let sizes = [2, 1, 3, 2, 2, 1, 1, 3, 2, 1, 3];
    let batch = |(step, size)| batches(step, size, device).remove(0);
    (0..).zip(sizes).map(batch).collect()
}

fn alone(module: &Part) -> Vec<f64> {
    let at_once = WeightGradients::at_once();
    let loss = |(tokens, next): Batch| {
        let stream = module.forward(module.embed(tokens), &at_once);
        module.loss(stream, next, &at_once).into_scalar::<f64>()
    };
    uneven(&Device::flex()).into_iter().map(loss).collect()
}

#[test]
fn every_rank_has_the_losses_of_the_whole_model() {
    let untrained = alone(&Part::whole(&Device::flex().autodiff()).valid());
    let kinds =
        [(Kind::GPipe, 1), (Kind::GPipe, 3), (Kind::Interleaved, 2), (Kind::ZeroBubbleV, 2)];
    for (kind, ranks) in kinds {
        let schedule = schedule(kind, ranks);
        let all = on_ranks(ranks, |world| {
            let device = world.device().autodiff();
            let stages = parts(&schedule, &world);
            let mut pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
            let mut optimizer = adamw();
            let before = pipeline.evaluate(&uneven(&world.device()), Part::stage);
            // Training goes on as if nothing had been.
            let done = pipeline.backward(&batches(0, 2, &device), Part::stage);
            let gradients = done.unwrap().gradients;
            pipeline.step(&mut optimizer, 0.01, gradients).unwrap();
            let after = pipeline.evaluate(&uneven(&world.device()), Part::stage);
            let runs = partition(&[1.0; LAYERS], schedule.stages() as usize).unwrap();
            let all = runs.iter().map(|run| Part::whole(&device).part(run.clone()));
            let all = pipeline.gather(all.collect()).unwrap();
            (before.unwrap(), after.unwrap(), alone(&joined(all)))
        });
        for (before, after, trained) in all {
            assert_eq!(before, untrained, "{kind} on {ranks} ranks");
            assert_eq!(after, trained, "{kind} on {ranks} ranks");
            assert_ne!(after, before);
        }
    }
}

fn joined(parts: Vec<Part>) -> Part {
    let first = parts.into_iter().reduce(|mut all, part| {
        all.layers.extend(part.layers);
        all.head = part.head;
        all
    });
    first.unwrap()
}

#[test]
fn a_rank_with_more_micro_batches_is_named() {
    let schedule = schedule(Kind::GPipe, 2);
    let errors = on_ranks(2, |world| {
        let stages = parts(&schedule, &world);
        let mut pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
        let count = 3 + world.rank().index();
        let batches = uneven(&world.device());
        pipeline.evaluate(&batches[..count], Part::stage).unwrap_err()
    });
    assert!(matches!(errors[1], PipelineError::MicroBatches { found: 4, expected: 3 }));
    assert!(errors[0].to_string().contains("rank 1 failed"), "{errors:?}");
}
