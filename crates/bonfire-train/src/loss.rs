//! The result of a forward pass.

pub(crate) mod precision;
pub(crate) mod weights;

use bonfire_collective::{ProcessGroup, Rank};
use bonfire_optim::{cast, wide};
use burn::Tensor;

use crate::TrainError;
use crate::error::BoxError;

/// The loss of one batch, and its weight.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The loss without the factor.
    tensor: Tensor<1>,
    weight: Weight,
    /// The factor of the loss in the backward pass. Reported figures are without it.
    factor: f64,
}

/// The weight of a batch in the mean over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Equal,
    Samples(usize),
}

impl Weight {
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Equal => 1,
            Self::Samples(samples) => samples,
        }
    }
}

impl Loss {
    /// Weights a mean loss over `samples` samples. The gradient of the step is then the mean over the samples of all
    /// ranks, however unevenly they are spread; a rank without samples has no weight. If one rank weights its loss,
    /// all must.
    pub fn mean_over(tensor: Tensor<1>, samples: usize) -> Self {
        Self { tensor, weight: Weight::Samples(samples), factor: 1.0 }
    }

    /// Weights it by `samples` samples unless it has a weight: for trainers, which know the size of a batch.
    #[doc(hidden)]
    #[must_use]
    pub fn or_mean_over(self, samples: usize) -> Self {
        match self.weight {
            Weight::Equal => Self { weight: Weight::Samples(samples), ..self },
            Weight::Samples(_) => self,
        }
    }

    /// Returns the loss of this rank's batch, without waiting for the device and without the scale of a
    /// [`LossScaler`](crate::LossScaler).
    pub fn tensor(&self) -> Tensor<1> {
        self.tensor.clone()
    }

    /// Returns its factor in the backward pass: 1, or the scale of a [`LossScaler`](crate::LossScaler).
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Returns its weight: the samples of [`mean_over`](Self::mean_over), else 1.
    pub fn count(&self) -> usize {
        self.weight.count()
    }

    /// Reads the number. It waits for the device.
    ///
    /// # Errors
    /// [`TrainError::UnreadableTensor`].
    pub fn value(&self) -> Result<f64, TrainError> {
        let data = self.tensor().try_into_data();
        let data = data.map_err(TrainError::unreadable("the loss"))?;
        Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
    }

    /// Returns the mean of all ranks' losses, over samples where they are weighted with
    /// [`mean_over`](Self::mean_over): the same bits on every rank. Every rank must call it, with its
    /// [`World`](crate::World). It waits for the device; a program that wants to stop at a loss that is not finite
    /// calls it in every step.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteLoss`] on all ranks, naming those whose loss is infinite or NaN;
    /// [`TrainError::NoSamples`] if no rank had any; [`TrainError::Collective`].
    #[track_caller]
    pub fn over_ranks(&self, world: &impl AsRef<ProcessGroup>) -> Result<f64, TrainError> {
        let group = world.as_ref();
        let samples = self.count() as f64;
        // A rank without a sample has no loss: what it computed, often NaN, counts nothing.
        let own = if samples > 0.0 {
            // The other ranks are not to wait for a loss that cannot be read.
            [group.or_abort(self.value())?, samples]
        } else {
            [0.0, 0.0]
        };
        let all: Vec<f64> = group.all_gather(&own)?;
        let losses: Vec<(Rank, f64)> = (0..)
            .map(Rank::new)
            .zip(all.chunks_exact(2).map(|pair| pair[0]))
            .filter(|(_, loss)| !loss.is_finite())
            .collect();
        if !losses.is_empty() {
            return Err(TrainError::NonFiniteLoss { losses });
        }
        let pairs = || all.chunks_exact(2);
        let samples: f64 = pairs().map(|pair| pair[1]).sum();
        if samples <= 0.0 {
            return Err(TrainError::NoSamples);
        }
        Ok(pairs().map(|pair| pair[0] * pair[1]).sum::<f64>() / samples)
    }

    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    pub(crate) fn scaled(mut self, factor: f64) -> Self {
        self.factor *= factor;
        self
    }

    /// The start of a backward pass, and the loss that is reported.
    ///
    /// # Errors
    /// [`TrainError::LossShape`] if it is not one number.
    pub(crate) fn split(self) -> Result<(Tensor<1>, Self), TrainError> {
        let [elements] = self.tensor.dims();
        if elements != 1 {
            return Err(TrainError::LossShape { elements });
        }
        let told = Self { tensor: self.tensor.clone().without_autodiff(), ..self };
        let start = match self.factor {
            1.0 => self.tensor,
            // A loss of 16 bits times a scale would be infinite.
            factor => {
                let dtype = wide(self.tensor.dtype());
                cast(self.tensor, dtype).mul_scalar(factor)
            }
        };
        Ok((start, told))
    }
}

impl From<Tensor<1>> for Loss {
    /// A loss with the same weight as those of the other ranks.
    fn from(tensor: Tensor<1>) -> Self {
        Self { tensor, weight: Weight::Equal, factor: 1.0 }
    }
}

/// A type that a forward pass may return: a loss, a weighted [`Loss`], either of them with the program's own output,
/// such as the scores of the batch, or any of these in a `Result`.
pub trait IntoLoss {
    /// The output beside the loss.
    type Output;

    /// Converts it into the loss and the output beside it.
    ///
    /// # Errors
    /// The error of the forward pass.
    fn into_loss(self) -> Result<(Loss, Self::Output), Box<dyn std::error::Error + Send + Sync>>;
}

impl IntoLoss for Loss {
    type Output = ();

    fn into_loss(self) -> Result<(Loss, ()), BoxError> {
        Ok((self, ()))
    }
}

impl IntoLoss for Tensor<1> {
    type Output = ();

    fn into_loss(self) -> Result<(Loss, ()), BoxError> {
        Ok((self.into(), ()))
    }
}

impl<L: Into<Loss>, T> IntoLoss for (L, T) {
    type Output = T;

    fn into_loss(self) -> Result<(Loss, T), BoxError> {
        Ok((self.0.into(), self.1))
    }
}

impl<L: IntoLoss, E: Into<BoxError>> IntoLoss for Result<L, E> {
    type Output = L::Output;

    fn into_loss(self) -> Result<(Loss, L::Output), BoxError> {
        self.map_err(Into::into)?.into_loss()
    }
}
