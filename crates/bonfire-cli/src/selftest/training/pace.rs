//! What synchronisation adds to a step.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use bonfire_collective::ReduceOp;
use bonfire_train::{Ddp, DdpConfig, World};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use super::network::{Network, Size, samples};

/// Rounds before the first that counts: buckets are partitioned again after the second step, and
/// kernels are compiled and chosen.
const WARM_UP_ROUNDS: usize = 4;

/// Times of a step: forward, backward and gradients in hand, until the device of the slowest rank has done
/// it; medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    /// Without Bonfire, on all ranks at once.
    pub(super) plain: Duration,
    pub(super) synchronised: Duration,
    /// The second over the first, round by round.
    pub(super) ratio: f64,
    /// What averaging gradients of the same sizes adds to a step that computes next to nothing, which nothing
    /// can hide behind; of several ranks.
    pub(super) communication: Option<Duration>,
}

impl Pace {
    /// What part of the communication the computation hides, if there is any.
    pub(super) fn overlap(&self) -> Option<f64> {
        let added = self.synchronised.as_secs_f64() - self.plain.as_secs_f64();
        let communication = self.communication?.as_secs_f64();
        (communication > 0.0).then(|| 1.0 - added / communication)
    }
}

/// Times steps with and without averages in turn. Every rank calls it alike. With one rank it is what Bonfire
/// costs where there is nothing to average.
pub(super) fn pace(world: &World, size: Size, rounds: usize) -> anyhow::Result<Pace> {
    let device = world.device();
    let network = Network::new(size, &device);
    let plain = network.clone().train();
    let mut ddp = Ddp::with_config(network, world, DdpConfig::default())?;
    let first = world.rank().index() * size.batch;
    let (input, target) = samples(first..first + size.batch, size, &device.clone().autodiff());
    let learning = |network: &Network| network.loss(input.clone(), target.clone());
    let mut times = Times::default();
    for round in 0..WARM_UP_ROUNDS + rounds.max(1) {
        let (without, with) = both(world, &plain, &mut ddp, learning)?;
        if round >= WARM_UP_ROUNDS {
            times.plain.push(without);
            times.synchronised.push(with);
            times.ratio.push(with / without);
        }
        if world.world_size().get() == 1 {
            continue;
        }
        let (without, with) = both(world, &plain, &mut ddp, Network::weight_decay)?;
        if round >= WARM_UP_ROUNDS {
            times.communication.push(with - without);
        }
    }
    Ok(times.medians())
}

/// Seconds of a step with and without averages.
fn both(
    world: &World,
    plain: &Network,
    ddp: &mut Ddp<Network>,
    loss: impl Fn(&Network) -> Tensor<1>,
) -> anyhow::Result<(f64, f64)> {
    let device = world.device();
    let without = timed(world, &device, || {
        let gradients = loss(plain).backward();
        Ok(GradientsParams::from_grads(gradients, plain))
    })?;
    let with = timed(world, &device, || Ok(ddp.backward(&loss)?))?;
    Ok((without, with))
}

#[derive(Default)]
struct Times {
    plain: Vec<f64>,
    synchronised: Vec<f64>,
    ratio: Vec<f64>,
    communication: Vec<f64>,
}

impl Times {
    fn medians(self) -> Pace {
        let duration = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
        let communication = (!self.communication.is_empty()).then(|| median(self.communication));
        Pace {
            plain: duration(median(self.plain)),
            synchronised: duration(median(self.synchronised)),
            ratio: median(self.ratio),
            communication: communication.map(duration),
        }
    }
}

/// Seconds until the device of the slowest rank has done it; all ranks start together.
fn timed<R>(
    world: &World,
    device: &Device,
    step: impl FnOnce() -> anyhow::Result<R>,
) -> anyhow::Result<f64> {
    idle(device)?;
    world.group().barrier()?;
    let started = Instant::now();
    // Until then: what nobody has in hand need not be computed.
    let _gradients = step()?;
    idle(device)?;
    slowest(world, started.elapsed())
}

fn idle(device: &Device) -> anyhow::Result<()> {
    let done = device.sync();
    done.map_err(|cause| anyhow!("the end of a step cannot be read from the device: {cause:?}"))
}

/// The longest of all ranks' times, in seconds.
fn slowest(world: &World, own: Duration) -> anyhow::Result<f64> {
    let mut seconds = [own.as_secs_f64()];
    world.group().all_reduce(&mut seconds, ReduceOp::Max)?;
    Ok(seconds[0])
}

/// The value in the middle; of an even number the greater one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(plain: u64, synchronised: u64, communication: u64) -> Pace {
        Pace {
            plain: Duration::from_millis(plain),
            synchronised: Duration::from_millis(synchronised),
            ratio: 1.0,
            communication: Some(Duration::from_millis(communication)),
        }
    }

    #[test]
    fn what_is_not_added_is_hidden() {
        assert_eq!(pace(100, 100, 10).overlap(), Some(1.0));
        assert!((pace(100, 101, 10).overlap().unwrap() - 0.9).abs() < 1e-9);
        assert!(pace(100, 110, 10).overlap().unwrap().abs() < 1e-9);
        assert_eq!(pace(100, 100, 0).overlap(), None);
        let alone = Pace { communication: None, ..pace(100, 100, 0) };
        assert_eq!(alone.overlap(), None);
    }

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 4.0);
        assert!(median(Vec::new()).is_nan());
    }
}
