//! Attention of some queries to some keys, without a graph, such that the results for several runs of keys can be
//! combined: each has the logarithm of its sum of exponentials (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et
//! al. 2022, arXiv 2205.14135).
//!
//! Queries are `[.., T, F]` and scaled already, keys and values `[.., S, F]`, scores `[.., T, S]`; there is one number
//! per query in `[.., T, 1]`.

use std::ops::Range;

use burn::tensor::{Bool, Tensor};

pub(super) fn run<const D: usize>(x: Tensor<D>, tokens: &Range<usize>) -> Tensor<D> {
    x.narrow(D - 2, tokens.start, tokens.len())
}

pub(super) fn with_run<const D: usize>(
    x: Tensor<D>,
    tokens: &Range<usize>,
    values: Tensor<D>,
) -> Tensor<D> {
    let mut places = x.dims().map(|size| 0..size);
    if places[D - 2] == *tokens {
        return values;
    }
    places[D - 2] = tokens.clone();
    x.slice_assign(places, values)
}

/// The scores of queries for keys. With `only_past`, both are of the same tokens, and later ones are masked.
pub(super) fn scores<const D: usize>(
    queries: Tensor<D>,
    keys: Tensor<D>,
    only_past: bool,
) -> Tensor<D> {
    let scores = queries.matmul(keys.transpose());
    if !only_past {
        return scores;
    }
    let (shape, device) = (scores.dims(), scores.device());
    let later = Tensor::<2, Bool>::tril_mask([shape[D - 2], shape[D - 1]], 0, &device);
    scores.mask_fill(later.unsqueeze::<D>().expand(shape), f32::NEG_INFINITY)
}

#[derive(Clone, Debug)]
pub(super) struct Found<const D: usize> {
    /// The mean of the values, weighted with the exponentials of the scores: `[.., T, F]`.
    pub(super) output: Tensor<D>,
    /// The logarithm of the sum of the weights: `[.., T, 1]`.
    pub(super) log_sum: Tensor<D>,
}

impl<const D: usize> Found<D> {
    pub(super) fn new(scores: Tensor<D>, values: Tensor<D>) -> Self {
        let largest = scores.clone().max_dim(D - 1);
        let weights = (scores - largest.clone()).exp();
        let sum = weights.clone().sum_dim(D - 1);
        Self { output: weights.matmul(values) / sum.clone(), log_sum: largest + sum.log() }
    }

    /// Combines it with the attention of some of the queries to other keys.
    pub(super) fn and(self, queries: &Range<usize>, more: Self) -> Self {
        let [output, log_sum] = [&self.output, &self.log_sum].map(|x| run(x.clone(), queries));
        let largest = log_sum.clone().max_pair(more.log_sum.clone());
        let own = (log_sum - largest.clone()).exp();
        let other = (more.log_sum - largest.clone()).exp();
        let sum = own.clone() + other.clone();
        let output = (output * own + more.output * other) / sum.clone();
        Self {
            output: with_run(self.output, queries, output),
            log_sum: with_run(self.log_sum, queries, largest + sum.log()),
        }
    }
}

/// The values of queries that the backward pass needs from the forward pass.
#[derive(Clone)]
pub(super) struct Known<const D: usize> {
    pub(super) queries: Tensor<D>,
    pub(super) gradient: Tensor<D>,
    /// The log sum of [`Found`], for all keys.
    pub(super) log_sum: Tensor<D>,
    /// The inner product of the output and its gradient: `[.., T, 1]`.
    pub(super) inner: Tensor<D>,
}

impl<const D: usize> Known<D> {
    pub(super) fn run(&self, tokens: &Range<usize>) -> Self {
        let some = |x: &Tensor<D>| run(x.clone(), tokens);
        Self {
            queries: some(&self.queries),
            gradient: some(&self.gradient),
            log_sum: some(&self.log_sum),
            inner: some(&self.inner),
        }
    }

    pub(super) fn gradients(
        self,
        keys: Tensor<D>,
        values: Tensor<D>,
        only_past: bool,
    ) -> [Tensor<D>; 3] {
        let scores = scores(self.queries.clone(), keys.clone(), only_past);
        let weights = (scores - self.log_sum).exp();
        let of_values = weights.clone().transpose().matmul(self.gradient.clone());
        let of_scores = weights * (self.gradient.matmul(values.transpose()) - self.inner);
        [of_scores.clone().matmul(keys), of_scores.transpose().matmul(self.queries), of_values]
    }
}
