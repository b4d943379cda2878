//! The model: a decoder-only transformer over characters, after nanoGPT's `model.py`.
//!
//! Pre-norm blocks of causal self-attention and a GELU MLP, learned positions, no biases, and an
//! output head that shares the token embedding's matrix: one parameter, so one gradient to
//! synchronise.
//!
//! Its layers can be divided among the ranks of `tp` as in Megatron-LM: heads and hidden features by columns,
//! projections to the stream by rows, and the vocabulary. Undivided they are plain layers. [`Gpt::divided`] cuts them;
//! the forward pass is the same. Ranks of `cp` can have different tokens of the same windows: then attention runs
//! around their ring, see [`Gpt::among`].
//!
//! Shapes in comments: `B` windows of `T` tokens, width `C`, `H` heads of `D = C / H`, `V`
//! characters. Outside attention the tokens of all windows are simply rows, `[B*T, C]`, so every
//! layer is one plain matrix product.

mod stage;

use std::f64::consts::TAU;

use bonfire::World;
use bonfire::nn::{AttentionMask, Recompute, RngReplay, gelu, self_attention};
use bonfire::parallel::{
    ColumnParallelLinear, ParallelError, RowParallelLinear, VocabParallelCrossEntropy,
    VocabParallelEmbedding, or_end_pass, ring_attention, zigzag_split,
};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Int, Tensor, TensorData};
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::batch::TextBatch;

/// The standard deviation of every initial matrix, as in GPT-2.
const INITIAL_STD: f64 = 0.02;

/// Words of the generator for a normal value: two numbers of 64 bits.
const NORMAL_WORDS: u128 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GptConfig {
    pub vocabulary: usize,
    /// Longest window the model can look back on, in characters.
    pub context: usize,
    pub layers: usize,
    /// Attention heads in each block, `H`; divides the width.
    pub heads: usize,
    /// Width of the residual stream, `C`.
    pub width: usize,
    /// True if the blocks keep only their inputs, and are computed again in the backward pass.
    pub checkpoint_blocks: bool,
}

/// The model, or the layers of a stage: the embedding is in the first, the last norm in the last.
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Option<VocabParallelEmbedding>,
    positions: Option<Param<Tensor<2>>>,
    blocks: Vec<Block>,
    norm: Option<LayerNorm>,
    /// Characters of which this rank has the vectors.
    rows: usize,
    #[module(skip)]
    pub(crate) config: GptConfig,
    /// The ranks among which the layers are divided.
    #[module(skip)]
    tp: Option<World>,
    /// The ranks that have other tokens of the same windows.
    #[module(skip)]
    cp: Option<World>,
}

/// Attention, then an MLP, each reading a normalised copy of the stream and adding to it.
#[derive(Module, Debug)]
struct Block {
    attention_norm: LayerNorm,
    attention: Attention,
    mlp_norm: LayerNorm,
    mlp: Mlp,
}

/// Causal self-attention; one matrix makes the queries, keys and values.
#[derive(Module, Debug)]
struct Attention {
    query_key_value: ColumnParallelLinear,
    output: RowParallelLinear,
    heads: usize,
}

/// Two layers, four times as wide inside.
#[derive(Module, Debug)]
struct Mlp {
    input: ColumnParallelLinear,
    output: RowParallelLinear,
}

impl GptConfig {
    /// Builds the model; the same seed gives the same parameters on every device and every rank. Each matrix is made
    /// on first use, so ranks that keep parts never have the complete model.
    ///
    /// Matrices are normal with deviation 0.02; those that write to the residual stream are scaled
    /// by `1 / sqrt(2 * layers)`, because that many of them add up.
    pub fn init(&self, seed: u64, device: &Device) -> Gpt {
        assert!(self.width.is_multiple_of(self.heads), "heads share the width: {self:?}");
        let mut normals = Normals { seed, drawn: 0 };
        let residual_std = INITIAL_STD / (2.0 * self.layers as f64).sqrt();
        let (c, v) = (self.width, self.vocabulary);
        let norm = || LayerNormConfig::new(c).with_bias(false).init(device);
        let tokens = Embedding { weight: normals.matrix([v, c], INITIAL_STD, device) };
        let positions = normals.matrix([self.context, c], INITIAL_STD, device);
        let mut linear =
            |shape, std| Linear { weight: normals.matrix(shape, std, device), bias: None };
        let blocks = (0..self.layers).map(|_| Block {
            attention_norm: norm(),
            attention: Attention {
                query_key_value: linear([c, 3 * c], INITIAL_STD).into(),
                output: linear([c, c], residual_std).into(),
                heads: self.heads,
            },
            mlp_norm: norm(),
            mlp: Mlp {
                input: linear([c, 4 * c], INITIAL_STD).into(),
                output: linear([4 * c, c], residual_std).into(),
            },
        });
        Gpt {
            tokens: Some(tokens.into()),
            positions: Some(positions),
            blocks: blocks.collect(),
            norm: Some(norm()),
            rows: v,
            config: *self,
            tp: None,
            cp: None,
        }
    }
}

impl Gpt {
    /// Computes the loss of this rank's tokens of the windows, which all ranks of `cp` get.
    pub fn among(mut self, cp: &World) -> Self {
        self.cp = (cp.world_size().get() > 1).then(|| cp.clone());
        self
    }

    /// Floating-point operations of a forward and a backward pass over one token, of the complete model: `6 N + 12 L H
    /// D T`, as in appendix B of the paper on PaLM, <https://arxiv.org/abs/2204.02311>. Its `N` leaves the positions
    /// out, as nanoGPT's does: they are only added.
    pub fn flops_per_token(&self) -> f64 {
        let (t, c) = (self.config.context, self.config.width);
        let parameters = self.num_params() - t * c;
        (6 * parameters + 12 * self.blocks.len() * c * t) as f64
    }

    /// Takes this rank's part of a model that is the same on all ranks of `tp`.
    ///
    /// # Errors
    /// [`ParallelError::Indivisible`] if the ranks do not divide the heads or the hidden features.
    pub fn divided(self, tp: &World) -> Result<Self, ParallelError> {
        let divide = |tokens: VocabParallelEmbedding| {
            VocabParallelEmbedding::from_embedding(tokens.to_embedding()?, tp)
        };
        let tokens = self.tokens.map(divide).transpose()?;
        let blocks = self.blocks.into_iter().map(|block| block.divided(tp));
        Ok(Self {
            rows: tokens.as_ref().map_or(0, |tokens| tokens.weight.lazy_shape()[0]),
            tokens,
            blocks: blocks.collect::<Result<_, _>>()?,
            tp: Some(tp.clone()),
            ..self
        })
    }

    /// Gathers the complete model from the parts of all ranks, for any tokens. Every rank must call it.
    ///
    /// # Errors
    /// [`ParallelError::Collective`] if a rank fails.
    pub fn whole(&self) -> Result<Self, ParallelError> {
        let tokens = self.tokens.as_ref().map(|tokens| tokens.to_embedding());
        let blocks = self.blocks.iter().map(Block::whole);
        Ok(Self {
            tokens: tokens.transpose()?.map(Into::into),
            blocks: blocks.collect::<Result<_, _>>()?,
            tp: None,
            cp: None,
            ..self.clone()
        })
    }

    /// Returns the scores of every character as the successor of every token: `[B, T]` to `[B*T, V]`; those of this
    /// rank's characters if the model is divided. Among ranks of `cp` the tokens are this rank's.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        self.tokens().logits(self.normalised(self.stream(tokens, None))) // [B*T, V]
    }

    /// Returns the mean cross entropy, in nats per character, of the targets after the tokens, both `[B, T]`; of this
    /// rank's tokens among ranks of `cp`. They have equally many, so the mean over the ranks is that over all tokens.
    pub fn loss(&self, batch: TextBatch) -> Tensor<1> {
        let [tokens, targets] = [batch.tokens, batch.targets].map(|all| self.own(all, 1));
        self.cross_entropy(self.stream(tokens, None), self.tokens(), targets)
    }

    /// The output of the blocks, `[B*T, C]`: of the tokens, or of the previous stage's output.
    fn stream(&self, tokens: Tensor<2, Int>, input: Option<Tensor<2>>) -> Tensor<2> {
        let [b, t] = tokens.dims();
        let embedded = self.positions.as_ref().map(|positions| {
            let ranks = self.cp.as_ref().map_or(1, |cp| cp.world_size().len());
            let positions = self.own(positions.val().slice(0..t * ranks), 0);
            let embedded = self.tokens().forward(tokens) + positions.unsqueeze(); // [B, T, C]
            embedded.flatten(0, 1) // [B*T, C]
        });
        let stream = embedded.or(input).expect("a stage without embedding has an input");
        let recompute = Recompute::default().with_rng_replay(RngReplay::None);
        self.blocks.iter().fold(stream, |stream, block| {
            let cp = self.cp.clone();
            let forward = move |block: &Block, stream| block.forward(stream, b, cp.as_ref());
            if self.config.checkpoint_blocks {
                recompute.run(block, stream, forward)
            } else {
                forward(block, stream)
            }
        })
    }

    /// This rank's tokens, along `dim`, of those that all ranks of `cp` have.
    fn own<const D: usize, K: Basic>(&self, all: Tensor<D, K>, dim: usize) -> Tensor<D, K> {
        match &self.cp {
            None => all,
            Some(cp) => or_end_pass(zigzag_split(all, dim, cp), cp),
        }
    }

    fn cross_entropy(
        &self,
        stream: Tensor<2>,
        head: &VocabParallelEmbedding,
        targets: Tensor<2, Int>,
    ) -> Tensor<1> {
        let scores = head.logits(self.normalised(stream)); // [B*T, V]
        VocabParallelCrossEntropy::new().forward(head, scores, targets.flatten(0, 1))
    }

    fn normalised(&self, stream: Tensor<2>) -> Tensor<2> {
        self.norm.as_ref().expect("the last stage has the norm").forward(stream)
    }

    fn tokens(&self) -> &VocabParallelEmbedding {
        self.tokens.as_ref().expect("the first stage has the embedding")
    }
}

impl Block {
    fn divided(mut self, tp: &World) -> Result<Self, ParallelError> {
        let (ranks, size) = (tp.world_size(), self.attention.heads);
        if !size.is_multiple_of(ranks.len()) {
            return Err(ParallelError::Indivisible {
                what: "the list of heads",
                dim: 0,
                size,
                ranks,
            });
        }
        let Attention { query_key_value, output, heads } = &mut self.attention;
        *query_key_value = ColumnParallelLinear::from_fused(query_key_value.to_linear()?, 3, tp)?;
        *output = RowParallelLinear::from_linear(output.to_linear()?, tp)?;
        *heads /= ranks.len();
        let Mlp { input, output } = &mut self.mlp;
        *input = ColumnParallelLinear::from_linear(input.to_linear()?, tp)?;
        *output = RowParallelLinear::from_linear(output.to_linear()?, tp)?;
        Ok(self)
    }

    fn whole(&self) -> Result<Self, ParallelError> {
        let mut whole = self.clone();
        let Attention { query_key_value, output, heads } = &mut whole.attention;
        let joined = output.to_linear()?;
        *heads *= joined.weight.shape()[0] / output.weight.shape()[0];
        (*query_key_value, *output) = (query_key_value.to_linear()?.into(), joined.into());
        let Mlp { input, output } = &mut whole.mlp;
        (*input, *output) = (input.to_linear()?.into(), output.to_linear()?.into());
        Ok(whole)
    }

    fn forward(&self, stream: Tensor<2>, b: usize, cp: Option<&World>) -> Tensor<2> {
        let attended = self.attention.forward(self.attention_norm.forward(stream.clone()), b, cp);
        let stream = stream + attended; // [B*T, C]
        let thought = self.mlp.forward(self.mlp_norm.forward(stream.clone()));
        stream + thought // [B*T, C]
    }
}

impl Attention {
    fn forward(&self, x: Tensor<2>, b: usize, cp: Option<&World>) -> Tensor<2> {
        let parts = self.query_key_value.forward(x); // [B*T, 3*H*D]
        let [rows, width] = parts.dims();
        let (t, h, d) = (rows / b, self.heads, width / (3 * self.heads));
        // ANCHOR: attention
        let parts = parts.reshape([b, t, 3, h, d]).permute([2, 0, 3, 1, 4]); // [3, B, H, T, D]
        let packed = parts.reshape([3 * b * h, t, d]);
        let seen = match cp {
            None => self_attention(packed, AttentionMask::Causal), // [B*H, T, D]
            Some(cp) => {
                let part = |i: usize| packed.clone().narrow(0, i * b * h, b * h);
                let (query, key, value) = (part(0), part(1), part(2)); // [B*H, T, D] each
                or_end_pass(ring_attention(query, key, value, AttentionMask::Causal, cp), cp)
            }
        };
        // ANCHOR_END: attention
        let seen = seen.reshape([b, h, t, d]).swap_dims(1, 2); // [B, T, H, D]
        self.output.forward(seen.reshape([rows, h * d])) // [B*T, C]
    }
}

impl Mlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inner = gelu(self.input.forward(x)); // [B*T, 4*C]
        self.output.forward(inner) // [B*T, C]
    }
}

/// Independent normal values, one matrix after the other.
struct Normals {
    seed: u64,
    drawn: usize,
}

impl Normals {
    /// A trainable matrix of the next values, which are drawn on first use.
    fn matrix(&mut self, shape: [usize; 2], std: f64, device: &Device) -> Param<Tensor<2>> {
        let (seed, first, elems) = (self.seed, self.drawn, shape[0] * shape[1]);
        self.drawn += elems;
        let init = move |device: &Device, is_trained| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_word_pos(NORMAL_WORDS * first as u128);
            let values = (0..elems).map(|_| (std * standard_normal(&mut rng)) as f32);
            let values = TensorData::new(values.collect::<Vec<f32>>(), shape);
            Tensor::from_data(values, device).set_require_grad(is_trained)
        };
        Param::uninitialized(ParamId::new(), init, device.clone(), true, shape.into())
    }
}

/// One draw from the standard normal distribution (Box and Muller, 1958).
fn standard_normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (TAU * rng.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use burn::module::ModuleVisitor;

    use super::*;

    const CONFIG: GptConfig = GptConfig {
        vocabulary: 11,
        context: 8,
        layers: 2,
        heads: 2,
        width: 12,
        checkpoint_blocks: false,
    };

    fn device() -> Device {
        Device::flex()
    }

    fn tokens(values: [[i32; 8]; 2]) -> Tensor<2, Int> {
        Tensor::from_data(values, &device())
    }

    #[test]
    fn a_later_token_does_not_change_earlier_scores() {
        let model = CONFIG.init(1, &device());
        let row = [1, 2, 3, 4, 5, 6, 7, 8];
        let before = model.forward(tokens([row, row])).slice(0..8).to_data();
        let before = before.try_to_vec::<f32>().unwrap();
        for position in 1..8 {
            let mut changed = row;
            changed[position] = 10;
            let after = model.forward(tokens([changed, row])).slice(0..8).to_data();
            let after = after.try_to_vec::<f32>().unwrap();
            let past = position * CONFIG.vocabulary;
            assert_eq!(before[..past], after[..past], "scores before position {position}");
            assert_ne!(before[past..], after[past..], "scores from position {position}");
        }
    }

    #[test]
    fn windows_do_not_see_each_other() {
        let model = CONFIG.init(1, &device());
        let row = [1, 2, 3, 4, 5, 6, 7, 8];
        let alone = model.forward(tokens([row, row])).slice(8..16).to_data();
        let beside = model.forward(tokens([[9; 8], row])).slice(8..16).to_data();
        assert_eq!(alone.try_to_vec::<f32>().unwrap(), beside.try_to_vec::<f32>().unwrap());
    }

    #[test]
    fn an_untrained_model_finds_all_characters_equally_likely() {
        let model = CONFIG.init(7, &device());
        let row = [0, 1, 2, 3, 4, 5, 6, 7];
        let target = [1, 2, 3, 4, 5, 6, 7, 8];
        let [tokens, targets] = [row, target].map(|row| tokens([row, row]));
        let loss = model.loss(TextBatch { tokens, targets }).into_scalar::<f32>();
        // Scores are sums of C products of a normalised activation with a weight of deviation
        // 0.02, so their deviation is 0.02 * sqrt(C) and the mean loss over 16 tokens is within
        // about four standard errors of the uniform one.
        let tolerance = 4.0 * INITIAL_STD * (CONFIG.width as f64).sqrt() / 16f64.sqrt();
        let uniform = (CONFIG.vocabulary as f64).ln();
        assert!((f64::from(loss) - uniform).abs() < tolerance, "{loss} against {uniform}");
    }

    #[test]
    fn the_head_shares_the_token_matrix() {
        let GptConfig { vocabulary: v, context: t, layers, width: c, .. } = CONFIG;
        let block = c * 3 * c + c * c + 2 * (c * 4 * c) + 2 * c;
        assert_eq!(CONFIG.init(0, &device()).num_params(), v * c + t * c + layers * block + c);
    }

    #[test]
    fn a_token_costs_what_the_matrices_and_the_scores_of_attention_do() {
        let GptConfig { vocabulary: v, context: t, layers, width: c, .. } = CONFIG;
        // A matrix of n numbers is 2 n in the forward pass, and twice that in the backward pass; norms are counted like
        // matrices. Each token has scores with t others, and a sum over t values: 2 c t each.
        let matrices = v * c + layers * (12 * c * c + 2 * c) + c;
        let attention = layers * 2 * (2 * c * t);
        let expected = 3 * (2 * matrices + attention);
        let flops = CONFIG.init(0, &device()).flops_per_token();
        assert_eq!(flops, expected as f64);
    }

    #[test]
    fn the_seed_alone_decides_the_parameters() {
        struct Collect(Vec<f32>);
        impl ModuleVisitor for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.extend(param.val().to_data().try_to_vec::<f32>().unwrap());
            }
        }
        let parameters = |seed| {
            let mut collect = Collect(Vec::new());
            CONFIG.init(seed, &device()).visit(&mut collect);
            collect.0
        };
        assert_eq!(parameters(3), parameters(3));
        assert_ne!(parameters(3), parameters(4));
    }
}
