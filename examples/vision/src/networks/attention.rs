//! Multi-head self-attention over the pixels of a feature map, with relative positions in both
//! dimensions: Bello et al. 2019 (arXiv 1904.09925), as BoTNet uses it (arXiv 2101.11605, figure 4).
//!
//! Shapes in comments: `B` pictures, `N` heads of `D` channels, height `H`, width `W`.

use bonfire::nn::conv2d;
use burn::module::{Module, Param};
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};

use crate::networks::draw::{Channels, Draw};

/// Self-attention over feature maps of one size.
#[derive(Module, Debug)]
pub struct Attention {
    /// Queries, then keys, then values, each `N * D` channels.
    query_key_value: Conv2d,
    /// One row per distance from `1 - H` to `H - 1`: `[2 * H - 1, D]`.
    rel_height: Param<Tensor<2>>,
    /// `[2 * W - 1, D]`.
    rel_width: Param<Tensor<2>>,
    heads: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionSizes {
    /// Channels of input and output; the heads divide them.
    pub(crate) channels: usize,
    pub(crate) heads: usize,
    /// Height and width of the feature map in pixels.
    pub(crate) map: [usize; 2],
}

impl Attention {
    pub(crate) fn new(sizes: AttentionSizes, draw: &mut Draw) -> Self {
        let AttentionSizes { channels, heads, map: [height, width] } = sizes;
        assert_eq!(channels % heads, 0, "{heads} heads share {channels}");
        let depth = channels / heads;
        let std = 1.0 / (depth as f64).sqrt();
        Self {
            query_key_value: draw.projection(Channels { source: channels, target: 3 * channels }),
            rel_height: draw.normal([2 * height - 1, depth], std),
            rel_width: draw.normal([2 * width - 1, depth], std),
            heads,
        }
    }

    /// Applies attention: `[B, N * D, H, W]` to the same shape.
    ///
    /// # Panics
    /// If the feature map is not of the size that the positions were made for.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [batch, channels, height, width] = input.dims();
        let (rows, columns) = (self.rel_height.dims()[0], self.rel_width.dims()[0]);
        assert_eq!(
            [2 * height - 1, 2 * width - 1],
            [rows, columns],
            "the positions are those of another feature map than {height} x {width}"
        );
        let (heads, depth, pixels) = (self.heads, channels / self.heads, height * width);
        let parts = conv2d(&self.query_key_value, input); // [B, 3 * N * D, H, W]
        let parts = parts.reshape([batch, 3, heads, depth, pixels]);
        let parts = parts.permute([1, 0, 2, 4, 3]); // [3, B, N, H * W, D]
        let part = |i: usize| {
            let part = parts.clone().slice(i..i + 1);
            part.reshape([batch * heads, pixels, depth])
        };
        let (query, key, value) = (part(0), part(1), part(2)); // [B * N, H * W, D] each
        let query = query.div_scalar((depth as f64).sqrt());
        let by_place = self.position_scores(query.clone(), [height, width]);
        let scores = query.matmul(key.transpose()) + by_place; // [B * N, H * W, H * W]
        let seen = activation::softmax(scores, 2).matmul(value); // [B * N, H * W, D]
        seen.transpose().reshape([batch, channels, height, width])
    }

    /// The scores of relative positions: queries `[B * N, H * W, D]` to `[B * N, H * W, H * W]`.
    fn position_scores(&self, query: Tensor<3>, map: [usize; 2]) -> Tensor<3> {
        let [height, width] = map;
        let [maps, pixels, depth] = query.dims();
        let query = query.reshape([maps, height, width, depth]);

        let rows = query.clone().permute([1, 0, 2, 3]); // [H, B * N, W, D]
        let rows = rows.reshape([height, maps * width, depth]);
        let rows = rows.matmul(distances(self.rel_height.val())); // [H, B * N * W, H']
        let rows = rows.reshape([height, maps, width, height, 1]);
        let rows = rows.permute([1, 0, 2, 3, 4]); // [B * N, H, W, H', 1]

        let columns = query.permute([2, 0, 1, 3]); // [W, B * N, H, D]
        let columns = columns.reshape([width, maps * height, depth]);
        let columns = columns.matmul(distances(self.rel_width.val())); // [W, B * N * H, W']
        let columns = columns.reshape([width, maps, height, 1, width]);
        let columns = columns.permute([1, 2, 0, 3, 4]); // [B * N, H, W, 1, W']

        (rows + columns).reshape([maps, pixels, pixels])
    }
}

/// The embeddings of all distances: `[2 * L - 1, D]` to `[L, D, L]`.
fn distances(table: Tensor<2>) -> Tensor<3> {
    let [rows, depth] = table.dims();
    let len = rows.div_ceil(2);
    let index = indices(len, &table.device());
    let table = table.select(0, index); // [L * L, D]
    table.reshape([len, len, depth]).swap_dims(1, 2)
}

/// For positions `from` and `to` the row of their distance: `to - from + len - 1`.
fn indices(len: usize, device: &Device) -> Tensor<1, Int> {
    let row = |from: usize| (0..len).map(move |to| (to + len - 1 - from) as i32);
    let rows: Vec<i32> = (0..len).flat_map(row).collect();
    Tensor::from_data(TensorData::new(rows, [len * len]), device)
}

#[cfg(test)]
mod tests;
