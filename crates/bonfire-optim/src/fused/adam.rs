//! Adam (Kingma and Ba 2015, arXiv 1412.6980), in the arithmetic of Burn's.

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Around;
use super::number::Number;
use super::slices::Rule;
use super::state::{Names, State};
use crate::factor::DeferredScale;
use crate::offload::Offload;

/// Configuration of [`Adam`]. The defaults are PyTorch's; Burn's own Adam has an epsilon of 1e-5.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AdamConfig {
    /// The decay of the first moment, from 0 to less than 1.
    pub beta_1: f32,
    /// The decay of the second moment, from 0 to less than 1.
    pub beta_2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// The part of a parameter that is added to its gradient (L2 penalty).
    pub weight_decay: f32,
}

impl Default for AdamConfig {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        }
    }
}

impl AdamConfig {
    /// Returns the defaults: 0.9, 0.999, 1e-8 and 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`beta_1`](Self::beta_1), from 0 to less than 1.
    #[must_use]
    pub fn with_beta_1(self, beta_1: f32) -> Self {
        Self { beta_1, ..self }
    }

    /// Sets [`beta_2`](Self::beta_2), from 0 to less than 1.
    #[must_use]
    pub fn with_beta_2(self, beta_2: f32) -> Self {
        Self { beta_2, ..self }
    }

    /// Sets [`epsilon`](Self::epsilon), added to a root.
    #[must_use]
    pub fn with_epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets the L2 penalty [`weight_decay`](Self::weight_decay).
    #[must_use]
    pub fn with_weight_decay(self, weight_decay: f32) -> Self {
        Self {
            weight_decay,
            ..self
        }
    }

    /// Builds the optimizer of single parameters, for [`ModuleOptimizer::with_group`].
    ///
    /// # Panics
    /// If a beta is not in its range.
    pub fn build(&self) -> Adam {
        super::assert_betas([self.beta_1, self.beta_2]);
        Adam {
            config: *self,
            around: Around::default(),
        }
    }

    /// Builds the optimizer of a complete module.
    ///
    /// # Panics
    /// As [`build`](Self::build).
    pub fn init(&self) -> ModuleOptimizer {
        self.build().into()
    }
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
#[derive(Clone, Debug)]
pub struct Adam {
    config: AdamConfig,
    around: Around,
}

impl Adam {
    /// Places the state outside of the parameters' memory, or there with `None`.
    #[must_use]
    pub fn with_offload(self, offload: impl Into<Option<Offload>>) -> Self {
        let around = self.around.with_offload(offload.into());
        Self { around, ..self }
    }

    /// Sets a handle on the factors of its gradients, or removes it with `None`.
    #[must_use]
    pub fn with_deferred_scale(self, factor: impl Into<Option<DeferredScale>>) -> Self {
        let around = self.around.with_factor(factor.into());
        Self { around, ..self }
    }
}

impl Names for Adam {
    const TIME: Option<&'static str> = Some("momentum.time");
    const MOMENTS: &'static [&'static str] = &["momentum.moment_1", "momentum.moment_2"];
}

impl Optimizer for Adam {
    type State<const D: usize> = State<Self, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let rule = AdamRule::new(self.config, lr, time);
        super::step(rule, tensor, grad, state, &self.around)
    }

    /// Returns the state unchanged: the step moves it to the device that it needs.
    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
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
