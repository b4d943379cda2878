//! The state of compression between steps, for a checkpoint.

use bonfire_collective::{CollectiveError, ProcessGroup};
use serde::{Deserialize, Serialize};

use super::matrix::Dims;
use super::power_sgd::Matrix;
use super::{CompressionError, Compressor};

/// The state of PowerSGD between steps, of all ranks: part of the program's own state in a checkpoint. Empty for other
/// compressions, which have none.
///
/// It holds a copy of the compressed gradients for every rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompressionState {
    steps: u64,
    matrices: Vec<SavedMatrix>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SavedMatrix {
    parameter: String,
    rows: usize,
    cols: usize,
    rank: usize,
    /// The right factor; `None` before the first compressed step.
    right: Option<Vec<f32>>,
    /// The error of each rank; empty without error feedback.
    errors: Vec<Vec<f32>>,
}

impl SavedMatrix {
    fn dims(&self) -> Dims {
        Dims { rows: self.rows, cols: self.cols, rank: self.rank }
    }

    /// The error from which a rank continues: its own, or the mean over the ranks if their number has changed. Either
    /// way the mean over the new ranks is that over the old ones.
    fn error_of(&self, rank: usize, world_size: usize) -> Option<Vec<f32>> {
        let (first, others) = self.errors.split_first()?;
        if self.errors.len() == world_size {
            return self.errors.get(rank).cloned();
        }
        let mut mean = first.clone();
        for error in others {
            mean.iter_mut().zip(error).for_each(|(sum, e)| *sum += e);
        }
        let count = self.errors.len() as f32;
        mean.iter_mut().for_each(|sum| *sum /= count);
        Some(mean)
    }

    /// Returns true if a parameter can continue from it. It may come from a file, so sizes are checked.
    fn fits(&self, matrix: &Matrix) -> bool {
        let dims = matrix.dims;
        let right = self.right.as_ref();
        self.parameter == matrix.name
            && self.dims() == dims
            && self.errors.is_empty() == matrix.error.is_empty()
            && self.errors.iter().all(|error| error.len() == dims.elems())
            && right.is_none_or(|right| right.len() == dims.right_elems())
    }
}

impl Compressor {
    /// Gathers the state of all ranks. Every rank must call it.
    ///
    /// # Errors
    /// [`CollectiveError`] if a rank failed.
    #[track_caller]
    pub(crate) fn state(&self, group: &ProcessGroup) -> Result<CompressionState, CollectiveError> {
        let Some(power_sgd) = &self.power_sgd else {
            return Ok(CompressionState::default());
        };
        let mut matrices = Vec::new();
        for matrix in power_sgd.matrices.iter().flatten() {
            let errors: Vec<f32> = group.all_gather(&matrix.error)?;
            let dims = matrix.dims;
            matrices.push(SavedMatrix {
                parameter: matrix.name.clone(),
                rows: dims.rows,
                cols: dims.cols,
                rank: dims.rank,
                right: matrix.warm.then(|| matrix.right.clone()),
                errors: errors.chunks_exact(dims.elems()).map(<[f32]>::to_vec).collect(),
            });
        }
        Ok(CompressionState { steps: power_sgd.step, matrices })
    }

    /// Restores a state that every rank has.
    ///
    /// # Errors
    /// [`CompressionError`] if the state belongs to another model or configuration. Nothing is changed then.
    pub(crate) fn restore(
        &mut self,
        state: &CompressionState,
        group: &ProcessGroup,
    ) -> Result<(), CompressionError> {
        let Some(power_sgd) = &mut self.power_sgd else {
            // A lone rank compresses nothing, whatever its configuration.
            return if group.world_size().get() == 1 || state.matrices.is_empty() {
                Ok(())
            } else {
                Err(CompressionError::NothingToRestore)
            };
        };
        if *state == CompressionState::default() {
            return Ok(());
        }
        // Nothing is taken over before everything is seen to fit.
        let mut compressed: Vec<&mut Matrix> = power_sgd.matrices.iter_mut().flatten().collect();
        for (place, matrix) in compressed.iter().enumerate() {
            let found = state.matrices.get(place);
            if !found.is_some_and(|found| found.fits(matrix)) {
                return Err(other_matrix(found, matrix));
            }
        }
        if let Some(more) = state.matrices.get(compressed.len()) {
            return Err(CompressionError::OtherMatrix {
                parameter: more.parameter.clone(),
                saved: describe(more.dims(), !more.errors.is_empty()),
                expected: "none".to_owned(),
            });
        }
        for (matrix, found) in compressed.iter_mut().zip(&state.matrices) {
            matrix.warm = found.right.is_some();
            if let Some(right) = &found.right {
                matrix.right.copy_from_slice(right);
            }
            let own = found.error_of(group.rank().index(), group.world_size().len());
            matrix.error = own.unwrap_or_default();
        }
        power_sgd.step = state.steps;
        Ok(())
    }
}

fn other_matrix(found: Option<&SavedMatrix>, matrix: &Matrix) -> CompressionError {
    let of_this = |saved: &&SavedMatrix| saved.parameter == matrix.name;
    CompressionError::OtherMatrix {
        parameter: matrix.name.clone(),
        saved: match found.filter(of_this) {
            None => "none".to_owned(),
            Some(saved) => describe(saved.dims(), !saved.errors.is_empty()),
        },
        expected: describe(matrix.dims, !matrix.error.is_empty()),
    }
}

fn describe(dims: Dims, fed_back: bool) -> String {
    let Dims { rows, cols, rank } = dims;
    let feedback = if fed_back { "with" } else { "without" };
    format!("a matrix of {rows} x {cols} at rank {rank} {feedback} error feedback")
}
