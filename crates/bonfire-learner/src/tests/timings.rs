//! Where the time of the learner's steps goes.

use std::time::Duration;

use super::*;

/// What rank 0 has for the metrics of an epoch, in milliseconds.
#[derive(Clone)]
struct Shown(Arc<Mutex<Vec<[f64; 2]>>>, [Arc<String>; 2]);

impl EarlyStoppingStrategy for Shown {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let shown = self.1.each_ref().map(|name| {
            let mean = store.find_metric(name, epoch, Aggregate::Mean, &Split::Train);
            mean.unwrap_or_else(|| panic!("no {name} in epoch {epoch}"))
        });
        self.0.lock().unwrap().push(shown);
        false
    }
}

/// Of one rank: what it was shown per epoch, and its times at the end.
type Seen = (Vec<[f64; 2]>, StepTimings);

fn seen(ranks: u32, epochs: usize, accumulation: usize) -> Vec<Seen> {
    on_ranks(ranks, |world| {
        let folder = tempfile::tempdir().unwrap();
        let timings = StepTimings::new();
        let metrics = (timings.forward_backward(), timings.exposed_communication());
        let shown = Shown(Arc::default(), [metrics.0.name(), metrics.1.name()]);
        let values = Arc::clone(&shown.0);
        let training = training(&world, folder.path(), epochs)
            .metric_train_numeric(metrics.0)
            .metric_train_numeric(metrics.1)
            .grads_accumulation(accumulation)
            .early_stopping(shown)
            .distributed_with(&world, LearnerConfig::default().with_timings(&timings));
        finished(training.launch(learner(&world)));
        let values = values.lock().unwrap().clone();
        (values, timings)
    })
}

#[test]
fn every_rank_knows_its_steps_and_rank_0_shows_the_mean_over_all() {
    let (ranks, epochs) = (3, 2);
    let seen = seen(ranks, epochs, 1);
    // 8, 8 and 7 samples in batches of 4: two steps an epoch.
    let steps = 2 * epochs;
    let mut totals = [Duration::ZERO; 2];
    for (rank, (shown, timings)) in seen.iter().enumerate() {
        assert_eq!(timings.steps(), steps as u64, "rank {rank}");
        let total = timings.total();
        assert!(total.forward_backward > timings.latest().forward_backward);
        totals[0] += total.forward_backward;
        totals[1] += total.exposed_communication;
        assert_eq!(shown.len(), if rank == 0 { epochs } else { 0 });
    }
    assert!(totals.iter().all(|total| *total > Duration::ZERO));
    for (metric, total) in totals.iter().enumerate() {
        // Epochs have equally many steps, so the mean of their means is that of all steps.
        let shown: f64 = seen[0].0.iter().map(|epoch| epoch[metric]).sum();
        let shown = shown / epochs as f64;
        let expected = total.as_secs_f64() * 1000.0 / f64::from(ranks) / steps as f64;
        // Of every step each rank's share is cut to whole nanoseconds; the rest are roundings of f64.
        let tolerance = f64::from(ranks) * 1e-6 + expected * 1e-12;
        assert!((shown - expected).abs() <= tolerance, "{shown}, {expected}");
    }
    let of_ranks = seen[0].1.of_ranks();
    let latest: Vec<_> = seen.iter().map(|(_, timings)| timings.latest()).collect();
    assert_eq!(of_ranks, latest);
    assert!(seen[1].1.of_ranks().is_empty());
}

#[test]
fn batches_that_are_accumulated_are_one_step() {
    // 12 and 11 samples in batches of 4: three batches, of which the first two are a step.
    for (rank, (shown, timings)) in seen(2, 1, 2).iter().enumerate() {
        assert_eq!(timings.steps(), 2, "rank {rank}");
        let shown = shown.first();
        assert!(shown.is_none_or(|shown| shown.iter().all(|value| value.is_finite())));
    }
}
