//! What a forward pass returns.

use burn::Tensor;

use crate::error::BoxError;

/// The loss of one batch, and how much it counts.
#[derive(Clone, Debug)]
pub struct Loss {
    pub(crate) tensor: Tensor<1>,
    pub(crate) weight: Weight,
}

/// How much a batch counts in the mean over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// As much as every other batch.
    Equal,
    /// As much as it has samples.
    Samples(usize),
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
        Ok(Loss {
            tensor: self,
            weight: Weight::Equal,
        })
    }
}

impl<L: IntoLoss, E: Into<BoxError>> IntoLoss for Result<L, E> {
    fn into_loss(self) -> Result<Loss, BoxError> {
        self.map_err(Into::into)?.into_loss()
    }
}
