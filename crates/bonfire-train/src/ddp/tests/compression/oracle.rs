//! PowerSGD, written down as the paper has it.

use super::*;

/// A matrix on all ranks, compressed as the paper says, in f64.
pub(super) struct Oracle {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Vector by vector.
    right: Vec<Vec<f64>>,
    errors: Vec<Vec<f64>>,
}

impl Oracle {
    /// With the random factor that the documentation describes.
    pub(super) fn new(
        config: PowerSgdConfig,
        parameter: u64,
        dims: (usize, usize),
        ranks: usize,
    ) -> Self {
        let (rows, cols) = dims;
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        rng.set_stream(parameter);
        let mut vector = |_| {
            let value = |_| f64::from(rng.random_range(-1.0_f32..1.0));
            (0..cols).map(value).collect::<Vec<f64>>()
        };
        Self {
            rows,
            cols,
            right: (0..config.rank).map(&mut vector).collect(),
            errors: vec![vec![0.0; rows * cols]; ranks],
        }
    }

    pub(super) fn step(&mut self, gradients: &[&Vec<f32>]) -> Vec<f64> {
        let (rows, cols) = (self.rows, self.cols);
        let with_errors = gradients.iter().zip(&self.errors);
        let matrices: Vec<Vec<f64>> = with_errors
            .map(|(g, e)| g.iter().zip(e).map(|(g, e)| f64::from(*g) + e).collect())
            .collect();
        let count = matrices.len() as f64;
        let mean: Vec<f64> = (0..rows * cols)
            .map(|index| matrices.iter().map(|m| m[index]).sum::<f64>() / count)
            .collect();
        orthonormal(&mut self.right);
        let times = |right: &Vec<f64>| -> Vec<f64> {
            let row = |row: usize| (0..cols).map(|col| mean[row * cols + col] * right[col]).sum();
            (0..rows).map(row).collect()
        };
        let mut left: Vec<Vec<f64>> = self.right.iter().map(times).collect();
        orthonormal(&mut left);
        let transposed = |left: &Vec<f64>| -> Vec<f64> {
            let col = |col: usize| (0..rows).map(|row| mean[row * cols + col] * left[row]).sum();
            (0..cols).map(col).collect()
        };
        self.right = left.iter().map(transposed).collect();
        let sent: Vec<f64> = (0..rows * cols)
            .map(|index| {
                let (row, col) = (index / cols, index % cols);
                let pairs = left.iter().zip(&self.right);
                pairs.map(|(left, right)| left[row] * right[col]).sum()
            })
            .collect();
        for (error, matrix) in self.errors.iter_mut().zip(&matrices) {
            *error = matrix.iter().zip(&sent).map(|(m, s)| m - s).collect();
        }
        sent
    }
}

fn orthonormal(vectors: &mut [Vec<f64>]) {
    for index in 0..vectors.len() {
        let (before, rest) = vectors.split_at_mut(index);
        let vector = &mut rest[0];
        for other in before {
            let along: f64 = vector.iter().zip(&*other).map(|(v, o)| v * o).sum();
            vector.iter_mut().zip(other).for_each(|(v, o)| *v -= along * *o);
        }
        let norm = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|v| *v /= norm);
    }
}

pub(super) fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}
