//! Attention to the tokens of all ranks.

use std::ops::Range;

use bonfire_collective::{Rank, WorldSize};
use bonfire_train::{Arrival, Transfer, World, custom_gradient};
use burn::tensor::{DType, Tensor};

use super::attention::AttentionMask;
use super::block::{Found, Known, added, run, wide};
use crate::ParallelError;
use crate::ops::sendable;

/// Computes the attention of this rank's tokens to those of all ranks of `cp`: `softmax(query * key^T / sqrt(F)) *
/// value`, of three tensors of one shape `[.., T, F]`, `T` tokens of this rank with `F` features each, and as many on
/// every rank. With [`AttentionMask::Causal`] ranks have the tokens of [`zigzag_split`](crate::zigzag_split).
///
/// Keys and values are sent in the background while the rank computes with its present block. It holds two blocks of
/// them, and scores of its own tokens with those of one other rank. It is computed in f32, or f64 for such tensors.
///
/// Each rank has its own order of sums, the same in every run. All ranks of `cp` must call it in the same order, and
/// run the same backward pass. A failure there gives zeros and is kept: see [`World::fail`].
///
/// ```
/// # mod bonfire { pub use bonfire_train::World; pub use bonfire_parallel as parallel; pub use bonfire_parallel as nn; }
/// use bonfire::World;
/// use bonfire::nn::AttentionMask;
/// use bonfire::parallel::{ParallelError, ring_attention, zigzag_split};
/// use burn::nn::Linear;
/// use burn::tensor::Tensor;
///
/// /// One head, on this rank's tokens of a batch `[batch, length, features]` that all ranks have.
/// fn attend(layers: [&Linear; 3], batch: Tensor<3>, cp: &World) -> Result<Tensor<3>, ParallelError> {
///     let own = zigzag_split(batch, 1, cp)?;
///     let [query, key, value] = layers.map(|layer| layer.forward(own.clone()));
///     ring_attention(query, key, value, AttentionMask::Causal, cp)
/// }
/// ```
///
/// # Errors
/// [`ParallelError::OtherShape`] on all ranks if shapes, types or `attend` differ; [`ParallelError::Odd`] if a rank
/// has an odd number of tokens under a causal mask; [`ParallelError::Collective`] if a rank fails;
/// [`ParallelError::Unreadable`].
///
/// # Panics
/// If the tensors of this rank have different shapes.
#[track_caller]
pub fn ring_attention<const D: usize>(
    query: Tensor<D>,
    key: Tensor<D>,
    value: Tensor<D>,
    attend: AttentionMask,
    cp: &World,
) -> Result<Tensor<D>, ParallelError> {
    const { assert!(D >= 2, "tokens and their features") };
    let shapes = [&query, &key, &value].map(Tensor::dims);
    assert_eq!(shapes, [shapes[0]; 3], "shapes of query, key and value");
    let ring = Ring { cp: cp.clone(), attend, shape: shapes[0], dtype: query.dtype() };
    ring.agree()?;
    // One tensor, so that there is one operation with one gradient.
    let all = Tensor::cat(vec![query, key, value], 0);
    let constant = all.clone().without_autodiff();
    let found = ring.forward(&constant)?;
    let output = found.output.clone().cast(ring.dtype);
    let (dims, cp) = (all.dims(), cp.clone());
    let backward = move |gradient: Tensor<D>| {
        let options = (gradient.device(), gradient.dtype());
        let gradients = ring.backward(&constant, found, gradient);
        gradients.unwrap_or_else(|error| {
            cp.fail(error);
            Tensor::zeros(dims, (&options.0, options.1))
        })
    };
    Ok(custom_gradient(all, |_| output, backward))
}

/// The ranks with the tokens of a sequence, and their tensors.
struct Ring<const D: usize> {
    cp: World,
    attend: AttentionMask,
    shape: [usize; D],
    dtype: DType,
}

/// The queries of this rank that see keys of a block, and those keys.
struct Sight {
    queries: Range<usize>,
    keys: Range<usize>,
    /// True if queries attend only to earlier tokens: the block is this rank's own.
    only_past: bool,
}

impl<const D: usize> Ring<D> {
    /// Checks that all ranks have tensors of one shape and type.
    #[track_caller]
    fn agree(&self) -> Result<(), ParallelError> {
        let ranks = self.cp.world_size();
        if ranks == WorldSize::ONE {
            return Ok(());
        }
        let own = format!("{:?} {:?} to {}", self.dtype, self.shape, self.attend);
        let all = self.cp.group().all_gather_bytes(own.as_bytes())?;
        let mut others = ranks.ranks().zip(&all);
        if let Some((rank, found)) = others.find(|(_, found)| **found != all[0]) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return Err(ParallelError::OtherShape {
                rank,
                found: text(found),
                expected: text(&all[0]),
            });
        }
        let tokens = self.shape[D - 2];
        if self.attend == AttentionMask::Causal && !tokens.is_multiple_of(2) {
            return Err(ParallelError::Odd {
                dim: D - 2,
                length: tokens * ranks.len(),
                ranks,
                chunks: 2 * ranks.len(),
            });
        }
        Ok(())
    }

    /// The output in the type of the computation, with the values that its gradient needs.
    fn forward(&self, all: &Tensor<D>) -> Result<Found<D>, ParallelError> {
        let queries = self.queries(all);
        let mut block = self.keys_and_values(all);
        let mut found: Option<Found<D>> = None;
        for source in self.sources() {
            let next = self.next(&block, source)?;
            let sight = self.sight(source);
            let [keys, values] = self.halves(block).map(|x| run(x, &sight.keys));
            let some = run(queries.clone(), &sight.queries);
            let more = Found::new(&some, &keys, &values, sight.only_past);
            found = Some(match found {
                None => more,
                Some(found) => found.and(&sight.queries, more),
            });
            match next {
                Some(next) => block = next.wait()?,
                None => break,
            }
        }
        Ok(found.expect("a rank has tokens"))
    }

    /// The gradients of queries, keys and values, one behind the other along the first dimension.
    fn backward(
        &self,
        all: &Tensor<D>,
        found: Found<D>,
        gradient: Tensor<D>,
    ) -> Result<Tensor<D>, ParallelError> {
        let gradient = wide(gradient);
        let known = Known::new(self.queries(all), found, gradient);
        let mut block = self.keys_and_values(all);
        let mut of_queries: Option<Tensor<D>> = None;
        // What the ranks before have found to be the gradients of the block that is here.
        let mut arriving: Option<Shift<D>> = None;
        for source in self.sources() {
            let next = self.next(&block, source)?;
            let sight = self.sight(source);
            let [keys, values] = self.halves(block.clone()).map(|x| run(x, &sight.keys));
            let some = known.run(&sight.queries);
            let [queries, keys, values] = some.gradients(&keys, &values, sight.only_past);
            of_queries = Some(match of_queries {
                None => queries,
                Some(sum) => added(sum, &sight.queries, queries),
            });
            let sums = match arriving {
                None => [keys, values],
                Some(sums) => {
                    let [of_keys, of_values] = self.halves(sums.wait()?);
                    [added(of_keys, &sight.keys, keys), added(of_values, &sight.keys, values)]
                }
            };
            // To the next rank, as the block; the last time home.
            arriving = Some(Shift::begin(Tensor::cat(sums.to_vec(), 0), &self.cp)?);
            if let Some(next) = next {
                block = next.wait()?;
            }
        }
        let of_queries = of_queries.expect("a rank has tokens");
        let rest = arriving.expect("a rank has tokens").wait()?;
        let of_queries = of_queries.div_scalar(self.scale());
        Ok(Tensor::cat(vec![of_queries, rest], 0).cast(self.dtype))
    }

    /// The ranks whose keys and values arrive, one after the other: this rank first.
    fn sources(&self) -> impl Iterator<Item = Rank> {
        let (own, ranks) = (self.cp.rank().get(), self.cp.world_size().get());
        (0..ranks).map(move |step| Rank::new((own + ranks - step) % ranks))
    }

    /// Sends the present block on, unless all ranks have seen it.
    fn next(&self, block: &Tensor<D>, source: Rank) -> Result<Option<Shift<D>>, ParallelError> {
        let (own, ranks) = (self.cp.rank().get(), self.cp.world_size().get());
        let is_last = (own + 1) % ranks == source.get();
        if is_last { Ok(None) } else { Shift::begin(block.clone(), &self.cp).map(Some) }
    }

    fn sight(&self, source: Rank) -> Sight {
        let tokens = self.shape[D - 2];
        let (all, own) = (0..tokens, self.cp.rank());
        let [queries, keys] = match self.attend {
            AttentionMask::All => [all.clone(), all],
            AttentionMask::Causal if source == own => [all.clone(), all],
            // The first chunk of a rank in front is before both of these, the second one behind both.
            AttentionMask::Causal if source < own => [all, 0..tokens / 2],
            // Both chunks of a rank behind are between these two.
            AttentionMask::Causal => [tokens / 2..tokens, all],
        };
        Sight { queries, keys, only_past: self.attend == AttentionMask::Causal && source == own }
    }

    /// The queries, scaled because that is less work than to scale the scores.
    fn queries(&self, all: &Tensor<D>) -> Tensor<D> {
        let queries = all.clone().narrow(0, 0, self.shape[0]);
        wide(queries).div_scalar(self.scale())
    }

    fn scale(&self) -> f64 {
        (self.shape[D - 1] as f64).sqrt()
    }

    fn keys_and_values(&self, all: &Tensor<D>) -> Tensor<D> {
        all.clone().narrow(0, self.shape[0], 2 * self.shape[0])
    }

    /// Splits keys and values, or their gradients.
    fn halves(&self, block: Tensor<D>) -> [Tensor<D>; 2] {
        let size = self.shape[0];
        [0, size].map(|start| wide(block.clone().narrow(0, start, size)))
    }
}

/// A tensor that is sent to the next rank, while that of the previous rank is received.
struct Shift<const D: usize> {
    arrival: Arrival,
    shape: [usize; D],
}

impl<const D: usize> Shift<D> {
    #[track_caller]
    fn begin(x: Tensor<D>, cp: &World) -> Result<Self, ParallelError> {
        let shape = x.dims();
        let flat = sendable(x, cp)?.reshape([shape.iter().product::<usize>()]);
        Ok(Self { arrival: bonfire_train::begin(flat, cp, Transfer::Shift)?, shape })
    }

    fn wait(self) -> Result<Tensor<D>, ParallelError> {
        Ok(self.arrival.wait()?.reshape(self.shape))
    }
}
