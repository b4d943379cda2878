//! What a [`Ddp`] keeps of compressed gradients between steps, for checkpoints.

use burn::module::Module;

use super::{Ddp, Synchroniser, lock};
use crate::{CompressionError, CompressionState, TrainError};

impl<M: Module> Ddp<M> {
    /// What compression keeps between steps, of all ranks: for the program's state in a checkpoint,
    /// without which PowerSGD does not go on as if nothing had happened. Every rank must call it, and
    /// gets the same.
    ///
    /// # Errors
    /// [`TrainError::Collective`] if a rank failed.
    #[track_caller]
    pub fn compression_state(&self) -> Result<CompressionState, TrainError> {
        match &self.synchroniser {
            Synchroniser::Bucketed(reducer) => {
                lock(reducer).compressor.state(&self.table, &self.group)
            }
            Synchroniser::Naive(_) => Ok(CompressionState::default()),
        }
    }

    /// Goes on from a state that every rank has; on as many ranks as saved it, bit for bit. On more or
    /// fewer, every rank goes on with the mean of what was left out, so that nothing is lost; a lone
    /// rank compresses nothing, and drops it. The empty state changes nothing.
    ///
    /// # Errors
    /// [`TrainError::Compression`] if the state is that of another model or configuration. Nothing has
    /// changed then.
    pub fn restore_compression(&mut self, state: &CompressionState) -> Result<(), TrainError> {
        let restored = match &self.synchroniser {
            Synchroniser::Bucketed(reducer) => {
                let mut reducer = lock(reducer);
                reducer.compressor.restore(state, &self.table, &self.group)
            }
            Synchroniser::Naive(_) if *state == CompressionState::default() => Ok(()),
            Synchroniser::Naive(_) => Err(CompressionError::NothingToRestore),
        };
        restored.map_err(TrainError::from)
    }
}
