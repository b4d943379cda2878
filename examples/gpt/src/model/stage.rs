//! A stage of a pipeline: some layers of a [`Gpt`], of which the embedding is the first and the head the last.

use std::ops::Range;

use bonfire::parallel::{Output, Pass, PipelineError, VocabParallelEmbedding};
use burn::module::Param;
use burn::tensor::Tensor;

use super::Gpt;
use crate::batch::TextBatch;

impl Gpt {
    /// Returns the time of each layer relative to a block's: the embedding, which only looks up, the blocks, and the
    /// head, which is a matrix of `V` by `C` where those of a block are twelve of `C` by `C`.
    pub fn weights(&self) -> Vec<f64> {
        let head = self.config.vocabulary as f64 / (12 * self.config.width) as f64;
        let blocks = vec![1.0; self.config.layers];
        [&[0.0][..], &blocks, &[head]].concat()
    }

    /// Returns the stage of these layers, whose tensors it shares.
    pub fn stage(&self, layers: &Range<usize>) -> Self {
        let has_first = layers.contains(&0);
        let blocks = (1..).zip(&self.blocks).filter(|(layer, _)| layers.contains(layer));
        Self {
            tokens: self.tokens.clone().filter(|_| has_first),
            positions: self.positions.clone().filter(|_| has_first),
            blocks: blocks.map(|(_, block)| block.clone()).collect(),
            norm: self.norm.clone().filter(|_| layers.contains(&(self.config.layers + 1))),
            ..self.clone()
        }
    }

    /// Joins all stages to the model.
    pub fn joined(stages: Vec<Self>) -> Option<Self> {
        let join = |mut model: Self, stage: Self| {
            model.blocks.extend(stage.blocks);
            model.norm = stage.norm;
            model
        };
        stages.into_iter().reduce(join)
    }

    /// Returns the matrix of the first stage's embedding, which is the head, too.
    ///
    /// # Panics
    /// In other stages.
    pub fn head(&self) -> &Param<Tensor<2>> {
        &self.tokens().weight
    }

    /// Runs the forward pass of a stage: of the first from tokens, of the last to the mean cross entropy, else from and
    /// to the stream, `[B*T, C]`.
    ///
    /// # Errors
    /// [`PipelineError::OtherInput`] or [`PipelineError::NotTied`] in other stages.
    pub fn pass(&self, pass: &mut Pass<'_, TextBatch>) -> Result<Output, PipelineError> {
        let TextBatch { tokens, targets } = pass.micro_batch().clone();
        let input = self.positions.is_none().then(|| pass.input()).transpose()?;
        let stream = self.stream(tokens, input);
        Ok(match &self.norm {
            Some(_) => self.cross_entropy(stream, &self.head_of(pass.tied()?), targets).into(),
            None => stream.into(),
        })
    }

    /// Returns a number whose forward and backward pass need the time and memory of this stage without its neighbours:
    /// its inputs are ones.
    pub fn alone(&self, batch: &TextBatch) -> Tensor<1> {
        let device = batch.tokens.device();
        let ones = |rows| Tensor::<2>::ones([rows, self.config.width], &device).require_grad();
        let TextBatch { tokens, targets } = batch.clone();
        let input = self.positions.is_none().then(|| ones(tokens.shape().num_elements()));
        let stream = self.stream(tokens, input);
        match &self.norm {
            Some(_) => self.cross_entropy(stream, &self.head_of(ones(self.rows)), targets),
            None => stream.sum(),
        }
    }

    fn head_of(&self, rows: Tensor<2>) -> VocabParallelEmbedding {
        let tp = self.tp.as_ref().expect("stages are of a model that is divided");
        VocabParallelEmbedding::of_rows(rows, self.config.vocabulary, tp)
    }
}
