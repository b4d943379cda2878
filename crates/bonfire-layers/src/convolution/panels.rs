//! Tensors and weights as the products read them: rows of [`SIDE`] channels, which lie side by side in memory. The
//! last row of a group may have fewer channels, and is filled with zeros.
//!
//! Rows of a tensor are in the order panel (of channels), pixel, sample; those of weights in the order panel of the
//! product's columns, panel of its depth, tap, channel of the depth.

use super::geometry::Geometry;
use crate::in_pieces;

pub(super) const SIDE: usize = 16;

pub(super) type Row = [f32; SIDE];

/// Samples whose pixels are copied together.
const SAMPLES: usize = 16;

/// A range of channels of a tensor `[samples, channels, pixels]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    pub(super) all: usize,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) pixels: usize,
}

impl Channels {
    pub(super) fn source(geometry: &Geometry, group: usize) -> Self {
        Self::of(geometry, geometry.source_channels, group, geometry.source_pixels())
    }

    pub(super) fn target(geometry: &Geometry, group: usize) -> Self {
        Self::of(geometry, geometry.target_channels, group, geometry.target_pixels())
    }

    fn of(geometry: &Geometry, count: usize, group: usize, pixels: usize) -> Self {
        Self { all: count * geometry.groups, first: group * count, count, pixels }
    }

    fn panels(self) -> usize {
        self.count.div_ceil(SIDE)
    }

    /// The offset of a panel's channels in a sample, and their number.
    fn panel(self, panel: usize) -> (usize, usize) {
        let depth = (self.count - panel * SIDE).min(SIDE);
        ((self.first + panel * SIDE) * self.pixels, depth)
    }
}

pub(super) fn gathered(values: &[f32], samples: usize, channels: Channels) -> Vec<Row> {
    let pixels = channels.pixels;
    let mut rows = vec![[0.0; SIDE]; channels.panels() * pixels * samples];
    in_pieces(&mut rows, pixels * samples, |panel, rows| {
        let (first, depth) = channels.panel(panel);
        for_blocks(samples, pixels, |sample, begin, width| {
            let lines = &values[sample * channels.all * pixels + first..][..depth * pixels];
            let mut block = [[0.0; SIDE]; SIDE];
            for (row, line) in block.iter_mut().zip(lines.chunks_exact(pixels)) {
                row[..width].copy_from_slice(&line[begin..begin + width]);
            }
            let rows = rows[begin * samples..].chunks_mut(samples);
            for (rows, row) in rows.zip(transposed(&block, width)).take(width) {
                rows[sample] = row;
            }
        });
    });
    rows
}

/// Puts rows into some channels of a tensor, with `bias` added to each channel.
pub(super) fn scatter(
    rows: &[Row],
    bias: Option<&[f32]>,
    target: &mut [f32],
    samples: usize,
    channels: Channels,
) {
    let pixels = channels.pixels;
    let len = channels.all * pixels;
    in_pieces(target, SAMPLES * len, |piece, target| {
        let begin = piece * SAMPLES;
        for (panel, rows) in rows.chunks_exact(pixels * samples).enumerate() {
            let (first, depth) = channels.panel(panel);
            let mut shift = [0.0; SIDE];
            if let Some(bias) = bias {
                shift[..depth].copy_from_slice(&bias[channels.first + panel * SIDE..][..depth]);
            }
            for_blocks(target.len() / len, pixels, |sample, pixel, width| {
                let mut block = [[0.0; SIDE]; SIDE];
                let rows = rows[pixel * samples..].chunks(samples);
                for (block, rows) in block.iter_mut().zip(rows).take(width) {
                    let row = rows[begin + sample].iter().zip(shift);
                    let shifted = row.map(|(value, shift)| value + shift);
                    block.iter_mut().zip(shifted).for_each(|(to, from)| *to = from);
                }
                let lines = &mut target[sample * len + first..][..depth * pixels];
                let lines = lines.chunks_exact_mut(pixels);
                for (line, row) in lines.zip(transposed(&block, SIDE)) {
                    line[pixel..pixel + width].copy_from_slice(&row[..width]);
                }
            });
        }
    });
}

/// Iterates over blocks of up to [`SIDE`] pixels of some samples, so that the same few memory pages are used for a
/// while: `run` gets the sample, the first pixel, and their number.
fn for_blocks(samples: usize, pixels: usize, mut run: impl FnMut(usize, usize, usize)) {
    for first in (0..samples).step_by(SAMPLES) {
        for begin in (0..pixels).step_by(SIDE) {
            for sample in first..samples.min(first + SAMPLES) {
                run(sample, begin, (pixels - begin).min(SIDE));
            }
        }
    }
}

#[inline]
fn transposed(block: &[Row; SIDE], width: usize) -> [Row; SIDE] {
    let mut target = [[0.0; SIDE]; SIDE];
    for (i, row) in target.iter_mut().enumerate().take(width) {
        for (value, row) in row.iter_mut().zip(block) {
            *value = row[i];
        }
    }
    target
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// The channels of the output: for the forward pass.
    Target,
    /// The channels of the input: for the backward pass.
    Source,
}

/// The weights of a group, `[target, source, taps]`, of the taps in use.
pub(super) fn packed(
    weight: &[f32],
    geometry: &Geometry,
    taps: &[usize],
    columns: Columns,
) -> Vec<Row> {
    let (targets, sources) = (geometry.target_channels, geometry.source_channels);
    let all_taps = geometry.kernel_taps();
    let (outer, inner) = match columns {
        Columns::Target => (targets, sources),
        Columns::Source => (sources, targets),
    };
    let depth_panels = inner.div_ceil(SIDE);
    let per_block = taps.len() * SIDE;
    let mut rows = vec![[0.0; SIDE]; outer.div_ceil(SIDE) * depth_panels * per_block];
    in_pieces(&mut rows, per_block, |block, rows| {
        let (column, depth) = (block / depth_panels * SIDE, block % depth_panels * SIDE);
        let (target, source) = match columns {
            Columns::Target => (column, depth),
            Columns::Source => (depth, column),
        };
        for i in 0..(targets - target).min(SIDE) {
            let count = (sources - source).min(SIDE);
            let line = &weight[((target + i) * sources + source) * all_taps..][..count * all_taps];
            for (j, line) in line.chunks_exact(all_taps).enumerate() {
                for (rows, &tap) in rows.chunks_exact_mut(SIDE).zip(taps) {
                    match columns {
                        Columns::Target => rows[j][i] = line[tap],
                        Columns::Source => rows[i][j] = line[tap],
                    }
                }
            }
        }
    });
    rows
}

/// The gradient of a group's weights from the blocks of a product, whose columns are the channels of the output.
pub(super) fn unpack(rows: &[Row], geometry: &Geometry, taps: &[usize], weight: &mut [f32]) {
    let (sources, all_taps) = (geometry.source_channels, geometry.kernel_taps());
    let per_block = taps.len() * SIDE;
    if per_block == 0 {
        return;
    }
    let depth_panels = sources.div_ceil(SIDE);
    in_pieces(weight, sources * all_taps, |target, line| {
        let blocks = &rows[target / SIDE * depth_panels * per_block..][..depth_panels * per_block];
        let column = target % SIDE;
        let lines = line.chunks_mut(SIDE * all_taps);
        for (line, rows) in lines.zip(blocks.chunks_exact(per_block)) {
            for (j, line) in line.chunks_exact_mut(all_taps).enumerate() {
                for (rows, &tap) in rows.chunks_exact(SIDE).zip(taps) {
                    line[tap] = rows[j][column];
                }
            }
        }
    });
}
