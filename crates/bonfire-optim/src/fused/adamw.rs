//! AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), in the arithmetic of Burn's.

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Around;
use super::number::Number;
use super::slices::Rule;
use super::state::{Names, State};
use crate::factor::DeferredScale;
use crate::offload::Offload;

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct AdamWConfig {
    /// The decay of the first moment, from 0 to less than 1.
    pub beta_1: f32,
    /// The decay of the second moment, from 0 to less than 1.
    pub beta_2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// The part of a parameter that a step takes away at a learning rate of 1, whatever its gradient.
    pub weight_decay: f32,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay: 1e-2,
        }
    }
}

impl AdamWConfig {
    /// Returns the defaults: 0.9, 0.999, 1e-8 and 1e-2.
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
    pub fn build(&self) -> AdamW {
        super::assert_betas([self.beta_1, self.beta_2]);
        AdamW {
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

/// AdamW in one pass over memory, made by [`AdamWConfig`].
///
/// ```text
/// m = beta_1 m + (1 - beta_1) g        v = beta_2 v + (1 - beta_2) g²
/// p = (1 - lr weight_decay) p - lr (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon)
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::AdamW`] with the same numbers. Those of 16 bits
/// have master weights and moments in 32 bits.
#[derive(Clone, Debug)]
pub struct AdamW {
    config: AdamWConfig,
    around: Around,
}

impl AdamW {
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

impl Names for AdamW {
    const TIME: Option<&'static str> = Some("momentum.time");
    const MOMENTS: &'static [&'static str] = &["momentum.moment_1", "momentum.moment_2"];
}

impl Optimizer for AdamW {
    type State<const D: usize> = State<Self, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let rule = AdamWRule::new(self.config, lr, time);
        super::step(rule, tensor, grad, state, &self.around)
    }

    /// Returns the state unchanged: the step moves it to the device that it needs.
    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
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
