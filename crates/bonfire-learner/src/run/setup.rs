//! The work of a training before its first epoch.

use crate::error::LearnerError;
use crate::model::DistributedModel;
use crate::records;
use crate::run::Run;
use bonfire_train::{Ddp, GradientCompression, Precision, with_file_timeout};

impl<M: DistributedModel> Run<'_, M> {
    pub(crate) fn check_config(&self) -> Result<(), LearnerError> {
        let config = &self.config.ddp;
        if config.precision == Precision::F16 {
            return Err(LearnerError::NotScaled);
        }
        if !self.world.is_main() || !self.compresses() {
            return Ok(());
        }
        match &self.config.compression_checkpoints {
            Some(checkpoints) => checkpoints.prepare()?,
            None if self.components.checkpointer.is_some() => tracing::warn!(
                "Burn's checkpoints do not keep what PowerSGD left out of the gradients so far, nor its \
                 factors: a training that resumes goes on without them, and not with the bits of one that \
                 was not interrupted; LearnerConfig::with_compression_checkpoints(&CompressionCheckpoints::new(folder)) keeps them"
            ),
            None => {}
        }
        Ok(())
    }

    pub(crate) fn compresses(&self) -> bool {
        matches!(self.config.ddp.compression, GradientCompression::PowerSgd(_))
    }

    pub(crate) fn replicate(&mut self) -> Result<Ddp<M>, LearnerError> {
        // Rank 0 may be reading a checkpoint.
        let group = with_file_timeout(self.world.group(), &self.learner.model());
        let restored = self.components.checkpoint.is_some();
        let store = &self.components.event_store;
        match (self.world.is_main(), restored) {
            // The others wait in their checkpointers.
            (true, true) => records::send(&self.learner, store, &group)?,
            (false, true) => {}
            (is_main, false) => {
                // Models that differ are an error with the difference, before anything is loaded.
                Ddp::compare(&self.learner.model(), self.world, &self.config.ddp)?;
                if is_main {
                    records::send(&self.learner, store, &group)?;
                } else {
                    records::receive(&mut self.learner, &group)?;
                }
            }
        }
        let mut ddp = Ddp::with_config(self.learner.model(), self.world, self.config.ddp.clone())?;
        if let (Some(checkpoints), Some(epoch)) =
            (&self.config.compression_checkpoints, self.components.checkpoint)
        {
            checkpoints.restore(epoch, &mut ddp, &group)?;
        }
        Ok(ddp)
    }
}
