//! Optimizers that read and write memory once.
//!
//! Burn's own compute a step as a chain of ten to fifteen operations, each of which goes through a whole tensor. On
//! the CPU, in tensors of the Flex backend, these here do it in one pass, in place where a tensor's memory is not
//! shared, with the widest vectors of the machine and, where it is large, on all threads of the rayon pool, which is
//! the one that Flex computes on. On other devices they are the same chain of operations, which Burn's fusion makes
//! one kernel of; or, with an [`Offload`], the pass on the CPU.
//!
//! The arithmetic is Burn's in Burn's order. So parameters of 32 and 64 bits have the bits of Burn's
//! optimizers. Parameters of 16 bits do not: Burn rounds each of its operations to 16 bits, and here they
//! have master weights and moments in 32 bits, as training in mixed precision has it (Micikevicius et al.
//! 2018): the bits of a parameter of 32 bits that is rounded once per step.

use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

use number::Number;
use offloaded::Offloaded;
use slices::Rule;
use state::State;

use crate::compute::{cast, is_flex, on, wide};
use crate::deferred::DeferredScale;
use crate::gradient::Factors;
use crate::offload::Offload;

mod adam;
mod adamw;
#[cfg(feature = "flex")]
mod flex;
mod lion;
mod master;
mod number;
mod offloaded;
mod sgd;
mod slices;
mod state;

/// Every rule with its configuration, as the crate exports them.
pub(crate) mod rules {
    pub use super::adam::{Adam, AdamConfig};
    pub use super::adamw::{AdamW, AdamWConfig};
    pub use super::lion::{Lion, LionConfig};
    pub use super::sgd::{Sgd, SgdConfig};
}

/// An optimizer that reads and writes memory once, made by its configuration.
#[derive(Clone, Debug)]
pub struct Fused<C> {
    config: C,
    context: OptimizerContext,
}

impl<C> Fused<C> {
    fn new(config: C) -> Self {
        let context = OptimizerContext::default();
        Self { config, context }
    }

    /// The same with its state elsewhere than in the memory of the parameters, or there with `None`.
    #[must_use]
    pub fn with_offload(mut self, offload: impl Into<Option<Offload>>) -> Self {
        self.context.offload = offload.into();
        self
    }

    /// The same with a handle on the factors of its gradients, or with `None` without.
    #[must_use]
    pub fn with_deferred_scale(mut self, deferred: impl Into<Option<DeferredScale>>) -> Self {
        self.context.deferred = deferred.into();
        self
    }
}

impl<C: Arithmetic> Optimizer for Fused<C> {
    type State<const D: usize> = State<C, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let context = &self.context;
        self.config.step(Step { lr, tensor, grad, state, context })
    }

    /// The step moves it where it is needed.
    fn to_device<const D: usize>(state: Self::State<D>, _: &Device) -> Self::State<D> {
        state
    }
}

/// What a configuration computes, and the names of its state in records.
pub trait Arithmetic: Clone + Send + Sync + 'static {
    /// The number of steps taken, where the optimizer counts them.
    const TIME: Option<&'static str>;
    /// The moments.
    const MOMENTS: &'static [&'static str];

    /// A step of one parameter, see [`Optimizer::step`].
    fn step<const D: usize>(&self, step: Step<'_, Self, D>) -> Stepped<Self, D>;
}

/// A parameter after a step, and its state.
pub(crate) type Stepped<N, const D: usize> = (Tensor<D>, Option<State<N, D>>);

/// A step to be taken of one parameter.
pub struct Step<'a, N, const D: usize> {
    lr: LearningRate,
    tensor: Tensor<D>,
    grad: Tensor<D>,
    state: Option<State<N, D>>,
    context: &'a OptimizerContext,
}

impl<N, const D: usize> Step<'_, N, D> {
    /// The number of the step, from 1.
    fn time(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.time) + 1
    }

    fn with<const M: usize>(self, rule: impl Rule<M>) -> Stepped<N, D> {
        step(rule, self.tensor, self.grad, self.state, self.context)
    }
}

/// Writes what the configurations of [`Fused`] have beside their fields; `build` asserts that these are in range.
macro_rules! optimizer {
    ($(#[$doc:meta])+ $Config:ident: |$config:ident| $assert:expr) => {
        impl $Config {
            /// The defaults.
            pub fn new() -> Self {
                Self::default()
            }

            /// The optimizer of parameters, for
            /// [`ModuleOptimizer::with_group`](burn::optim::ModuleOptimizer::with_group).
            ///
            $(#[$doc])+
            pub fn build(&self) -> $crate::fused::Fused<Self> {
                let $config = self;
                $assert;
                $crate::fused::Fused::new(*self)
            }

            /// The optimizer of a module.
            ///
            /// # Panics
            /// As [`build`](Self::build).
            pub fn init(&self) -> burn::optim::ModuleOptimizer {
                self.build().into()
            }
        }
    };
}
use optimizer;

/// Where an optimizer keeps its state, and the handle on factors of its gradients.
#[derive(Clone, Debug, Default)]
pub(crate) struct OptimizerContext {
    /// Where the state is, if not in the memory of the parameters.
    offload: Option<Offload>,
    deferred: Option<DeferredScale>,
}

/// A parameter, and what it is in 32 bits if it has 16.
struct Weights<const D: usize> {
    parameter: Offloaded<D>,
    master: Option<Offloaded<D>>,
}

/// A step of one parameter, from its state to the next.
///
/// # Panics
/// If the disk has no room for files; with an offload in a build without the backend of the CPU.
fn step<N, const D: usize, const M: usize>(
    rule: impl Rule<M>,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    state: Option<State<N, D>>,
    context: &OptimizerContext,
) -> (Tensor<D>, Option<State<N, D>>) {
    let offload = context.offload.as_ref();
    let factors = context.deferred.as_ref();
    let factors = factors.map_or_else(Factors::default, DeferredScale::take);
    let home = gradient.device();
    let device = match offload {
        Some(_) => host(),
        None => home.clone(),
    };
    let (parameter, gradient) = (on(parameter, &device), on(gradient, &device));
    let dtype = parameter.dtype();
    let wide = wide(dtype);
    let (time, moments, master, file) = match state {
        Some(state) => (state.time, state.moments, state.master, state.parameter),
        None => (0, Vec::new(), None, None),
    };
    let place = |kept: Offloaded<D>| kept.placed(wide, &device, offload);
    let moments: [Offloaded<D>; M] = match moments.try_into() {
        Ok(moments) => <[Offloaded<D>; M]>::map(moments, place),
        Err(_) => std::array::from_fn(|_| Offloaded::neutral(&parameter, wide, offload)),
    };
    let master = (wide != dtype)
        .then(|| place(master.unwrap_or_else(|| Offloaded::Memory(parameter.clone()))));
    let gradient = if gradient.dtype() == dtype { gradient } else { cast(gradient, wide) };
    let files = offload.filter(|offload| offload.has_parameters() && is_flex(&home));
    let parameter = match files.and_then(|files| files.folder_of(&parameter.shape(), dtype)) {
        #[cfg(feature = "flex")]
        Some(folder) => Offloaded::File(flex::in_file(parameter, file, folder)),
        _ => Offloaded::Memory(parameter),
    };
    let weights = Weights { parameter, master };
    #[cfg(feature = "flex")]
    let (weights, moments) = if is_flex(&device) {
        flex::step(rule, weights, gradient, factors.numbers(), moments)
    } else {
        operations(rule, weights, gradient, &factors, moments)
    };
    #[cfg(not(feature = "flex"))]
    let (weights, moments) = operations(rule, weights, gradient, &factors, moments);
    let file = match &weights.parameter {
        Offloaded::File(file) => Some(file.clone()),
        Offloaded::Memory(_) => None,
    };
    let state = State::new(time + 1, moments.into(), weights.master).with_parameter(file);
    (weights.parameter.into_tensor(&home), Some(state))
}

/// The step as operations of the device.
fn operations<const D: usize, const M: usize>(
    rule: impl Rule<M>,
    weights: Weights<D>,
    gradient: Tensor<D>,
    factors: &Factors,
    moments: [Offloaded<D>; M],
) -> (Weights<D>, [Offloaded<D>; M]) {
    let device = gradient.device();
    let parameter = weights.parameter.into_tensor(&device);
    let moments = moments.map(|moment| moment.into_tensor(&device));
    let Some(master) = weights.master else {
        let gradient = factors.multiply_wide(gradient);
        let (parameter, moments) = rule.update(parameter, gradient, moments);
        let weights = Weights { parameter: Offloaded::Memory(parameter), master: None };
        return (weights, moments.map(Offloaded::Memory));
    };
    let master = master.into_tensor(&device);
    let (dtype, wide) = (parameter.dtype(), master.dtype());
    let changed = master.clone().cast(dtype).not_equal(parameter.clone());
    let master = master.mask_where(changed, parameter.cast(wide));
    let gradient = factors.multiply_wide(cast(gradient, wide));
    let (master, moments) = rule.update(master, gradient, moments);
    let weights = Weights {
        parameter: Offloaded::Memory(master.clone().cast(dtype)),
        master: Some(Offloaded::Memory(master)),
    };
    (weights, moments.map(Offloaded::Memory))
}

/// # Panics
/// In a build without the backend of the CPU.
fn host() -> Device {
    Offload::device().expect("an offload needs the feature `flex`: its steps are on the CPU")
}

/// A gradient with an L2 penalty on its parameter. Without one it keeps its bits.
#[inline(always)]
fn penalized<N: Number>(penalty: f64, parameter: &N, gradient: N) -> N {
    if penalty == 0.0 { gradient } else { parameter.clone().times(penalty) + gradient }
}

/// # Panics
/// If one is not from 0 to less than 1.
fn assert_betas<const N: usize>(betas: [f32; N]) {
    for beta in betas {
        assert!((0.0..1.0).contains(&beta), "{beta} is not from 0 to less than 1");
    }
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod every_rule {
    /// Calls a function with each optimizer, the number of its moments and an argument: a list of the tests that hold for
    /// every rule.
    macro_rules! every_rule {
        ($check:ident($argument:expr)) => {
            [
                $check(AdamWConfig::new().with_weight_decay(0.1).build(), 2, $argument),
                $check(AdamConfig::new().with_weight_decay(0.1).build(), 2, $argument),
                $check(LionConfig::new().build(), 1, $argument),
                $check(SgdConfig::new().with_momentum(0.9).build(), 1, $argument),
                $check(SgdConfig::new().build(), 0, $argument),
            ]
        };
    }
    pub(super) use every_rule;
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
