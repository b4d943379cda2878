//! Some layers of a [`Gpt`]: a stage of a pipeline.

use std::ops::Range;

use bonfire::World;
use bonfire::parallel::{
    Output, Pass, PipelineError, VocabParallelCrossEntropy, VocabParallelEmbedding,
};
use burn::module::{Module, Param};
use burn::nn::LayerNorm;
use burn::tensor::Tensor;

use super::{Block, Gpt};
use crate::text::TextBatch;

/// Some layers, of which the embedding is the first and the head the last.
#[derive(Module, Debug)]
pub struct Part {
    embedding: Option<(VocabParallelEmbedding, Param<Tensor<2>>)>,
    blocks: Vec<Block>,
    norm: Option<LayerNorm>,
    recomputed: bool,
    vocabulary: usize,
    /// The shape of this rank's part of the embedding.
    #[module(skip)]
    table: [usize; 2],
    /// The ranks among which its layers are divided.
    #[module(skip)]
    tp: World,
}

impl Gpt {
    /// Returns the time of each layer relative to a block's: the embedding, which only looks up, the blocks, and the
    /// head, which is a matrix of `V` by `C` where those of a block are twelve of `C` by `C`.
    pub fn weights(&self) -> Vec<f64> {
        let [characters, width] = self.tokens.weight.lazy_shape().dims();
        let mut weights = vec![1.0; self.blocks.len() + 2];
        weights[0] = 0.0;
        weights[self.blocks.len() + 1] = characters as f64 / (12 * width) as f64;
        weights
    }

    /// Cuts a model into the parts of these layers, which are all. Its layers are [`divided`](Self::divided) among the
    /// ranks of `tp`.
    pub fn cut(self, runs: &[Range<usize>], tp: &World) -> Vec<Part> {
        let last = self.blocks.len() + 1;
        let vocabulary = self.tokens.vocabulary();
        let table = self.tokens.weight.lazy_shape().dims();
        let mut blocks = self.blocks.into_iter();
        let (mut embedding, mut norm) = (Some((self.tokens, self.positions)), Some(self.norm));
        let part = |run: &Range<usize>| Part {
            embedding: embedding.take_if(|_| run.contains(&0)),
            norm: norm.take_if(|_| run.contains(&last)),
            blocks: run
                .clone()
                .filter(|layer| (1..last).contains(layer))
                .filter_map(|_| blocks.next())
                .collect(),
            recomputed: self.recomputed,
            vocabulary,
            table,
            tp: tp.clone(),
        };
        runs.iter().map(part).collect()
    }

    pub fn joined(parts: Vec<Part>) -> Option<Self> {
        let (mut embedding, mut norm, mut blocks) = (None, None, Vec::new());
        let recomputed = parts.first()?.recomputed;
        for part in parts {
            embedding = embedding.or(part.embedding);
            norm = norm.or(part.norm);
            blocks.extend(part.blocks);
        }
        let (tokens, positions) = embedding?;
        Some(Self { tokens, positions, blocks, norm: norm?, recomputed, cp: None })
    }
}

impl Part {
    /// Returns the matrix of the first stage's embedding, which is the head, too.
    ///
    /// # Panics
    /// In other stages.
    pub fn head(&self) -> &Param<Tensor<2>> {
        let (tokens, _) = self.embedding.as_ref().expect("the first stage has the embedding");
        &tokens.weight
    }

    /// Runs the forward pass: of the first stage from tokens, of the last one to the mean cross entropy, else from and
    /// to the stream, `[B*T, C]`.
    ///
    /// # Errors
    /// [`PipelineError::OtherInput`] or [`PipelineError::NotTied`] in other stages.
    pub fn forward(&self, pass: &mut Pass<'_, TextBatch>) -> Result<Output, PipelineError> {
        let batch = pass.micro_batch().clone();
        let input = match self.embedding {
            Some(_) => None,
            None => Some(pass.input()?),
        };
        let stream = self.stream(&batch, input);
        Ok(match &self.norm {
            Some(norm) => self.loss(norm.forward(stream), pass.tied()?, batch).into(),
            None => stream.into(),
        })
    }

    /// Returns a number whose forward and backward pass need the time and memory of this part without its neighbours:
    /// its inputs are ones.
    pub fn alone(&self, batch: &TextBatch) -> Tensor<1> {
        let device = batch.tokens.device();
        let [rows, width] = self.table;
        let ones = |rows| Tensor::<2>::ones([rows, width], &device).require_grad();
        let input = match self.embedding {
            Some(_) => None,
            None => Some(ones(batch.tokens.shape().num_elements())),
        };
        let stream = self.stream(batch, input);
        match &self.norm {
            Some(norm) => self.loss(norm.forward(stream), ones(rows), batch.clone()),
            None => stream.sum(),
        }
    }

    /// The output of the blocks, `[B*T, C]`: of the tokens, or of the previous part's output.
    fn stream(&self, batch: &TextBatch, input: Option<Tensor<2>>) -> Tensor<2> {
        let [b, t] = batch.tokens.dims();
        let embedded = self.embedding.as_ref().map(|(embedding, positions)| {
            let positions = positions.val().slice(0..t).unsqueeze(); // [1, T, C]
            (embedding.forward(batch.tokens.clone()) + positions).flatten(0, 1) // [B*T, C]
        });
        let stream = embedded.or(input).expect("a part without embedding has an input");
        let blocks = self.blocks.iter();
        blocks.fold(stream, |stream, block| block.run(stream, b, None, self.recomputed))
    }

    /// The mean cross entropy, of the normalised stream and the matrix of the embedding.
    fn loss(&self, stream: Tensor<2>, head: Tensor<2>, batch: TextBatch) -> Tensor<1> {
        let head = VocabParallelEmbedding::of_rows(head, self.vocabulary, &self.tp);
        let scores = head.logits(stream); // [B*T, V]
        let targets = batch.targets.flatten(0, 1);
        VocabParallelCrossEntropy::new().forward(&head, scores, targets)
    }
}
