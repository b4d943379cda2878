//! What synchronisation adds to a step.

use std::time::{Duration, Instant};

use bonfire_collective::ReduceOp;
use bonfire_train::{Ddp, DdpConfig, World};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::TrialError;
use crate::network::{Network, Size, samples};

/// Rounds before the first that counts: buckets are dealt again after the second step, and kernels are
/// compiled and chosen.
const WARM_UP_ROUNDS: usize = 4;

/// Times of a step: forward, backward and gradients in hand, until the device has done it, on the slowest
/// rank; medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Without Bonfire, on all ranks at once.
    pub plain: Duration,
    /// With averaged gradients.
    pub synchronised: Duration,
    /// The second over the first, round by round.
    pub ratio: f64,
    /// What part of the synchronised step a rank stood still for communication; of the slowest rank.
    pub exposed: f64,
}

/// Times steps of both kinds in turn. Every rank calls it alike. With one rank it is what Bonfire costs where
/// there is nothing to synchronise.
///
/// # Errors
/// Those of training.
pub fn pace(world: &World, size: Size, rounds: usize) -> Result<Pace, TrialError> {
    let device = world.device();
    let network = Network::new(size, &device);
    let plain = network.clone().train();
    let mut ddp = Ddp::with_config(network, world, DdpConfig::default())?;
    let first = world.rank().index() * size.batch;
    let (input, target) = samples(first..first + size.batch, size, &device.clone().autodiff());
    let mut times = Times::default();
    for round in 0..WARM_UP_ROUNDS + rounds.max(1) {
        let without = timed(world, &device, || {
            let gradients = plain.loss(input.clone(), target.clone()).backward();
            let _ = GradientsParams::from_grads(gradients, &plain);
            Ok(())
        })?;
        let with = timed(world, &device, || {
            let averaged = ddp.backward(|n: &Network| n.loss(input.clone(), target.clone()))?;
            drop(averaged);
            Ok(())
        })?;
        let exposed = slowest(world, ddp.last_step().exposed_communication)?;
        if round >= WARM_UP_ROUNDS {
            times.plain.push(without);
            times.synchronised.push(with);
            times.ratio.push(with / without);
            times.exposed.push(exposed / with);
        }
    }
    Ok(times.medians())
}

#[derive(Default)]
struct Times {
    plain: Vec<f64>,
    synchronised: Vec<f64>,
    ratio: Vec<f64>,
    exposed: Vec<f64>,
}

impl Times {
    fn medians(self) -> Pace {
        Pace {
            plain: Duration::from_secs_f64(median(self.plain)),
            synchronised: Duration::from_secs_f64(median(self.synchronised)),
            ratio: median(self.ratio),
            exposed: median(self.exposed),
        }
    }
}

/// Seconds until the device of the slowest rank has done it; all ranks start together.
fn timed(
    world: &World,
    device: &Device,
    step: impl FnOnce() -> Result<(), TrialError>,
) -> Result<f64, TrialError> {
    idle(device)?;
    world.group().barrier()?;
    let started = Instant::now();
    step()?;
    idle(device)?;
    slowest(world, started.elapsed())
}

fn idle(device: &Device) -> Result<(), TrialError> {
    device.sync().map_err(|cause| TrialError::Unreadable {
        what: "the end of a step",
        cause: format!("{cause:?}"),
    })
}

/// The longest of all ranks' times, in seconds.
fn slowest(world: &World, own: Duration) -> Result<f64, TrialError> {
    let mut seconds = [own.as_secs_f64()];
    world.group().all_reduce(&mut seconds, ReduceOp::Max)?;
    Ok(seconds[0])
}

/// The value in the middle; of an even number the greater one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
