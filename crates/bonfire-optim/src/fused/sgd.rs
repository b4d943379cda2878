//! Stochastic gradient descent with momentum (Sutskever et al. 2013), in the arithmetic of Burn's.

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Around;
use super::number::Number;
use super::slices::Rule;
use super::state::{Names, State};
use crate::factor::DeferredScale;
use crate::offload::Offload;

/// Configuration of [`Sgd`]. The defaults are PyTorch's: neither momentum nor weight decay. Burn's momentum has a
/// dampening of 0.1 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SgdConfig {
    /// The share of the velocity that a step keeps, from 0 to less than 1. With 0 there is no velocity in memory.
    pub momentum: f64,
    /// The fraction of a gradient that does not enter the velocity. The first gradient enters it undamped.
    pub dampening: f64,
    /// Evaluates the gradient where momentum leads (Nesterov).
    pub nesterov: bool,
    /// The part of a parameter that is added to its gradient (L2 penalty).
    pub weight_decay: f32,
}

impl SgdConfig {
    /// Returns the defaults: every field 0 or false.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`momentum`](Self::momentum), from 0 to less than 1.
    #[must_use]
    pub fn with_momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// Sets [`dampening`](Self::dampening), 0 by default.
    #[must_use]
    pub fn with_dampening(self, dampening: f64) -> Self {
        Self { dampening, ..self }
    }

    /// Sets [`nesterov`](Self::nesterov), which needs a momentum above 0.
    #[must_use]
    pub fn with_nesterov(self, nesterov: bool) -> Self {
        Self { nesterov, ..self }
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
    /// If the momentum is not in its range, or with Nesterov's momentum of 0.
    pub fn build(&self) -> Sgd {
        super::assert_betas([self.momentum as f32]);
        assert!(
            self.momentum > 0.0 || !self.nesterov,
            "Nesterov's momentum of {}",
            self.momentum
        );
        Sgd {
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

/// Stochastic gradient descent in one pass over memory, made by [`SgdConfig`].
///
/// ```text
/// g = g + weight_decay p        v = momentum v + (1 - dampening) g, at first g
/// p = p - lr v, without momentum p - lr g, with Nesterov's p - lr (momentum v + g)
/// ```
///
/// Parameters of 32 and 64 bits get the bits of [`burn::optim::Sgd`] with the same numbers. Those of 16 bits
/// have master weights and a velocity in 32 bits.
#[derive(Clone, Debug)]
pub struct Sgd {
    config: SgdConfig,
    around: Around,
}

impl Sgd {
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

impl Names for Sgd {
    const TIME: Option<&'static str> = None;
    const MOMENTS: &'static [&'static str] = &["momentum.velocity"];
}

impl Optimizer for Sgd {
    type State<const D: usize> = State<Self, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let descent = Descent {
            penalty: f64::from(self.config.weight_decay),
            rate: lr,
        };
        if self.config.momentum == 0.0 {
            return super::step(descent, tensor, grad, state, &self.around);
        }
        let is_first = state.as_ref().is_none_or(|state| state.moments.is_empty());
        let momentum = Momentum {
            descent,
            momentum: f64::from(self.config.momentum as f32),
            entering: if is_first {
                1.0
            } else {
                1.0 - self.config.dampening
            },
            nesterov: self.config.nesterov,
        };
        super::step(momentum, tensor, grad, state, &self.around)
    }

    /// Returns the state unchanged: the step moves it to the device that it needs.
    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
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
