//! The cross entropy of scores that are divided among ranks by vocabulary.
//!
//! Ranks exchange the largest score of each token, and then the score of its target, the sum of exponentials and, with
//! label smoothing, the sum of scores. The scores themselves stay where they are, in the backward pass, too: the
//! gradient of a score is its softmax less what the target wants.

use std::ops::Range;

use bonfire_collective::ReduceOp;
use bonfire_train::{World, custom_gradient};
use burn::tensor::{Bool, DType, IndexingUpdateOp, Int, Tensor};

use super::embedding::{VocabParallelEmbedding, local};
use crate::ParallelError;
use crate::error::{or_end_pass, unreadable};
use crate::ops::all_reduce;

/// The mean cross entropy of tokens, as Burn's `CrossEntropyLoss` has it, of scores that are divided among ranks.
///
/// ```
/// # use bonfire_parallel::{VocabParallelCrossEntropy, VocabParallelEmbedding};
/// # use burn::tensor::{Int, Tensor};
/// fn loss(table: &VocabParallelEmbedding, x: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
///     VocabParallelCrossEntropy::new().forward(table, table.logits(x), targets)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VocabParallelCrossEntropy {
    ignored: Option<i64>,
    smoothing: f64,
}

impl VocabParallelCrossEntropy {
    /// Counts every token, without smoothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ignores tokens with this target. If all have it, the mean is NaN.
    #[must_use]
    pub fn with_ignored(mut self, target: i64) -> Self {
        self.ignored = Some(target);
        self
    }

    /// Spreads a part of 1 evenly over the vocabulary, the target included.
    ///
    /// # Panics
    /// If it is not from 0 to 1.
    #[must_use]
    pub fn with_smoothing(mut self, smoothing: f64) -> Self {
        assert!((0.0..=1.0).contains(&smoothing), "label smoothing of {smoothing}");
        self.smoothing = smoothing;
        self
    }

    /// Returns the mean over the tokens, the same on all ranks, of this rank's `scores` `[tokens, rows of this rank]`,
    /// as [`logits`](VocabParallelEmbedding::logits) of `table` are, and of targets `[tokens]`. It is computed in f32,
    /// or f64 for such scores. It waits for the device, to check that the targets are in the vocabulary.
    ///
    /// # Panics
    /// If a target is not in the vocabulary and not ignored ([`ParallelError::OutsideVocabulary`]), or an operation
    /// between ranks fails: see [`or_end_pass`].
    pub fn forward(
        &self,
        table: &VocabParallelEmbedding,
        scores: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> Tensor<1> {
        let scores = match scores.dtype() {
            DType::F16 | DType::BF16 => scores.cast(DType::F32),
            _ => scores,
        };
        let classes =
            Classes { rows: table.rows(), vocabulary: table.vocabulary(), tp: table.among() };
        let constant = scores.clone().without_autodiff();
        let checked = self.check(targets.clone(), classes.vocabulary);
        let losses =
            checked.and_then(|()| Losses::of(constant, targets.clone(), &classes, self.smoothing));
        let Losses { values, gradient } = match classes.tp {
            Some(tp) => or_end_pass(losses, tp),
            None => losses.unwrap_or_else(|error| panic!("a cross entropy: {error}")),
        };
        let backward = move |losses| gradient.of_scores(losses);
        let losses = custom_gradient(scores, |_| values, backward);
        let Some(ignored) = self.ignored else {
            return losses.mean();
        };
        let ignored = targets.equal_elem(ignored);
        let counted = ignored.clone().bool_not().int().sum().float().cast(losses.dtype());
        losses.mask_fill(ignored, 0.0).sum() / counted
    }

    fn check(&self, targets: Tensor<1, Int>, vocabulary: usize) -> Result<(), ParallelError> {
        if targets.dims() == [0] {
            return Ok(());
        }
        let counted = match self.ignored {
            Some(ignored) => {
                let ignored = targets.clone().equal_elem(ignored);
                targets.mask_fill(ignored, 0)
            }
            None => targets,
        };
        let ends = Tensor::cat(vec![counted.clone().min(), counted.max()], 0)
            .try_into_data()
            .map_err(|cause| unreadable(&cause))?;
        let all = 0..vocabulary as i64;
        let outside = ends.iter::<i64>().find(|target| !all.contains(target));
        outside.map_or(Ok(()), |target| {
            Err(ParallelError::OutsideVocabulary { target, last: vocabulary - 1 })
        })
    }
}

struct Classes<'a> {
    rows: Range<usize>,
    vocabulary: usize,
    tp: Option<&'a World>,
}

impl Classes<'_> {
    fn all_reduce(&self, x: Tensor<2>, reduce: ReduceOp) -> Result<Tensor<2>, ParallelError> {
        self.tp.map_or(Ok(x.clone()), |tp| all_reduce(x, tp, reduce))
    }
}

/// The loss of each token, and the values that its gradient needs.
struct Losses {
    values: Tensor<1>,
    gradient: ScoreGradient,
}

impl Losses {
    /// Computes the losses of scores without autodiff. With p the softmax, q the target's odds and a the smoothing, the
    /// loss is `-sum(q log p)`, where q is `1 - a` for the target and `a / vocabulary` more for every class.
    fn of(
        scores: Tensor<2>,
        targets: Tensor<1, Int>,
        classes: &Classes<'_>,
        smoothing: f64,
    ) -> Result<Self, ParallelError> {
        let [tokens, _] = scores.dims();
        let largest = classes.all_reduce(scores.clone().max_dim(1), ReduceOp::Max)?;
        let scores = scores - largest;
        let (own, elsewhere) = local(targets.unsqueeze_dim::<2>(1), &classes.rows);
        let wanted = scores.clone().gather(1, own.clone());
        let mut sums = vec![wanted.mask_fill(elsewhere.clone(), 0.0)];
        if smoothing > 0.0 {
            sums.push(scores.clone().sum_dim(1));
        }
        let exponentials = scores.exp();
        sums.push(exponentials.clone().sum_dim(1));
        let count = sums.len();
        // In one message.
        let sums = classes.all_reduce(Tensor::cat(sums, 1), ReduceOp::Sum)?;
        let sum = |index| sums.clone().narrow(1, index, 1);
        let total = sum(count - 1);
        let everywhere = smoothing / classes.vocabulary as f64;
        let mut values = total.clone().log() - sum(0).mul_scalar(1.0 - smoothing);
        if smoothing > 0.0 {
            values = values - sum(1).mul_scalar(everywhere);
        }
        Ok(Self {
            values: values.reshape([tokens]),
            gradient: ScoreGradient {
                softmax: exponentials / total,
                right: (own, elsewhere),
                odds: (1.0 - smoothing, everywhere),
            },
        })
    }
}

struct ScoreGradient {
    softmax: Tensor<2>,
    /// The class that is the target of each token, and the tokens whose target is on another rank.
    right: (Tensor<2, Int>, Tensor<2, Bool>),
    /// The odds added for the target, and for every class.
    odds: (f64, f64),
}

impl ScoreGradient {
    fn of_scores(self, losses: Tensor<1>) -> Tensor<2> {
        let (own, elsewhere) = self.right;
        let (target, everywhere) = self.odds;
        let options = (&self.softmax.device(), self.softmax.dtype());
        let less = Tensor::full(own.dims(), -target, options).mask_fill(elsewhere, 0.0);
        let difference = self.softmax.scatter(1, own, less, IndexingUpdateOp::Add);
        let difference = match everywhere {
            0.0 => difference,
            everywhere => difference.sub_scalar(everywhere),
        };
        difference * losses.unsqueeze_dim(1)
    }
}
