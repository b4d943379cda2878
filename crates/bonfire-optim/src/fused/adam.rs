//! Adam (Kingma and Ba 2015, arXiv 1412.6980), in the arithmetic of Burn's.

use burn::optim::LearningRate;

use super::number::Number;
use super::slices::Rule;
use super::{Arithmetic, Fused, Step, Stepped};

crate::config! {
    /// Configuration of [`Adam`]. The defaults are PyTorch's; Burn's own Adam has an epsilon of 1e-5.
    #[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(default)]
    AdamConfig {
        /// The decay of the first moment, from 0 to less than 1.
        beta_1: f32 = 0.9 => with_beta_1,
        /// The decay of the second moment, from 0 to less than 1.
        beta_2: f32 = 0.999 => with_beta_2,
        /// Added to the root of the second moment.
        epsilon: f32 = 1e-8 => with_epsilon,
        /// The part of a parameter that is added to its gradient (L2 penalty).
        weight_decay: f32 = 0.0 => with_weight_decay,
    }
}

super::optimizer! {
    /// # Panics
    /// If a beta is not in its range.
    AdamConfig: |config| super::assert_betas([config.beta_1, config.beta_2])
}

/// Adam in one pass over memory, made by [`AdamConfig`].
///
/// ```text
/// g = g + weight_decay p
/// m = beta_1 m + (1 - beta_1) g        v = beta_2 v + (1 - beta_2) g²
/// p = p - lr (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::Adam`] with the same numbers. Those of 16 bits
/// have master weights and moments in 32 bits.
pub type Adam = Fused<AdamConfig>;

impl Arithmetic for AdamConfig {
    const TIME: Option<&'static str> = Some("momentum.time");
    const MOMENTS: &'static [&'static str] = &["momentum.moment_1", "momentum.moment_2"];

    fn step<const D: usize>(&self, step: Step<'_, Self, D>) -> Stepped<Self, D> {
        let rule = AdamRule::new(*self, step.lr, step.time());
        step.with(rule)
    }
}

/// A step of Adam. Its constants are computed in the types in which Burn computes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamRule {
    penalty: f64,
    betas: [f64; 2],
    factors: [f64; 2],
    /// The bias correction of both moments together.
    correction: f64,
    epsilon: f64,
    rate: f64,
}

impl AdamRule {
    pub(crate) fn new(config: AdamConfig, rate: LearningRate, time: usize) -> Self {
        let betas = [config.beta_1, config.beta_2];
        let corrections = betas.map(|beta| 1.0 - beta.powi(time as i32));
        let root = corrections[1].sqrt();
        Self {
            penalty: f64::from(config.weight_decay),
            betas: betas.map(f64::from),
            factors: betas.map(|beta| f64::from(1.0 - beta)),
            correction: f64::from(root / corrections[0]),
            epsilon: f64::from(config.epsilon * root),
            rate,
        }
    }
}

impl Rule<2> for AdamRule {
    #[inline(always)]
    fn update<N: Number>(self, parameter: N, gradient: N, [first, second]: [N; 2]) -> (N, [N; 2]) {
        let gradient = super::penalized(self.penalty, &parameter, gradient);
        let square = gradient.clone() * gradient.clone();
        let first = first.times(self.betas[0]) + gradient.times(self.factors[0]);
        let second = second.times(self.betas[1]) + square.times(self.factors[1]);
        let root = second.clone().sqrt().plus(self.epsilon);
        let update = first.clone().times(self.correction) / root;
        (parameter - update.times(self.rate), [first, second])
    }
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use burn::optim as burn_optim;

    use super::*;
    use crate::fused::tests::{CASES, check, check_records, penalty};

    #[test]
    fn adam_has_the_bits_of_burns() {
        let theirs = burn_optim::AdamConfig::new().with_epsilon(1e-8);
        for (dtype, decay) in CASES {
            let ours = AdamConfig::new().with_weight_decay(decay).with_beta_1(0.8);
            let theirs = theirs.clone().with_weight_decay(penalty(decay)).with_beta_1(0.8);
            check(&ours.build(), &theirs.build(), dtype);
        }
        check_records(|| AdamConfig::new().init(), || theirs.init());
    }
}
