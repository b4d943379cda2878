//! Attention of some queries to some keys, without a graph, such that the results for several runs of keys can be
//! combined: each has the logarithm of its sum of exponentials (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et
//! al. 2022, arXiv 2205.14135).
//!
//! Queries are `[.., T, F]` and scaled already, keys and values `[.., S, F]`; there is one number per query in `[.., T,
//! 1]`. Scores exist for [`TILE`] queries at a time, `[.., TILE, S]`, in f32 or f64. The backward pass computes them
//! again.

use std::ops::Range;

use burn::tensor::{Bool, DType, Tensor};

/// Queries whose scores are in memory at once.
pub(super) const TILE: usize = 128;

pub(super) fn run<const D: usize>(x: Tensor<D>, tokens: &Range<usize>) -> Tensor<D> {
    if *tokens == (0..x.dims()[D - 2]) {
        return x;
    }
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

/// Casts to the type of the softmax.
pub(super) fn wide<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    match x.dtype() {
        DType::F64 | DType::F32 => x,
        _ => x.cast(DType::F32),
    }
}

/// Some queries, and the keys that they see.
struct Tile {
    queries: Range<usize>,
    keys: Range<usize>,
}

/// Cuts queries into tiles. With `only_past`, queries and keys are of the same tokens, and keys after the last query of
/// a tile are left out.
fn tiles(queries: usize, keys: usize, only_past: bool) -> impl DoubleEndedIterator<Item = Tile> {
    (0..queries.div_ceil(TILE)).map(move |tile| {
        let queries = tile * TILE..((tile + 1) * TILE).min(queries);
        Tile { keys: 0..if only_past { queries.end } else { keys }, queries }
    })
}

/// The scores of queries for keys, which end with those of the last query if there are `only_past`. Those of later
/// tokens are masked.
pub(super) fn scores<const D: usize>(
    queries: Tensor<D>,
    keys: Tensor<D>,
    only_past: bool,
) -> Tensor<D> {
    let scores = wide(queries.matmul(keys.transpose()));
    if !only_past {
        return scores;
    }
    let (shape, device) = (scores.dims(), scores.device());
    let [rows, columns] = [shape[D - 2], shape[D - 1]];
    let before = (columns - rows) as i64;
    let later = Tensor::<2, Bool>::tril_mask([rows, columns], before, &device);
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
    /// Computes the attention of queries to keys; with `only_past`, both are of the same tokens, and each query sees its
    /// own token and those before it.
    pub(super) fn new(
        queries: &Tensor<D>,
        keys: &Tensor<D>,
        values: &Tensor<D>,
        only_past: bool,
    ) -> Self {
        let [t, s] = [queries, keys].map(|x| x.dims()[D - 2]);
        let tile = |Tile { queries: some, keys: seen }| {
            let [keys, values] = [keys, values].map(|x| run(x.clone(), &seen));
            Self::of_scores(scores(run(queries.clone(), &some), keys, only_past), values)
        };
        let found = tiles(t, s, only_past).map(tile);
        let (outputs, log_sums) = found.map(|found| (found.output, found.log_sum)).unzip();
        Self { output: Tensor::cat(outputs, D - 2), log_sum: Tensor::cat(log_sums, D - 2) }
    }

    fn of_scores(scores: Tensor<D>, values: Tensor<D>) -> Self {
        let largest = scores.clone().max_dim(D - 1);
        let weights = (scores - largest.clone()).exp();
        let sum = weights.clone().sum_dim(D - 1);
        let output = weights.cast(values.dtype()).matmul(values);
        Self { output: wide(output) / sum.clone(), log_sum: largest + sum.log() }
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
    log_sum: Tensor<D>,
    /// The inner product of the output and its gradient: `[.., T, 1]`.
    inner: Tensor<D>,
}

impl<const D: usize> Known<D> {
    pub(super) fn new(queries: Tensor<D>, found: Found<D>, gradient: Tensor<D>) -> Self {
        let inner = (wide(gradient.clone()) * found.output).sum_dim(D - 1);
        Self { queries, gradient, log_sum: found.log_sum, inner }
    }

    pub(super) fn run(&self, tokens: &Range<usize>) -> Self {
        let some = |x: &Tensor<D>| run(x.clone(), tokens);
        Self {
            queries: some(&self.queries),
            gradient: some(&self.gradient),
            log_sum: some(&self.log_sum),
            inner: some(&self.inner),
        }
    }

    /// Returns the gradients of queries, keys and values.
    pub(super) fn gradients(
        &self,
        keys: &Tensor<D>,
        values: &Tensor<D>,
        only_past: bool,
    ) -> [Tensor<D>; 3] {
        let [t, s] = [&self.queries, keys].map(|x| x.dims()[D - 2]);
        let mut of_queries = Vec::new();
        let mut others: Option<[Tensor<D>; 2]> = None;
        // The last tile sees all keys.
        for Tile { queries: some, keys: seen } in tiles(t, s, only_past).rev() {
            let [keys, values] = [keys, values].map(|x| run(x.clone(), &seen));
            let [queries, more @ ..] = self.run(&some).of_tile(keys, values, only_past);
            of_queries.push(queries);
            others = Some(match others {
                None => more,
                Some(sums) => {
                    let [of_keys, of_values] = sums;
                    let [keys, values] = more;
                    [added(of_keys, &seen, keys), added(of_values, &seen, values)]
                }
            });
        }
        of_queries.reverse();
        let [of_keys, of_values] = others.expect("there is a query");
        [Tensor::cat(of_queries, D - 2), of_keys, of_values]
    }

    fn of_tile(self, keys: Tensor<D>, values: Tensor<D>, only_past: bool) -> [Tensor<D>; 3] {
        let dtype = keys.dtype();
        let scores = scores(self.queries.clone(), keys.clone(), only_past);
        let weights = (scores - self.log_sum).exp();
        let of_values = weights.clone().cast(dtype).transpose().matmul(self.gradient.clone());
        let of_weights = wide(self.gradient.matmul(values.transpose()));
        let of_scores = (weights * (of_weights - self.inner)).cast(dtype);
        [of_scores.clone().matmul(keys), of_scores.transpose().matmul(self.queries), of_values]
    }
}

/// Adds to a sum for some tokens.
pub(super) fn added<const D: usize>(
    sum: Tensor<D>,
    tokens: &Range<usize>,
    more: Tensor<D>,
) -> Tensor<D> {
    let more = run(sum.clone(), tokens) + more;
    with_run(sum, tokens, more)
}
