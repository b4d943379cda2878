//! The batch normalisation layer and its configuration.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};

use super::RunningStatistic;
use super::convert::convert_sync_batch_norm_in;
#[cfg(feature = "flex")]
use super::flex;
use super::normalize::{GlobalMoments, normalized};
use crate::world::exchange::group::NormGroup;

/// Configuration of a [`BatchNorm`]; the options and defaults of Burn's.
#[derive(Config, Debug)]
pub struct BatchNormConfig {
    /// The number of features, at least one: the second dimension of the input.
    pub num_features: usize,
    /// Added to the variance. Positive. Default 1e-5.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The share of the running statistics that a batch replaces, from 0 to 1. Default 0.1.
    #[config(default = 0.1)]
    pub momentum: f64,
}

impl BatchNormConfig {
    /// Makes a layer that normalises each rank's batch by itself.
    ///
    /// # Panics
    /// If an option is out of its range.
    pub fn init(&self, device: &Device) -> BatchNorm {
        assert!(self.num_features > 0, "a batch norm has at least one feature");
        let (epsilon, momentum) = (self.epsilon, self.momentum);
        assert!(
            epsilon.is_finite() && epsilon > 0.0,
            "epsilon must be finite and positive, got {epsilon}"
        );
        assert!((0.0..=1.0).contains(&momentum), "momentum must be from 0 to 1, got {momentum}");
        let shape = [self.num_features];
        BatchNorm {
            gamma: Initializer::Ones.init(shape, device),
            beta: Initializer::Zeros.init(shape, device),
            training: Param::from_bool(true),
            running_mean: RunningStatistic::new(Tensor::zeros(shape, device)),
            running_var: RunningStatistic::new(Tensor::ones(shape, device)),
            momentum,
            epsilon,
        }
    }

    /// Makes a layer that normalises the batches of all ranks of `group` together, as
    /// [`convert_sync_batch_norm`](crate::convert_sync_batch_norm) does.
    ///
    /// # Panics
    /// If an option is out of its range.
    pub fn init_synchronized(&self, device: &Device, group: &NormGroup) -> BatchNorm {
        convert_sync_batch_norm_in(self.init(device), group)
            .expect("a batch norm of this crate can be converted")
    }
}

/// Normalises each feature of a batch to mean 0 and variance 1 (Ioffe and Szegedy 2015), then scales
/// by `gamma` and shifts by `beta`. Inputs have the shape `[batch, features, ...]`.
///
/// The same layer as `burn::nn::BatchNorm`, with the same parameters under the same names, so that
/// records of either load into the other. Two things differ: its statistics may be those of the
/// batches of all ranks ([`convert_sync_batch_norm`](crate::convert_sync_batch_norm)), and its running
/// statistics belong to one replica ([`RunningStatistic`]).
///
/// On a device with autodiff, and unless it is frozen, the layer normalises with the statistics of the batch and
/// updates the running ones by `momentum`, the variance being the biased one as in Burn (PyTorch keeps the unbiased
/// one). Otherwise it normalises with the running statistics, and never communicates.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BatchNorm {
    /// The scale of each feature, `[features]`.
    pub gamma: Param<Tensor<1>>,
    /// The shift of each feature, `[features]`.
    pub beta: Param<Tensor<1>>,
    /// False while the layer is frozen.
    pub training: Param<Flag>,
    /// The running mean of each feature, `[features]`.
    pub running_mean: RunningStatistic,
    /// The running biased variance, `[features]`.
    pub running_var: RunningStatistic,
    /// The share of the running statistics that a batch replaces.
    pub momentum: f64,
    /// Added to the variance of a feature.
    pub epsilon: f64,
}

impl BatchNorm {
    /// Applies the layer to an input of shape `[batch, features, ...]`; the output has the same shape.
    ///
    /// In training a synchronised layer waits for the same layer on the other ranks of its group. A
    /// rank's batch may have any size there, also none.
    ///
    /// # Panics
    /// If the input has fewer than two dimensions or another number of features; in training, if it has one value
    /// for each feature and no other rank has more, as PyTorch refuses it; if another rank
    /// failed or is at another layer. [`Ddp`](crate::Ddp) returns the latter as an error.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [features] = self.gamma.dims();
        assert!(D >= 2, "the input of a batch norm has two dimensions or more, not {D}");
        assert_eq!(input.dims()[1], features, "features of the input and of the layer");
        if !(input.device().is_autodiff() && self.training.is_enabled()) {
            return self.forward_evaluation(input);
        }
        let values: usize = input.dims().iter().product::<usize>() / features;
        assert!(
            values != 1 || self.synchronized_ranks() > Some(1),
            "a batch norm in training got one value for each of its {features} features, which are constants once \
             they are normalised; give it more samples, leave out a last batch of one sample, or freeze it"
        );
        match self.running_mean.exchange() {
            None => self.forward_alone(input),
            Some(exchange) => self.forward_together(input, exchange),
        }
    }

    /// Returns the number of ranks whose batches are normalised together, or `None` if each is by itself.
    pub fn synchronized_ranks(&self) -> Option<usize> {
        self.running_mean.exchange().map(NormGroup::ranks)
    }

    fn forward_evaluation<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let device = input.device().without_autodiff();
        burn::tensor::module::batch_norm(
            input,
            self.gamma.val(),
            self.beta.val(),
            self.running_mean.value().to_device(&device),
            self.running_var.value().to_device(&device),
            self.epsilon,
        )
    }

    fn forward_alone<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        #[cfg(feature = "flex")]
        if flex::has(&input, &gamma, &beta) {
            let batch = flex::batch_norm(input, gamma, beta, self.epsilon);
            self.learn(batch.mean, batch.variance);
            return batch.output;
        }
        let batch = burn::tensor::module::batch_norm_train(input, gamma, beta, self.epsilon);
        self.learn(batch.mean, batch.variance);
        batch.output
    }

    fn learn(&self, mean: Tensor<1>, variance: Tensor<1>) {
        self.running_mean.update(self.moved(&self.running_mean, mean));
        self.running_var.update(self.moved(&self.running_var, variance));
    }

    fn forward_together<const D: usize>(
        &self,
        input: Tensor<D>,
        exchange: &NormGroup,
    ) -> Tensor<D> {
        let dims = input.dims();
        let [batch, features] = [dims[0], dims[1]];
        let input = input.reshape([batch, features, dims[2..].iter().product()]);
        let exchanged = || GlobalMoments::of(input.clone(), exchange);
        let global = self.running_mean.moments(exchanged);
        let normalized = normalized(input, &global, self.epsilon, exchange);
        for (running, value) in
            [(&self.running_mean, &global.mean), (&self.running_var, &global.variance)]
        {
            let old = running.value();
            let new = self.moved(running, value.clone());
            // Without a single value there is nothing to learn from.
            let nothing = global.seen.clone().equal_scalar(0.0).expand([features]);
            running.update(new.mask_where(nothing, old));
        }
        let shape = [1, features, 1];
        let output = normalized * self.gamma.val().reshape(shape) + self.beta.val().reshape(shape);
        output.reshape(dims)
    }

    fn moved(&self, running: &RunningStatistic, value: Tensor<1>) -> Tensor<1> {
        let old = running.value();
        let value = value.without_autodiff().to_device(&old.device()).cast(old.dtype());
        old.mul_scalar(1.0 - self.momentum) + value.mul_scalar(self.momentum)
    }
}

impl ModuleDisplay for BatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [features] = self.beta.shape().dims();
        let content = content
            .add("num_features", &features)
            .add("momentum", &self.momentum)
            .add("epsilon", &self.epsilon);
        let content = match self.synchronized_ranks() {
            Some(ranks) => content.add("synchronized_ranks", &ranks),
            None => content,
        };
        if self.training.is_enabled() {
            content.optional()
        } else {
            content.add("training", &self.training).optional()
        }
    }
}
