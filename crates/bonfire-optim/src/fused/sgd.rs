//! Stochastic gradient descent with momentum (Sutskever et al. 2013), in the arithmetic of Burn's.

use super::number::Number;
use super::slices::Rule;
use super::{Arithmetic, Fused, Step, Stepped};

crate::config! {
    /// Configuration of [`Sgd`]. The defaults are PyTorch's: neither momentum nor weight decay. Burn's momentum has a
    /// dampening of 0.1 by default.
    #[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(default)]
    SgdConfig {
        /// The share of the velocity that a step keeps, from 0 to less than 1. With 0 there is no velocity in memory.
        momentum: f64 = 0.0 => with_momentum,
        /// The fraction of a gradient that does not enter the velocity. The first gradient enters it undamped.
        dampening: f64 = 0.0 => with_dampening,
        /// Evaluates the gradient where momentum leads (Nesterov).
        nesterov: bool = false => with_nesterov,
        /// The part of a parameter that is added to its gradient (L2 penalty).
        weight_decay: f32 = 0.0 => with_weight_decay,
    }
}

super::optimizer! {
    /// # Panics
    /// If the momentum is not in its range, or with Nesterov's momentum of 0.
    SgdConfig: |config| {
        super::assert_betas([config.momentum as f32]);
        assert!(
            config.momentum > 0.0 || !config.nesterov,
            "Nesterov's momentum of {}",
            config.momentum
        );
    }
}

/// Stochastic gradient descent in one pass over memory, made by [`SgdConfig`].
///
/// ```text
/// g = g + weight_decay p        v = momentum v + (1 - dampening) g, at first g
/// p = p - lr v, without momentum p - lr g, with Nesterov's p - lr (momentum v + g)
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::Sgd`] with the same numbers. Those of 16 bits
/// have master weights and a velocity in 32 bits.
pub type Sgd = Fused<SgdConfig>;

impl Arithmetic for SgdConfig {
    const TIME: Option<&'static str> = None;
    const MOMENTS: &'static [&'static str] = &["momentum.velocity"];

    fn step<const D: usize>(&self, step: Step<'_, Self, D>) -> Stepped<Self, D> {
        let descent = Descent { penalty: f64::from(self.weight_decay), rate: step.lr };
        if self.momentum == 0.0 {
            return step.with(descent);
        }
        let is_first = step.state.as_ref().is_none_or(|state| state.moments.is_empty());
        let momentum = Momentum {
            descent,
            momentum: f64::from(self.momentum as f32),
            entering: if is_first { 1.0 } else { 1.0 - self.dampening },
            nesterov: self.nesterov,
        };
        step.with(momentum)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Descent {
    penalty: f64,
    rate: f64,
}

impl Rule<0> for Descent {
    #[inline(always)]
    fn update<N: Number>(self, parameter: N, gradient: N, []: [N; 0]) -> (N, [N; 0]) {
        let gradient = super::penalized(self.penalty, &parameter, gradient);
        (parameter - gradient.times(self.rate), [])
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Momentum {
    descent: Descent,
    momentum: f64,
    /// The fraction of the gradient that enters the velocity.
    entering: f64,
    nesterov: bool,
}

impl Rule<1> for Momentum {
    #[inline(always)]
    fn update<N: Number>(self, parameter: N, gradient: N, [velocity]: [N; 1]) -> (N, [N; 1]) {
        let gradient = super::penalized(self.descent.penalty, &parameter, gradient);
        let entering = gradient.clone().times(self.entering);
        let velocity = entering + velocity.times(self.momentum);
        let direction = if self.nesterov {
            velocity.clone().times(self.momentum) + gradient
        } else {
            velocity.clone()
        };
        (parameter - direction.times(self.descent.rate), [velocity])
    }
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use burn::optim as burn_optim;
    use burn::optim::momentum::MomentumConfig;

    use super::*;
    use crate::fused::tests::{CASES, check, check_records, penalty};

    #[test]
    fn sgd_has_the_bits_of_burns() {
        for (dtype, decay) in CASES {
            let ours = SgdConfig::new().with_weight_decay(decay);
            let theirs = burn_optim::SgdConfig::new().with_weight_decay(penalty(decay));
            check(&ours.build(), &theirs.build(), dtype);
            for nesterov in [false, true] {
                let momentum = MomentumConfig::new().with_nesterov(nesterov);
                let ours = ours.with_momentum(0.9).with_dampening(0.1);
                let theirs = theirs.clone().with_momentum(Some(momentum));
                check(&ours.with_nesterov(nesterov).build(), &theirs.build(), dtype);
            }
        }
        let ours = SgdConfig::new().with_momentum(0.9);
        let momentum = MomentumConfig::new().with_dampening(0.0);
        let theirs = burn_optim::SgdConfig::new().with_momentum(Some(momentum));
        check_records(|| ours.init(), || theirs.init());
    }
}
