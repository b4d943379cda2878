//! Stochastic gradient descent with momentum (Sutskever et al. 2013), in the arithmetic of Burn's.

use burn::optim::LearningRate;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::number::Number;
use super::slices::Rule;
use super::state::State;
use super::{Arithmetic, Fused, OptimizerContext};

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

super::methods!(SgdConfig {
    with_momentum(momentum: f64),
    with_dampening(dampening: f64),
    with_nesterov(nesterov: bool),
    with_weight_decay(weight_decay: f32),
});

impl SgdConfig {
    /// The optimizer of parameters, for [`ModuleOptimizer::with_group`](burn::optim::ModuleOptimizer::with_group).
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
        Fused::new(*self)
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

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<State<Self, D>>,
        context: &OptimizerContext,
    ) -> (Tensor<D>, Option<State<Self, D>>) {
        let descent = Descent {
            penalty: f64::from(self.weight_decay),
            rate: lr,
        };
        if self.momentum == 0.0 {
            return super::step(descent, tensor, grad, state, context);
        }
        let is_first = state.as_ref().is_none_or(|state| state.moments.is_empty());
        let momentum = Momentum {
            descent,
            momentum: f64::from(self.momentum as f32),
            entering: if is_first { 1.0 } else { 1.0 - self.dampening },
            nesterov: self.nesterov,
        };
        super::step(momentum, tensor, grad, state, context)
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
