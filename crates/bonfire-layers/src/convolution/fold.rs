//! Inputs of few channels, such as images of three colours: columns of the kernel become channels.
//!
//! A channel of the folded input is a channel as one column of the kernel sees it, so the kernel that is left is one
//! column wide. A row of a product is then filled, where three channels would leave most of it empty.

use super::Window;

/// Number of channels from which inputs are not folded.
const MANY: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Fold {
    height: usize,
    /// Width of the input, and of the folded one.
    width: [usize; 2],
    rows: usize,
    columns: usize,
    stride: usize,
    dilation: usize,
    padding: usize,
}

impl Fold {
    /// Returns the fold, the shapes of folded inputs and weights, and the window that is left; `None` where folding
    /// does not pay.
    #[allow(clippy::type_complexity, reason = "what a convolution is made of")]
    pub(super) fn of(
        input: [usize; 4],
        weight: [usize; 4],
        window: Window,
        width: usize,
    ) -> Option<(Self, [usize; 4], [usize; 4], Window)> {
        let ([samples, channels, height, from], [targets, _, rows, columns]) = (input, weight);
        if window.groups > 1 || channels >= MANY || columns == 1 || height * from == 0 {
            return None;
        }
        let fold = Self {
            height,
            width: [from, width],
            rows,
            columns,
            stride: window.stride[1],
            dilation: window.dilation[1],
            padding: window.padding[1].0,
        };
        let window = Window {
            stride: [window.stride[0], 1],
            dilation: [window.dilation[0], 1],
            padding: [window.padding[0], (0, 0)],
            groups: 1,
        };
        let channels = channels * columns;
        let (input, weight) = ([samples, channels, height, width], [targets, channels, rows, 1]);
        Some((fold, input, weight, window))
    }

    pub(super) fn input(&self, input: &[f32]) -> Vec<f32> {
        let [from, to] = self.width;
        let mut folded = vec![0.0; input.len() / from * self.columns * to];
        self.each_line(input.len(), |line, column, place| {
            let target = &mut folded[place..][..to];
            for (index, target) in target.iter_mut().enumerate() {
                if let Some(seen) = self.seen(index, column) {
                    *target = input[line + seen];
                }
            }
        });
        folded
    }

    pub(super) fn input_gradient(&self, folded: &[f32]) -> Vec<f32> {
        let [from, to] = self.width;
        let mut input = vec![0.0; folded.len() / to / self.columns * from];
        self.each_line(input.len(), |line, column, place| {
            for (index, value) in folded[place..][..to].iter().enumerate() {
                if let Some(seen) = self.seen(index, column) {
                    input[line + seen] += value;
                }
            }
        });
        input
    }

    pub(super) fn weight(&self, weight: &[f32]) -> Vec<f32> {
        transposed(weight, [self.rows, self.columns])
    }

    pub(super) fn weight_gradient(&self, folded: &[f32]) -> Vec<f32> {
        transposed(folded, [self.columns, self.rows])
    }

    /// The input column that a pixel of the folded line shows.
    fn seen(&self, index: usize, column: usize) -> Option<usize> {
        let seen = (index * self.stride + column * self.dilation).checked_sub(self.padding)?;
        (seen < self.width[0]).then_some(seen)
    }

    /// Iterates over lines of an input of `elems` values, and columns of the kernel: `run` gets where the line begins,
    /// the column, and where the folded line begins.
    fn each_line(&self, elems: usize, mut run: impl FnMut(usize, usize, usize)) {
        let [from, to] = self.width;
        let plane = self.height * from;
        for (index, line) in (0..elems).step_by(from).enumerate() {
            let (channel, row) = (line / plane, index % self.height);
            for column in 0..self.columns {
                let folded = (channel * self.columns + column) * self.height + row;
                run(line, column, folded * to);
            }
        }
    }
}

fn transposed(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut target = vec![0.0; values.len()];
    let matrices = values.chunks_exact(rows * columns);
    for (target, matrix) in target.chunks_exact_mut(rows * columns).zip(matrices) {
        for (place, value) in target.iter_mut().enumerate() {
            *value = matrix[place % rows * columns + place / rows];
        }
    }
    target
}
