//! When gradients travel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bonfire_train::custom_gradient;

use super::*;

/// How long a backward pass waits for gradients of another stage to have travelled: far longer than that takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rank 0 has the stages 0 and 2, rank 1 the stages 1 and 3.
#[test]
fn the_gradients_of_a_stage_travel_while_its_rank_has_passes_of_another() {
    let schedule = schedule(Kind::Interleaved, 2);
    let seen = local(4, GroupOptions::default(), |group| {
        let world = world(group);
        let mesh = world.mesh("pp=2,dp=2".parse().unwrap()).unwrap();
        let (pp, data) = (mesh.sub(Axis::Pp), mesh.data());
        let axes = Axes { stages: pp, data };
        let config = DdpConfig::default()
            .with_bucket_bytes_max(1)
            .with_first_bucket_bytes_max(1);
        let stages = parts(&schedule, pp);
        let pipeline = Pipeline::with_config(stages, schedule.clone(), axes, config);
        let mut pipeline = pipeline.unwrap();
        let seen = Arc::new(AtomicBool::new(false));
        let before = data.group().traffic().payload_bytes_sent;
        let batches = batches(0, 2, &world.device().autodiff());
        let step = pipeline.backward(&batches, |part, pass| {
            if pass.stage() > 1 || pass.micro_batch_number() + 1 < MICRO_BATCHES {
                return part.stage(pass);
            }
            let stream = match pass.is_first() {
                true => part.embed(pass.micro_batch().0.clone()),
                false => pass.input()?,
            };
            let stream = part.forward(stream, pass.weights());
            // The last backward pass of this rank begins here.
            let (group, seen) = (data.group().clone(), Arc::clone(&seen));
            let watched = custom_gradient(
                stream,
                |x| x,
                move |gradient| {
                    let start = Instant::now();
                    while start.elapsed() < PATIENCE && !seen.load(Ordering::Relaxed) {
                        let sent = group.traffic().payload_bytes_sent;
                        seen.store(sent > before, Ordering::Relaxed);
                    }
                    gradient
                },
            );
            Ok(watched.into())
        });
        step.unwrap();
        seen.load(Ordering::Relaxed)
    });
    assert_eq!(seen, [true; 4]);
}
