//! Lion (Chen et al. 2023, arXiv 2302.06675), in the arithmetic of Burn's.

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Around;
use super::number::Number;
use super::slices::Rule;
use super::state::{Names, State};
use crate::factor::DeferredScale;
use crate::offload::Offload;

/// Configuration of [`Lion`]. The defaults are the paper's and Burn's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LionConfig {
    /// The weight of the momentum in the direction of a step, from 0 to less than 1.
    pub beta_1: f32,
    /// The decay of the momentum, from 0 to less than 1.
    pub beta_2: f32,
    /// The part of a parameter that a step takes away at a learning rate of 1, whatever its gradient.
    pub weight_decay: f32,
}

impl Default for LionConfig {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.99,
            weight_decay: 0.0,
        }
    }
}

impl LionConfig {
    /// Returns the defaults: 0.9, 0.99 and 0.
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

    /// Sets [`weight_decay`](Self::weight_decay), apart from the gradient.
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
    pub fn build(&self) -> Lion {
        super::assert_betas([self.beta_1, self.beta_2]);
        Lion {
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

/// Lion in one pass over memory, made by [`LionConfig`].
///
/// ```text
/// u = sign(beta_1 m + (1 - beta_1) g)        m = beta_2 m + (1 - beta_2) g
/// p = (1 - lr weight_decay) p - lr u
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::Lion`] with the same numbers. Those of 16 bits
/// have master weights and a momentum in 32 bits.
#[derive(Clone, Debug)]
pub struct Lion {
    config: LionConfig,
    around: Around,
}

impl Lion {
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

impl Names for Lion {
    const TIME: Option<&'static str> = None;
    const MOMENTS: &'static [&'static str] = &["momentum"];
}

impl Optimizer for Lion {
    type State<const D: usize> = State<Self, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let rule = LionRule::new(self.config, lr);
        super::step(rule, tensor, grad, state, &self.around)
    }

    /// Returns the state unchanged: the step moves it to the device that it needs.
    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
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
