//! Lion (Chen et al. 2023, arXiv 2302.06675), in the arithmetic of Burn's.

use burn::optim::LearningRate;

use super::number::Number;
use super::slices::Rule;
use super::{Arithmetic, Fused, Step, Stepped};

crate::config! {
    /// Configuration of [`Lion`]. The defaults are the paper's and Burn's.
    #[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(default)]
    LionConfig {
        /// The weight of the momentum in the direction of a step, from 0 to less than 1.
        beta_1: f32 = 0.9 => with_beta_1,
        /// The decay of the momentum, from 0 to less than 1.
        beta_2: f32 = 0.99 => with_beta_2,
        /// The part of a parameter that a step takes away at a learning rate of 1, whatever its gradient.
        weight_decay: f32 = 0.0 => with_weight_decay,
    }
}

super::optimizer! {
    /// # Panics
    /// If a beta is not in its range.
    LionConfig: |config| super::assert_betas([config.beta_1, config.beta_2])
}

/// Lion in one pass over memory, made by [`LionConfig`].
///
/// ```text
/// u = sign(beta_1 m + (1 - beta_1) g)        m = beta_2 m + (1 - beta_2) g
/// p = (1 - lr weight_decay) p - lr u
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::Lion`] with the same numbers. Those of 16 bits
/// have master weights and a momentum in 32 bits.
pub type Lion = Fused<LionConfig>;

impl Arithmetic for LionConfig {
    const TIME: Option<&'static str> = None;
    const MOMENTS: &'static [&'static str] = &["momentum"];

    fn step<const D: usize>(&self, step: Step<'_, Self, D>) -> Stepped<Self, D> {
        let rule = LionRule::new(*self, step.lr);
        step.with(rule)
    }
}

/// A step of Lion. Its constants are computed in the types in which Burn computes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LionRule {
    betas: [f64; 2],
    factors: [f64; 2],
    kept: f64,
    rate: f64,
}

impl LionRule {
    pub(crate) fn new(config: LionConfig, rate: LearningRate) -> Self {
        let betas = [config.beta_1, config.beta_2];
        Self {
            betas: betas.map(f64::from),
            factors: betas.map(|beta| f64::from(1.0 - beta)),
            kept: 1.0 - rate * f64::from(config.weight_decay),
            rate,
        }
    }
}

impl Rule<1> for LionRule {
    #[inline(always)]
    fn update<N: Number>(self, parameter: N, gradient: N, [momentum]: [N; 1]) -> (N, [N; 1]) {
        let direction = momentum.clone().times(self.betas[0]);
        let direction = direction + gradient.clone().times(self.factors[0]);
        let momentum = momentum.times(self.betas[1]) + gradient.times(self.factors[1]);
        let parameter = parameter.times(self.kept) - direction.sign().times(self.rate);
        (parameter, [momentum])
    }
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use burn::optim as burn_optim;

    use super::*;
    use crate::fused::tests::{CASES, check, check_records};

    #[test]
    fn lion_has_the_bits_of_burns() {
        for (dtype, decay) in CASES {
            let ours = LionConfig::new().with_weight_decay(decay);
            let theirs = burn_optim::LionConfig::new().with_weight_decay(decay);
            check(&ours.build(), &theirs.build(), dtype);
        }
        check_records(|| LionConfig::new().init(), || burn_optim::LionConfig::new().init());
    }
}
