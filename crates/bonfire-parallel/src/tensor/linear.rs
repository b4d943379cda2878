//! Linear layers that are divided among ranks by columns or rows.

use bonfire_train::World;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Tensor, module::linear};

use super::part::{Among, part, whole};
use crate::error::or_end_pass;
use crate::{ParallelError, ops};

/// A linear layer whose output features are divided among ranks: `[.., d_input]`, the same on all ranks, to this
/// rank's part of `[.., d_output]`.
///
/// Between it and a [`RowParallelLinear`] that takes its output, ranks do not communicate. Made of a [`Linear`] with
/// `from`, it is that layer, on one rank.
#[derive(Module, Debug)]
pub struct ColumnParallelLinear {
    /// The weight, of shape `[d_input, d_output / ranks]`.
    pub weight: Param<Tensor<2>>,
    /// The bias, of shape `[d_output / ranks]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// Number of layers that it holds, side by side.
    #[module(skip)]
    sections: usize,
    #[module(skip)]
    tp: Among,
    /// The dimension along which ranks have different tokens.
    #[module(skip)]
    sequence: Option<usize>,
}

impl From<Linear> for ColumnParallelLinear {
    fn from(Linear { weight, bias }: Linear) -> Self {
        Self { weight, bias, sections: 1, tp: None, sequence: None }
    }
}

impl ColumnParallelLinear {
    /// Takes this rank's part of a layer that is the same on all ranks of `tp`.
    ///
    /// # Errors
    /// [`ParallelError::Indivisible`] if the ranks do not divide `d_output`.
    pub fn from_linear(linear: Linear, tp: &World) -> Result<Self, ParallelError> {
        Self::from_fused(linear, 1, tp)
    }

    /// Takes this rank's part of a layer that is `sections` layers of equal width side by side, such as queries, keys
    /// and values: each rank has a part of each of them, one behind the other.
    ///
    /// # Errors
    /// [`ParallelError::Indivisible`] if the ranks do not divide the width of a section.
    pub fn from_fused(linear: Linear, sections: usize, tp: &World) -> Result<Self, ParallelError> {
        let bias = linear.bias.map(|bias| part(bias, BIAS, 0, tp, sections));
        Ok(Self {
            weight: part(linear.weight, WEIGHT, 1, tp, sections)?,
            bias: bias.transpose()?,
            sections,
            tp: Some(tp.clone()),
            sequence: None,
        })
    }

    /// Makes the layer take this rank's tokens, along dimension `dim`, and gather those of all ranks.
    #[must_use]
    pub fn with_sequence(mut self, dim: usize) -> Self {
        self.sequence = Some(dim);
        self
    }

    /// Gathers the undivided layer. Every rank of `tp` must call it.
    ///
    /// # Errors
    /// As [`ops::gather`].
    pub fn to_linear(&self) -> Result<Linear, ParallelError> {
        let Self { weight, bias, .. } = self.clone();
        let Some(tp) = &self.tp else {
            return Ok(Linear { weight, bias });
        };
        let bias = bias.map(|bias| whole(bias, 0, tp, self.sections));
        Ok(Linear { weight: whole(weight, 1, tp, self.sections)?, bias: bias.transpose()? })
    }

    /// Returns this rank's output features of `x`.
    ///
    /// # Panics
    /// If an operation between ranks fails: see [`ops`](crate::ops).
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = match &self.tp {
            None => x,
            Some(tp) => or_end_pass(entered(x, self.sequence, tp), tp),
        };
        let bias = self.bias.as_ref().map(Param::val);
        linear(x, self.weight.val(), bias)
    }
}

/// A linear layer whose input features are divided among ranks: this rank's part of `[.., d_input]` to `[..,
/// d_output]`, the same on all ranks. The bias is added once, to the sum.
///
/// Made of a [`Linear`] with `from`, it is that layer, on one rank.
#[derive(Module, Debug)]
pub struct RowParallelLinear {
    /// The weight, of shape `[d_input / ranks, d_output]`.
    pub weight: Param<Tensor<2>>,
    /// The bias, of shape `[d_output]`, the same on all ranks.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    tp: Among,
    /// The dimension along which ranks have different tokens.
    #[module(skip)]
    sequence: Option<usize>,
}

impl From<Linear> for RowParallelLinear {
    fn from(Linear { weight, bias }: Linear) -> Self {
        Self { weight, bias, tp: None, sequence: None }
    }
}

impl RowParallelLinear {
    /// Takes this rank's part of a layer that is the same on all ranks of `tp`.
    ///
    /// # Errors
    /// [`ParallelError::Indivisible`] if the ranks do not divide `d_input`.
    pub fn from_linear(linear: Linear, tp: &World) -> Result<Self, ParallelError> {
        Ok(Self {
            weight: part(linear.weight, WEIGHT, 0, tp, 1)?,
            bias: linear.bias,
            tp: Some(tp.clone()),
            sequence: None,
        })
    }

    /// Leaves each rank the output for its own tokens, along dimension `dim`. The gradient of the bias is the sum over
    /// the ranks.
    #[must_use]
    pub fn with_sequence(mut self, dim: usize) -> Self {
        self.sequence = Some(dim);
        self
    }

    /// Gathers the undivided layer. Every rank of `tp` must call it.
    ///
    /// # Errors
    /// As [`ops::gather`].
    pub fn to_linear(&self) -> Result<Linear, ParallelError> {
        let Self { weight, bias, .. } = self.clone();
        let weight = match &self.tp {
            None => weight,
            Some(tp) => whole(weight, 0, tp, 1)?,
        };
        Ok(Linear { weight, bias })
    }

    /// Returns the output for all ranks' input features, of which `x` has this rank's.
    ///
    /// # Panics
    /// If an operation between ranks fails: see [`ops`](crate::ops).
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.weight.val();
        let bias = self.bias.as_ref().map(Param::val);
        let Some(tp) = &self.tp else {
            return linear(x, weight, bias);
        };
        let sum = left(linear(x, weight, None), self.sequence, tp);
        or_end_pass(sum.and_then(|sum| biased(sum, bias, self.sequence, tp)), tp)
    }
}

fn biased<const D: usize>(
    sum: Tensor<D>,
    bias: Option<Tensor<1>>,
    sequence: Option<usize>,
    tp: &World,
) -> Result<Tensor<D>, ParallelError> {
    let bias = match (bias, sequence) {
        (None, _) => return Ok(sum),
        (Some(bias), None) => bias,
        // It is added to some of the tokens only.
        (Some(bias), Some(_)) => ops::copy(bias, tp)?,
    };
    Ok(sum + bias.unsqueeze())
}

/// The input of a divided layer: all tokens on all ranks.
pub(super) fn entered<const D: usize>(
    x: Tensor<D>,
    sequence: Option<usize>,
    tp: &World,
) -> Result<Tensor<D>, ParallelError> {
    match sequence {
        None => ops::copy(x, tp),
        Some(dim) => ops::gather(x, dim, tp),
    }
}

/// The output of a divided layer: the sum, of all tokens or of this rank's.
pub(super) fn left<const D: usize>(
    x: Tensor<D>,
    sequence: Option<usize>,
    tp: &World,
) -> Result<Tensor<D>, ParallelError> {
    match sequence {
        None => ops::reduce(x, tp),
        Some(dim) => ops::reduce_scatter(x, dim, tp),
    }
}

const WEIGHT: &str = "the weight of a linear layer";
const BIAS: &str = "the bias of a linear layer";
