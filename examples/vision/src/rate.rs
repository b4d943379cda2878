//! The learning rate of an epoch, by Distribuuuu's rules: a policy over the whole training, and a
//! linear warm-up that multiplies its first epochs.

use bonfire::optim::{Decay, Schedule};

use crate::config::{LrPolicy, OptimSection};

/// Returns the rate of `epoch`, counted from 0; the same for all its steps.
pub fn rate(optim: &OptimSection, epoch: usize) -> f64 {
    warmup(optim, epoch) * policy(optim, epoch)
}

fn policy(optim: &OptimSection, epoch: usize) -> f64 {
    let highest = Schedule::constant(optim.base_lr);
    match optim.lr_policy {
        LrPolicy::Cos => highest
            .with_decay(Decay::Cosine {
                steps: optim.max_epoch.get() as u64,
                final_factor: optim.min_lr,
            })
            .rate(epoch as u64),
        LrPolicy::Steps => {
            // The first step is at epoch 0 and multiplies nothing.
            let past = optim.steps.iter().filter(|&&step| step <= epoch).count();
            let times = i32::try_from(past.saturating_sub(1)).unwrap_or(i32::MAX);
            optim.base_lr * optim.lr_mult.powi(times)
        }
    }
}

/// The factor of the rate in the warm-up.
fn warmup(optim: &OptimSection, epoch: usize) -> f64 {
    if epoch >= optim.warmup_epochs {
        return 1.0;
    }
    let progress = epoch as f64 / optim.warmup_epochs as f64;
    optim.warmup_factor * (1.0 - progress) + progress
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;
    use std::num::NonZeroUsize;

    use super::*;
    use crate::config::Config;

    fn optim() -> OptimSection {
        Config::default().optim
    }

    fn check(optim: &OptimSection, epoch: usize, expected: f64) {
        let rate = rate(optim, epoch);
        assert!((rate - expected).abs() < 1e-12, "epoch {epoch}: {rate} against {expected}");
    }

    #[test]
    fn the_warmup_multiplies_the_cosine() {
        let optim = optim();
        let cosine = |epoch: f64| 0.2 * 0.5 * (1.0 + (PI * epoch / 100.0).cos());
        check(&optim, 0, 0.1 * 0.2);
        check(&optim, 2, (0.1 * 0.6 + 0.4) * cosine(2.0));
        check(&optim, 5, cosine(5.0));
        check(&optim, 50, 0.1);
        check(&optim, 99, cosine(99.0));
    }

    #[test]
    fn the_last_rate_of_a_cosine_is_a_fraction_of_the_highest() {
        let optim = OptimSection { min_lr: 0.25, ..optim() };
        check(&optim, 50, 0.2 * (0.25 + 0.75 * 0.5));
        check(&optim, 100, 0.05);
    }

    #[test]
    fn steps_multiply_from_their_epoch_on() {
        let optim = OptimSection {
            lr_policy: LrPolicy::Steps,
            base_lr: 1.0,
            steps: vec![0, 30, 60],
            max_epoch: NonZeroUsize::new(90).unwrap(),
            warmup_epochs: 0,
            ..optim()
        };
        for (epoch, expected) in [(0, 1.0), (29, 1.0), (30, 0.1), (59, 0.1), (60, 0.01)] {
            check(&optim, epoch, expected);
        }
    }
}
