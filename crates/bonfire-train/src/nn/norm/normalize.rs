//! Normalising a batch with the statistics of all ranks' batches, forwards and backwards.
//!
//! With xhat = (x - mean) / sqrt(variance + epsilon) over m values of all ranks, and g the gradient of
//! xhat, the gradient of x is (g - sum(g) / m - xhat sum(g xhat) / m) / sqrt(variance + epsilon), where
//! the sums are over all ranks (Ioffe and Szegedy 2015, section 3).
//!
//! Inputs have the shape `[batch, features, positions]`. Sums over a rank's own values are computed in
//! f32, or f64 for such inputs, those over ranks in f64.

use burn::tensor::{DType, Tensor};

use crate::custom_gradient;
use crate::world::exchange::group::NormGroup;
use crate::world::exchange::{REPLY_HEAD, backward_head, forward_head};

/// The statistics of all ranks' batches. Tensors have shape `[features]` or `[1]`, the same bits on every rank, and no
/// autodiff.
#[derive(Clone, Debug)]
pub(crate) struct GlobalMoments {
    /// One over the number of values of a feature; 0 without any.
    inverse_count: Tensor<1>,
    /// 1, or 0 if no rank has a value.
    pub(crate) seen: Tensor<1>,
    pub(crate) mean: Tensor<1>,
    /// The biased variance, as Burn has it.
    pub(crate) variance: Tensor<1>,
}

impl GlobalMoments {
    /// The statistics of this rank's batch `x` and those of the others.
    ///
    /// # Panics
    /// If the exchange fails.
    pub(crate) fn of(x: Tensor<3>, exchange: &NormGroup) -> Self {
        let [batch, features, positions] = x.dims();
        let count = batch * positions;
        let x = wide(x.without_autodiff());
        let (mean, squares) = if count == 0 {
            let none = Tensor::zeros([features], (&x.device(), x.dtype()));
            (none.clone(), none)
        } else {
            let rows = rows(x.clone());
            let mean = rows.clone().mean_dim(1);
            let squares = (rows - mean.clone()).square().sum_dim(1);
            (mean.reshape([features]), squares.reshape([features]))
        };
        let head = Tensor::<1>::from_data(forward_head(count), (&x.device(), x.dtype()));
        let reply = exchange.exchange(Tensor::cat(vec![head, mean, squares], 0));
        let expected = REPLY_HEAD + 2 * features;
        assert_eq!(reply.dims(), [expected], "the exchange has failed before");
        Self {
            inverse_count: reply.clone().narrow(0, 0, 1),
            seen: reply.clone().narrow(0, 1, 1),
            mean: reply.clone().narrow(0, REPLY_HEAD, features),
            variance: reply.narrow(0, REPLY_HEAD + features, features),
        }
    }
}

pub(crate) fn normalized(
    x: Tensor<3>,
    global: &GlobalMoments,
    epsilon: f64,
    exchange: &NormGroup,
) -> Tensor<3> {
    let dtype = x.dtype();
    let scale = global.variance.clone().add_scalar(epsilon).sqrt().recip();
    let centred = wide(x.clone().without_autodiff()) - broad(global.mean.clone());
    let normalized = centred * broad(scale.clone());
    let operation = Normalize {
        normalized: normalized.clone(),
        scale,
        inverse_count: global.inverse_count.clone(),
        exchange: exchange.clone(),
        dtype,
    };
    // Every rank takes part in the backward pass, whether or not its input wants a gradient there.
    custom_gradient(x, |_| normalized.cast(dtype), move |gradient| operation.gradient(gradient))
}

#[derive(Debug)]
struct Normalize {
    normalized: Tensor<3>,
    /// One over the standard deviation.
    scale: Tensor<1>,
    inverse_count: Tensor<1>,
    exchange: NormGroup,
    dtype: DType,
}

impl Normalize {
    fn gradient(self, gradient: Tensor<3>) -> Tensor<3> {
        let [batch, features, positions] = gradient.dims();
        let gradient = wide(gradient);
        let sums = if batch * positions == 0 {
            Tensor::zeros([2 * features], (&gradient.device(), gradient.dtype()))
        } else {
            let products = gradient.clone() * self.normalized.clone();
            let sum = |x| rows(x).sum_dim(1).reshape([features]);
            Tensor::cat(vec![sum(gradient.clone()), sum(products)], 0)
        };
        let options = (&sums.device(), sums.dtype());
        let head = Tensor::<1>::from_data(backward_head(), options);
        let sums = self.exchange.exchange(Tensor::cat(vec![head, sums], 0));
        if sums.dims() != [2 * features] {
            // The exchange failed; that is kept for the end of the step, which returns it.
            return gradient.zeros_like().cast(self.dtype);
        }
        let means = sums * self.inverse_count;
        let mean = broad(means.clone().narrow(0, 0, features));
        let projection = self.normalized * broad(means.narrow(0, features, features));
        ((gradient - mean - projection) * broad(self.scale)).cast(self.dtype)
    }
}

/// Casts to a type in which sums may be computed.
fn wide(x: Tensor<3>) -> Tensor<3> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.cast(DType::F32),
        _ => x,
    }
}

fn rows(x: Tensor<3>) -> Tensor<2> {
    let [batch, features, positions] = x.dims();
    x.swap_dims(0, 1).reshape([features, batch * positions])
}

/// Broadcasts one value per feature to all samples and positions.
fn broad(values: Tensor<1>) -> Tensor<3> {
    let [features] = values.dims();
    values.reshape([1, features, 1])
}
