//! AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), in the arithmetic of Burn's.

use burn::optim::LearningRate;

use super::number::Number;
use super::slices::Rule;
use super::{Arithmetic, Fused, Step, Stepped};

crate::config! {
    /// Configuration of [`AdamW`]. The defaults are PyTorch's; Burn's own AdamW has an epsilon of 1e-5 and a
    /// weight decay of 1e-4.
    ///
    /// ```
    /// # mod bonfire { pub mod optim { pub use bonfire_optim::*; } }
    /// use bonfire::optim::AdamWConfig;
    /// use burn::module::ParamGroup;
    ///
    /// let config = AdamWConfig::new().with_weight_decay(0.1);
    /// let gains = ParamGroup::from_predicate("gamma");
    /// let undecayed = config.with_weight_decay(0.0).build();
    /// let optimizer = config.init().with_group(gains, undecayed, None);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(default)]
    AdamWConfig {
        /// The decay of the first moment, from 0 to less than 1.
        beta_1: f32 = 0.9 => with_beta_1,
        /// The decay of the second moment, from 0 to less than 1.
        beta_2: f32 = 0.999 => with_beta_2,
        /// Added to the root of the second moment.
        epsilon: f32 = 1e-8 => with_epsilon,
        /// The part of a parameter that a step takes away at a learning rate of 1, whatever its gradient.
        weight_decay: f32 = 1e-2 => with_weight_decay,
    }
}

super::optimizer! {
    /// # Panics
    /// If a beta is not in its range.
    AdamWConfig: |config| super::assert_betas([config.beta_1, config.beta_2])
}

/// AdamW in one pass over memory, made by [`AdamWConfig`].
///
/// ```text
/// m = beta_1 m + (1 - beta_1) g        v = beta_2 v + (1 - beta_2) g²
/// p = (1 - lr weight_decay) p - lr (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::AdamW`] with the same numbers. Those of 16 bits
/// have master weights and moments in 32 bits.
pub type AdamW = Fused<AdamWConfig>;

impl Arithmetic for AdamWConfig {
    const TIME: Option<&'static str> = Some("momentum.time");
    const MOMENTS: &'static [&'static str] = &["momentum.moment_1", "momentum.moment_2"];

    fn step<const D: usize>(&self, step: Step<'_, Self, D>) -> Stepped<Self, D> {
        let rule = AdamWRule::new(*self, step.lr, step.time());
        step.with(rule)
    }
}

/// A step of AdamW. Its constants are computed in the types in which Burn computes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamWRule {
    betas: [f64; 2],
    factors: [f64; 2],
    corrections: [f64; 2],
    epsilon: f64,
    kept: f64,
    rate: f64,
}

impl AdamWRule {
    pub(crate) fn new(config: AdamWConfig, rate: LearningRate, time: usize) -> Self {
        let betas = [config.beta_1, config.beta_2];
        Self {
            betas: betas.map(f64::from),
            factors: betas.map(|beta| f64::from(1.0 - beta)),
            corrections: betas.map(|beta| f64::from(1.0 - beta.powi(time as i32))),
            epsilon: f64::from(config.epsilon),
            kept: 1.0 - rate * f64::from(config.weight_decay),
            rate,
        }
    }
}

impl Rule<2> for AdamWRule {
    #[inline(always)]
    fn update<N: Number>(self, parameter: N, gradient: N, [first, second]: [N; 2]) -> (N, [N; 2]) {
        let square = gradient.clone() * gradient.clone();
        let first = first.times(self.betas[0]) + gradient.times(self.factors[0]);
        let second = second.times(self.betas[1]) + square.times(self.factors[1]);
        let root = second.clone().over(self.corrections[1]).sqrt();
        let update = first.clone().over(self.corrections[0]) / root.plus(self.epsilon);
        let parameter = parameter.times(self.kept) - update.times(self.rate);
        (parameter, [first, second])
    }
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use burn::optim as burn_optim;

    use super::*;
    use crate::fused::tests::{CASES, check, check_records};

    #[test]
    fn adamw_has_the_bits_of_burns() {
        for (dtype, decay) in CASES {
            let ours = AdamWConfig::new().with_weight_decay(decay).with_beta_2(0.99);
            let theirs = burn_optim::AdamWConfig::new().with_epsilon(1e-8);
            let theirs = theirs.with_weight_decay(decay).with_beta_2(0.99);
            check(&ours.build(), &theirs.build(), dtype);
        }
        let ours = AdamWConfig::new().with_weight_decay(1e-4);
        let theirs = burn_optim::AdamWConfig::new().with_epsilon(1e-8);
        check_records(|| ours.init(), || theirs.init());
    }
}
