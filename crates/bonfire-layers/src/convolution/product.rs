//! The products of a convolution, in vectors as wide as the machine has them.
//!
//! A convolution is a sum of products of matrices, one for each tap: the samples of a pixel by channels of the input,
//! times the tap's weights. The operands are in the layout of [`panels`](super::panels), so nothing is copied for a
//! product, and sums stay in registers over all taps and channels. Sums have a fixed order, whatever the number of
//! threads; processors with fused multiplication and addition round less often than others.

use pulp::{Arch, Simd, WithSimd};

use super::geometry::{Link, Links};
use super::panels::{Channels, Row, SIDE};
use crate::in_pieces;

/// The samples of one side, with its numbers of channels and pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side<'a> {
    rows: &'a [Row],
    channels: usize,
    pixels: usize,
}

impl<'a> Side<'a> {
    /// Some channels of a tensor, as [`gathered`](super::panels::gathered) gives them.
    pub(super) fn new(rows: &'a [Row], channels: Channels) -> Self {
        Self { rows, channels: channels.count, pixels: channels.pixels }
    }
}

/// For each pixel of the result the sum over `links`: the linked pixel of `source`, times the weights of the link's tap.
pub(super) fn linked_sums(
    source: Side<'_>,
    weights: &[Row],
    samples: usize,
    links: &Links,
    taps: usize,
    target: Channels,
) -> Vec<Row> {
    let (channels, pixels) = (target.count, target.pixels);
    let mut rows = vec![[0.0; SIDE]; channels.div_ceil(SIDE) * pixels * samples];
    let per_panel = source.channels.div_ceil(SIDE) * taps * SIDE;
    in_pieces(&mut rows, samples, |index, target| {
        Arch::new().dispatch(LinkedSum {
            source,
            weights: &weights[index / pixels * per_panel..][..per_panel],
            links: links.of(index % pixels),
            taps,
            target,
        });
    });
    rows
}

/// [`linked_sums`] for one pixel and one panel.
struct LinkedSum<'a> {
    source: Side<'a>,
    weights: &'a [Row],
    links: &'a [Link],
    taps: usize,
    target: &'a mut [Row],
}

impl WithSimd for LinkedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.run::<S, 1>(simd),
            8 => self.run::<S, 2>(simd),
            4 => self.run::<S, 4>(simd),
            _ => self.run::<S, SIDE>(simd),
        }
    }
}

impl LinkedSum<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(mut self, simd: S) {
        let samples = self.target.len();
        let mut sample = 0;
        while sample < samples {
            sample += match samples - sample {
                12.. if V == 1 => self.block::<S, V, 12>(simd, sample),
                // Two of four go faster than one of six and one of two.
                6..8 | 9.. => self.block::<S, V, 6>(simd, sample),
                4.. => self.block::<S, V, 4>(simd, sample),
                2.. => self.block::<S, V, 2>(simd, sample),
                _ => self.block::<S, V, 1>(simd, sample),
            };
        }
    }

    #[inline(always)]
    fn block<S: Simd, const V: usize, const R: usize>(&mut self, simd: S, sample: usize) -> usize {
        let samples = self.target.len();
        let Side { rows, channels, pixels } = self.source;
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        for link in self.links {
            for panel in 0..channels.div_ceil(SIDE) {
                let from = (panel * pixels + link.pixel) * samples + sample;
                let source: &[Row; R] = rows[from..from + R].try_into().expect("of this length");
                let weights = &self.weights[(panel * self.taps + link.tap) * SIDE..][..SIDE];
                let weights: &[Row; SIDE] = weights.try_into().expect("of this length");
                let depth = channels - panel * SIDE;
                if depth >= SIDE {
                    for (k, weights) in weights.iter().enumerate() {
                        add::<S, V, R>(simd, &mut sums, weights, |r| source[r][k]);
                    }
                } else {
                    for (k, weights) in weights[..depth].iter().enumerate() {
                        add::<S, V, R>(simd, &mut sums, weights, |r| source[r][k]);
                    }
                }
            }
        }
        for (target, sums) in self.target[sample..].iter_mut().zip(sums) {
            let target = S::as_mut_simd_f32s(target).0;
            target.iter_mut().zip(sums).for_each(|(target, sum)| *target = sum);
        }
        R
    }
}

/// Adds the products of R numbers and a row to R rows.
#[inline(always)]
fn add<S: Simd, const V: usize, const R: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; R],
    row: &Row,
    factor: impl Fn(usize) -> f32,
) {
    let row = S::as_simd_f32s(row).0;
    for (r, sums) in sums.iter_mut().enumerate() {
        let factor = simd.splat_f32s(factor(r));
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum = simd.mul_add_e_f32s(factor, *value, *sum);
        }
    }
}

/// For each tap the sum over pixels of `target` and samples: channels of the linked pixel of `source`, times channels of
/// `target`. Blocks are in the order of weights whose columns are channels of `target`.
pub(super) fn outer_sums(
    source: Side<'_>,
    target: Side<'_>,
    samples: usize,
    links: &Links,
    taps: usize,
) -> Vec<Row> {
    let panels = source.channels.div_ceil(SIDE);
    let blocks = panels * target.channels.div_ceil(SIDE);
    let mut rows = vec![[0.0; SIDE]; blocks * taps * SIDE];
    in_pieces(&mut rows, taps * SIDE, |index, block| {
        let part = |side: Side<'_>, panel: usize| panel * side.pixels * samples;
        let (from, to) = (part(source, index % panels), part(target, index / panels));
        for pixel in 0..target.pixels {
            let target = &target.rows[to + pixel * samples..][..samples];
            for link in links.of(pixel) {
                Arch::new().dispatch(OuterSum {
                    source: &source.rows[from + link.pixel * samples..][..samples],
                    target,
                    depth: source.channels - index % panels * SIDE,
                    sums: &mut block[link.tap * SIDE..][..SIDE],
                });
            }
        }
    });
    rows
}

struct OuterSum<'a> {
    source: &'a [Row],
    target: &'a [Row],
    depth: usize,
    sums: &'a mut [Row],
}

impl WithSimd for OuterSum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.run::<S, 1>(simd),
            8 => self.run::<S, 2>(simd),
            4 => self.run::<S, 4>(simd),
            _ => self.run::<S, SIDE>(simd),
        }
    }
}

impl OuterSum<'_> {
    #[inline(always)]
    fn run<S: Simd, const V: usize>(mut self, simd: S) {
        if self.depth <= 4 {
            return self.block::<S, V, 0, 4>(simd);
        }
        self.block::<S, V, 0, 6>(simd);
        if self.depth > 6 {
            self.block::<S, V, 6, 6>(simd);
        }
        if self.depth > 12 {
            self.block::<S, V, 12, 4>(simd);
        }
    }

    /// R channels of the source from C on.
    #[inline(always)]
    fn block<S: Simd, const V: usize, const C: usize, const R: usize>(&mut self, simd: S) {
        let mut sums = [[simd.splat_f32s(0.0); V]; R];
        for (source, target) in self.source.iter().zip(self.target) {
            add::<S, V, R>(simd, &mut sums, target, |r| source[C + r]);
        }
        for (target, sums) in self.sums[C..].iter_mut().zip(sums) {
            let target = S::as_mut_simd_f32s(target).0;
            for (target, sum) in target.iter_mut().zip(sums) {
                *target = simd.add_f32s(*target, sum);
            }
        }
    }
}
