//! Attention within the sequences of a batch, as one operation of the graph.

#[cfg(test)]
mod tests;

use std::fmt;

use bonfire_train::custom_gradient;
use burn::tensor::{Tensor, activation};

use super::block::{Found, Known, scores};

/// Tokens up to which the softmax is kept: then that is faster, by a sixth with 64 to 256 tokens.
const SHORT: usize = 256;

/// The tokens to which a token attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttentionMask {
    /// All tokens of its sequence.
    All,
    /// The token itself and those before it.
    Causal,
}

impl fmt::Display for AttentionMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all tokens",
            Self::Causal => "past tokens",
        })
    }
}

/// Computes the attention of tokens to those of their sequence: `softmax(query * key^T / sqrt(F)) * value`.
///
/// `packed` has the queries, the keys and the values one behind the other along its first dimension: `[3 N, .., T,
/// F]`, N sequences or heads of `T` tokens with `F` features each. The output is `[N, .., T, F]`. Packed, they have
/// one gradient, without concatenation or addition; flash-attn's `qkvpacked` has the same reason.
///
/// In sequences of more than 256 tokens it never has all `N T²` scores: they are computed for 128 tokens at a time, in
/// f32 or f64, and again in the backward pass, for which it keeps `packed`, the output and one number per token. With
/// [`AttentionMask::Causal`] the scores of later tokens are left out. Of shorter ones it keeps the softmax.
///
/// Where ranks have different tokens of the same sequences, it is [`ring_attention`](crate::ring_attention).
///
/// ```
/// # mod bonfire { pub mod nn { pub use bonfire_parallel::*; } }
/// # use burn::tensor::Tensor;
/// use bonfire::nn::{AttentionMask, self_attention};
///
/// /// The queries, keys and values of `heads`, from one product, `[B, T, 3 C]`; the output is `[B, T, C]`.
/// fn attend(projected: Tensor<3>, heads: usize) -> Tensor<3> {
///     let [b, t, width] = projected.dims();
///     let features = width / 3 / heads;
///     let packed = projected.reshape([b, t, 3, heads, features]).permute([2, 0, 3, 1, 4]);
///     let seen = self_attention(packed.reshape([3 * b * heads, t, features]), AttentionMask::Causal);
///     seen.reshape([b, heads, t, features]).swap_dims(1, 2).reshape([b, t, width / 3])
/// }
/// ```
///
/// # Panics
/// If the first dimension is not a multiple of 3.
#[must_use]
pub fn self_attention<const D: usize>(packed: Tensor<D>, attend: AttentionMask) -> Tensor<D> {
    const { assert!(D >= 3, "queries, keys and values; tokens; features") };
    let [first, features] = [packed.dims()[0], packed.dims()[D - 1]];
    assert!(
        first.is_multiple_of(3),
        "{first} is not a number of queries, and as many keys and values"
    );
    let (constant, scale) = (packed.clone().without_autodiff(), (features as f64).sqrt());
    let parts = move || {
        let part = |i| constant.clone().narrow(0, i * (first / 3), first / 3);
        // Scaling the queries touches T F numbers where scaling the scores would touch T².
        [part(0).div_scalar(scale), part(1), part(2)]
    };
    let (dtype, only_past) = (packed.dtype(), attend == AttentionMask::Causal);
    let [queries, keys, values] = parts();
    if queries.dims()[D - 2] <= SHORT {
        let weights = activation::softmax(scores(queries.clone(), keys.clone(), only_past), D - 1);
        let weights = weights.cast(dtype);
        let output = weights.clone().matmul(values.clone());
        let kept = output.clone();
        let backward = move |gradient: Tensor<D>| {
            let inner = (gradient.clone() * kept).sum_dim(D - 1);
            let of_values = weights.clone().transpose().matmul(gradient.clone());
            let of_scores = (gradient.matmul(values.transpose()) - inner) * weights;
            let of_queries = of_scores.clone().matmul(keys).div_scalar(scale);
            Tensor::cat(vec![of_queries, of_scores.transpose().matmul(queries), of_values], 0)
        };
        return custom_gradient(packed, |_| output, backward);
    }
    let found = Found::new(&queries, &keys, &values, only_past);
    let output = found.output.clone().cast(dtype);
    let backward = move |gradient: Tensor<D>| {
        let [queries, keys, values] = parts();
        let known = Known::new(queries, found, gradient);
        let [of_queries, of_keys, of_values] = known.gradients(&keys, &values, only_past);
        Tensor::cat(vec![of_queries.div_scalar(scale), of_keys, of_values], 0)
    };
    custom_gradient(packed, |_| output, backward)
}
