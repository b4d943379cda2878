//! What a forward pass returns.

pub(crate) mod precision;
pub(crate) mod weights;

use bonfire_collective::{ProcessGroup, Rank};
use burn::Tensor;

use crate::TrainError;
use crate::error::BoxError;

/// The loss of one batch, and how much it counts.
#[derive(Clone, Debug)]
pub struct Loss {
    pub(crate) tensor: Tensor<1>,
    pub(crate) weight: Weight,
}

/// How much a batch counts in the mean over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// As much as every other batch.
    Equal,
    /// As much as it has samples.
    Samples(usize),
}

impl Weight {
    /// As a number, in a sum over batches.
    pub fn count(self) -> usize {
        match self {
            Self::Equal => 1,
            Self::Samples(samples) => samples,
        }
    }
}

impl Loss {
    /// The mean loss over `samples` samples. The gradient of the step is then the mean over the
    /// samples of all ranks, however unevenly they are spread; a rank without samples counts
    /// nothing. If one rank weights its loss, all must.
    pub fn mean_over(tensor: Tensor<1>, samples: usize) -> Self {
        Self {
            tensor,
            weight: Weight::Samples(samples),
        }
    }
}

impl From<Tensor<1>> for Loss {
    /// A loss that counts as much as those of the other ranks.
    fn from(tensor: Tensor<1>) -> Self {
        Self {
            tensor,
            weight: Weight::Equal,
        }
    }
}

/// What a forward pass may return: a loss, a weighted [`Loss`], or either in a `Result`.
pub trait IntoLoss {
    /// The loss, or why there is none.
    ///
    /// # Errors
    /// The error of the forward pass.
    fn into_loss(self) -> Result<Loss, Box<dyn std::error::Error + Send + Sync>>;
}

impl IntoLoss for Loss {
    fn into_loss(self) -> Result<Loss, BoxError> {
        Ok(self)
    }
}

impl IntoLoss for Tensor<1> {
    fn into_loss(self) -> Result<Loss, BoxError> {
        Ok(self.into())
    }
}

impl<L: IntoLoss, E: Into<BoxError>> IntoLoss for Result<L, E> {
    fn into_loss(self) -> Result<Loss, BoxError> {
        self.map_err(Into::into)?.into_loss()
    }
}

/// The mean of the losses of all ranks. Every rank must call it.
#[track_caller]
pub(crate) fn global_loss(
    own: Option<Tensor<1>>,
    weight: Weight,
    group: &ProcessGroup,
) -> Result<f64, TrainError> {
    let samples = weight.count() as f64;
    // A rank without a sample has no loss: what it computed, often NaN, counts nothing.
    let own = match own {
        Some(loss) if samples > 0.0 => {
            // The other ranks are not to wait for a loss that cannot be read.
            let loss = read(loss).inspect_err(|error| group.abort(&error.to_string()))?;
            [loss, samples]
        }
        _ => [0.0, 0.0],
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

/// The number in a loss. It waits for the device.
///
/// # Errors
/// [`TrainError::UnreadableTensor`].
pub fn read(loss: Tensor<1>) -> Result<f64, TrainError> {
    let data = loss.try_into_data();
    let data = data.map_err(|cause| TrainError::UnreadableTensor {
        what: "the loss".to_owned(),
        cause: format!("{cause:?}"),
    })?;
    Ok(data.iter::<f64>().next().unwrap_or(f64::NAN))
}
