//! PowerSGD: gradients of matrices as two thin factors, found by one step of power iteration.
//!
//! After Vogels, Karimireddy and Jaggi (2019, arXiv 1905.13727) and PyTorch's `powerSGD_hook.py`. With
//! a matrix M on every rank, and a thin Q that is the same on all:
//!
//! 1. P = mean(M Q), made orthogonal: each rank sends `rank` numbers for each row;
//! 2. Q = mean(Mᵀ P): each rank sends `rank` numbers for each column;
//! 3. the gradient is P Qᵀ, and each rank keeps its error from M for the next step.
//!
//! The error belongs to parameters, not to buckets, so it survives a change of buckets.

use bonfire_plan::DType;
use chacha20::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::config::PowerSgdConfig;
use super::matrix::{Dims, orthogonalize, product_row, times, transposed_times};
use super::{CompressionError, Parameter};

impl PowerSgdConfig {
    pub(super) fn check(&self) -> Result<(), CompressionError> {
        let (rate, epsilon) = (self.compression_rate_min, self.orthogonalization_epsilon);
        if self.rank == 0 {
            return Err(CompressionError::ZeroRank);
        }
        if !(rate.is_finite() && rate > 0.0) {
            return Err(CompressionError::UnusableRate { rate });
        }
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            return Err(CompressionError::UnusableEpsilon { epsilon });
        }
        Ok(())
    }

    /// The dimensions of a parameter as a matrix, if it is worth compressing.
    fn dims_of(&self, parameter: Parameter<'_>) -> Option<Dims> {
        let elems: usize = parameter.shape.iter().product();
        if parameter.dtype != DType::F32 || parameter.shape.len() < 2 || elems == 0 {
            return None;
        }
        let rows = parameter.shape[0];
        let cols = elems / rows;
        let rank = self.rank.min(rows).min(cols);
        let compressed = ((rows + cols) * rank) as f64;
        let worth = compressed * self.compression_rate_min < elems as f64;
        worth.then_some(Dims { rows, cols, rank })
    }
}

#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) name: String,
    pub(super) dims: Dims,
    /// The error of earlier steps in this rank's gradients; empty without error feedback.
    pub(super) error: Vec<f32>,
    /// The right factor from which the next step starts.
    pub(super) right: Vec<f32>,
    /// True if `right` is of a previous step.
    pub(super) warm: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Somewhere,
    Nowhere,
}

#[derive(Debug)]
pub(super) struct PowerSgd {
    config: PowerSgdConfig,
    pub(super) step: u64,
    /// `None` for parameters that are not compressed.
    pub(super) matrices: Vec<Option<Matrix>>,
    row: Vec<f32>,
}

impl PowerSgd {
    pub(super) fn new<'a>(
        config: PowerSgdConfig,
        parameters: impl IntoIterator<Item = Parameter<'a>>,
    ) -> Self {
        let matrix = |parameter: Parameter<'_>| {
            let dims = config.dims_of(parameter)?;
            let error = if config.error_feedback { vec![0.0; dims.elems()] } else { Vec::new() };
            Some(Matrix {
                name: parameter.name.to_owned(),
                dims,
                error,
                right: vec![0.0; dims.right_elems()],
                warm: false,
            })
        };
        let matrices: Vec<Option<Matrix>> = parameters.into_iter().map(matrix).collect();
        let widest = matrices.iter().flatten().map(|matrix| matrix.dims.cols).max();
        Self { config, step: 0, matrices, row: vec![0.0; widest.unwrap_or(0)] }
    }

    pub(super) fn is_on(&self) -> bool {
        self.step >= self.config.start_step
    }

    pub(super) fn end_step(&mut self) {
        self.step += 1;
    }

    pub(super) fn dims(&self, parameter: usize) -> Option<Dims> {
        self.matrices[parameter].as_ref().map(|matrix| matrix.dims)
    }

    /// Adds the error of earlier steps to a gradient, and computes the left factor of the sum.
    pub(super) fn project(&mut self, parameter: usize, values: &mut [f32], left: &mut [f32]) {
        let (config, step) = (self.config, self.step);
        let matrix = self.matrix(parameter);
        for (value, error) in values.iter_mut().zip(&matrix.error) {
            *value += error;
        }
        matrix.aim(config, parameter, step);
        times(values, matrix.dims, &matrix.right, left);
    }

    /// Makes the left factor orthogonal, and computes its right factor. Only the left one is the mean over the ranks.
    pub(super) fn reflect(
        &mut self,
        parameter: usize,
        values: &[f32],
        left: &mut [f32],
        right: &mut [f32],
    ) {
        let epsilon = self.config.orthogonalization_epsilon;
        let dims = self.matrix(parameter).dims;
        orthogonalize(left, dims.rows, epsilon);
        transposed_times(values, dims, left, right);
    }

    /// Replaces a gradient by the product of the factors, which are the mean over the ranks, and keeps the error. If
    /// the step does not count for this parameter, because no rank had a gradient or a number overflowed on some rank,
    /// the earlier error stays.
    pub(super) fn finish(
        &mut self,
        parameter: usize,
        values: &mut [f32],
        left: &[f32],
        right: &[f32],
        presence: Presence,
    ) {
        let warm_start = self.config.warm_start;
        let matrix = self.matrices[parameter].as_mut().expect(IS_MATRIX);
        let dims = matrix.dims;
        // All ranks have the same factors, so all come to the same verdict.
        let finite = |factor: &[f32]| factor.iter().all(|value| value.is_finite());
        if !finite(left) || !finite(right) {
            matrix.warm = false;
            return values.fill(f32::NAN);
        }
        matrix.warm = warm_start;
        matrix.right.copy_from_slice(right);
        let row = &mut self.row[..dims.cols];
        let keeps = presence == Presence::Somewhere && !matrix.error.is_empty();
        for (index, values) in values.chunks_exact_mut(dims.cols).enumerate() {
            product_row(dims, left, right, index, row);
            if keeps {
                let errors = &mut matrix.error[index * dims.cols..][..dims.cols];
                for ((error, value), sent) in errors.iter_mut().zip(values.iter()).zip(&*row) {
                    *error = value - sent;
                }
            }
            values.copy_from_slice(row);
        }
    }

    fn matrix(&mut self, parameter: usize) -> &mut Matrix {
        self.matrices[parameter].as_mut().expect(IS_MATRIX)
    }
}

const IS_MATRIX: &str = "only compressed parameters come here";

impl Matrix {
    /// Makes the right factor from which a step starts: orthogonal, from the previous step or random.
    fn aim(&mut self, config: PowerSgdConfig, parameter: usize, step: u64) {
        let cols = self.dims.cols;
        let mut random = ChaCha8Rng::seed_from_u64(config.seed);
        random.set_stream(parameter as u64);
        random.set_word_pos(u128::from(step) * WORDS_PER_STEP);
        let mut fill = |vector: &mut [f32]| {
            vector.fill_with(|| random.random_range(-1.0..1.0));
        };
        if !self.warm {
            fill(&mut self.right);
        }
        orthogonalize(&mut self.right, cols, config.orthogonalization_epsilon);
        // A gradient of lower rank leaves directions that lead nowhere, for ever unless replaced.
        let mut lost = false;
        for vector in self.right.chunks_exact_mut(cols) {
            if vector.iter().all(|value| *value == 0.0) {
                fill(vector);
                lost = true;
            }
        }
        if lost {
            orthogonalize(&mut self.right, cols, config.orthogonalization_epsilon);
        }
    }
}

/// More than any matrix takes; the generator has 2^68 words in all.
const WORDS_PER_STEP: u128 = 1 << 34;
