//! An embedding that is divided among ranks by vocabulary.

use std::ops::Range;

use bonfire_plan::{Cut, shard_range};
use bonfire_train::{World, embedding};
use burn::module::{Module, Param, ParamId};
use burn::nn::Embedding;
use burn::tensor::{Bool, Int, Tensor};

use super::linear::{entered, left};
use super::part::{Among, piece, replaced};
use crate::ParallelError;
use crate::error::or_end_pass;
use crate::ops;

/// An embedding table whose rows are divided among ranks: tokens `[batch, length]` to `[batch, length, d_model]`, the
/// same on all ranks. [`logits`](Self::logits) uses the same table as the head of a model.
///
/// The rows need not divide: ranks have one more or less. Made of an [`Embedding`] with `from`, it is that, on one rank.
#[derive(Module, Debug)]
pub struct VocabParallelEmbedding {
    /// The table, of shape `[rows of this rank, d_model]`.
    pub weight: Param<Tensor<2>>,
    #[module(skip)]
    vocabulary: usize,
    #[module(skip)]
    tp: Among,
    /// The dimension along which ranks have different tokens.
    #[module(skip)]
    sequence: Option<usize>,
}

impl From<Embedding> for VocabParallelEmbedding {
    fn from(Embedding { weight }: Embedding) -> Self {
        let [vocabulary, _] = weight.lazy_shape().dims();
        Self { weight, vocabulary, tp: None, sequence: None }
    }
}

impl VocabParallelEmbedding {
    /// Takes this rank's part of a table that is the same on all ranks of `tp`.
    ///
    /// # Errors
    /// [`ParallelError::SmallVocabulary`] if there are fewer rows than ranks.
    pub fn from_embedding(embedding: Embedding, tp: &World) -> Result<Self, ParallelError> {
        let [vocabulary, _] = embedding.weight.lazy_shape().dims();
        let ranks = tp.world_size();
        if vocabulary < ranks.len() {
            return Err(ParallelError::SmallVocabulary { size: vocabulary, ranks });
        }
        let cut = Cut { dim: 0, sections: 1 };
        Ok(Self {
            weight: piece(embedding.weight, cut, tp),
            vocabulary,
            tp: Some(tp.clone()),
            sequence: None,
        })
    }

    /// Makes the head of a model whose shared table is in another stage of a pipeline: `rows`, such as
    /// [`Pass::tied`](crate::Pass::tied) has them, are this rank's of a table of `vocabulary` rows that is divided
    /// among the ranks of `tp`.
    ///
    /// # Panics
    /// If their number is not that of this rank's rows.
    pub fn of_rows(rows: Tensor<2>, vocabulary: usize, tp: &World) -> Self {
        let [found, _] = rows.dims();
        let head = Self {
            weight: Param::initialized(ParamId::new(), rows),
            vocabulary,
            tp: Some(tp.clone()),
            sequence: None,
        };
        assert_eq!(found, head.rows().len(), "rows of this rank");
        head
    }

    /// Leaves each rank the vectors of its own tokens, along dimension `dim` of the result of
    /// [`forward`](Self::forward). [`logits`](Self::logits) then takes such vectors of this rank's tokens, along
    /// dimension 0.
    #[must_use]
    pub fn with_sequence(mut self, dim: usize) -> Self {
        self.sequence = Some(dim);
        self
    }

    /// Gathers the undivided table. Every rank of `tp` must call it.
    ///
    /// # Errors
    /// As [`ops::gather`].
    pub fn to_embedding(&self) -> Result<Embedding, ParallelError> {
        let weight = self.weight.clone();
        let Some(tp) = &self.tp else {
            return Ok(Embedding { weight });
        };
        // Blocks of equal length are sent: the first rank has the most rows.
        let (all, own) = (tp.world_size(), self.rows());
        let most = shard_range(self.vocabulary, all, bonfire_plan::Rank::new(0)).as_range().len();
        let part = weight.val().without_autodiff();
        let [_, width] = part.dims();
        let rest = Tensor::zeros([most - own.len(), width], (&part.device(), part.dtype()));
        let blocks = ops::gather(Tensor::cat(vec![part, rest], 0), 0, tp)?;
        let parts = all
            .ranks()
            .map(|rank| {
                let rows = shard_range(self.vocabulary, all, rank).as_range().len();
                blocks.clone().narrow(0, rank.index() * most, rows)
            })
            .collect();
        Ok(Embedding { weight: replaced(weight, |_| Tensor::cat(parts, 0)) })
    }

    /// Returns the vectors of tokens, each below the size of the vocabulary, which is not checked.
    ///
    /// # Panics
    /// If an operation between ranks fails: see [`ops`](crate::ops).
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let table = self.weight.val();
        let Some(tp) = &self.tp else {
            return embedding(table, tokens);
        };
        let (own, elsewhere) = local(tokens, &self.rows());
        let vectors = embedding(table, own);
        let elsewhere = elsewhere.unsqueeze_dim::<3>(2).expand(vectors.shape());
        or_end_pass(left(vectors.mask_fill(elsewhere, 0.0), self.sequence, tp), tp)
    }

    /// Returns the scores of this rank's rows of the vocabulary: `[tokens, d_model]`, the same on all ranks, to
    /// `[tokens, rows of this rank]`. [`VocabParallelCrossEntropy`](crate::VocabParallelCrossEntropy) takes them.
    ///
    /// # Panics
    /// If an operation between ranks fails: see [`ops`](crate::ops).
    pub fn logits(&self, x: Tensor<2>) -> Tensor<2> {
        let x = match &self.tp {
            None => x,
            Some(tp) => or_end_pass(entered(x, self.sequence.map(|_| 0), tp), tp),
        };
        x.matmul(self.weight.val().transpose())
    }

    /// Returns the size of the complete vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn among(&self) -> Option<&World> {
        self.tp.as_ref()
    }

    /// Returns the range of this rank's rows.
    pub fn rows(&self) -> Range<usize> {
        match &self.tp {
            None => 0..self.vocabulary,
            Some(tp) => shard_range(self.vocabulary, tp.world_size(), tp.rank()).as_range(),
        }
    }
}

/// Indices of tokens in a range of rows, 0 for those outside; and the mask of those outside.
pub(super) fn local<const D: usize>(
    tokens: Tensor<D, Int>,
    rows: &Range<usize>,
) -> (Tensor<D, Int>, Tensor<D, Bool>) {
    let place = tokens - rows.start as i64;
    let before = place.clone().lower_elem(0);
    let elsewhere = before.bool_or(place.clone().greater_equal_elem(rows.len() as i64));
    (place.mask_fill(elsewhere.clone(), 0), elsewhere)
}
