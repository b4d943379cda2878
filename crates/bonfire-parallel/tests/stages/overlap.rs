//! When gradients travel, and how long passes take.

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
    let seen = on_ranks(4, |world| {
        let mesh = world.mesh("pp=2,dp=2").unwrap();
        let (pp, data) = (mesh.sub(Axis::Pp), mesh.data());
        let axes = Axes { stages: pp, data };
        let config = DdpConfig::default().with_bucket_bytes_max(1).with_first_bucket_bytes_max(1);
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
            let stream = if pass.is_first() {
                part.embed(pass.micro_batch().0.clone())
            } else {
                pass.input()?
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

#[test]
fn passes_are_measured_over_all_layers_of_a_rank() {
    const PAUSE: Duration = Duration::from_millis(5);
    for kind in [Kind::GPipe, Kind::Interleaved] {
        let schedule = schedule(kind, 2);
        let times = on_ranks(2, |world| {
            let stages = parts(&schedule, &world);
            let chunks = stages.len() as u32;
            let mut pipeline = Pipeline::new(stages, schedule.clone(), &world).unwrap();
            let batches = batches(0, 2, &world.device().autodiff());
            let step = pipeline.backward(&batches, |part, pass| {
                // Together the passes of a rank pause once in a forward pass and four times in a backward pass.
                let pause = PAUSE / chunks;
                std::thread::sleep(pause);
                let parameter = part.layers[0].inner.weight.id;
                let zeros = part.layers[0].inner.weight.val().zeros_like().without_autodiff();
                pass.weights().leave(parameter, move || {
                    std::thread::sleep(4 * pause);
                    zeros
                });
                part.stage(pass)
            });
            step.unwrap().output.times
        });
        assert_eq!(times[0], times[1]);
        let pause_s = PAUSE.as_secs_f64();
        assert!(times[0].forward_s >= pause_s, "{kind}: {times:?}");
        assert!(times[0].input_gradient_s >= 2.0 * pause_s, "{kind}: {times:?}");
        assert_eq!(times[0].input_gradient_s, times[0].weight_gradient_s);
    }
}
