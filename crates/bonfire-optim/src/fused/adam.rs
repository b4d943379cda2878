//! Adam (Kingma and Ba 2015, arXiv 1412.6980), in the arithmetic of Burn's.

use burn::optim::LearningRate;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::number::Number;
use super::slices::Rule;
use super::state::State;
use super::{Arithmetic, Fused, OptimizerContext};

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

super::methods!(AdamConfig {
    with_beta_1(beta_1: f32),
    with_beta_2(beta_2: f32),
    with_epsilon(epsilon: f32),
    with_weight_decay(weight_decay: f32),
});

impl AdamConfig {
    /// The optimizer of parameters, for [`ModuleOptimizer::with_group`](burn::optim::ModuleOptimizer::with_group).
    ///
    /// # Panics
    /// If a beta is not in its range.
    pub fn build(&self) -> Adam {
        super::assert_betas([self.beta_1, self.beta_2]);
        Fused::new(*self)
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
pub type Adam = Fused<AdamConfig>;

impl Arithmetic for AdamConfig {
    const TIME: Option<&'static str> = Some("momentum.time");
    const MOMENTS: &'static [&'static str] = &["momentum.moment_1", "momentum.moment_2"];

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<State<Self, D>>,
        context: &OptimizerContext,
    ) -> (Tensor<D>, Option<State<Self, D>>) {
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let rule = AdamRule::new(*self, lr, time);
        super::step(rule, tensor, grad, state, context)
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
