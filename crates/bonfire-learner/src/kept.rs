//! The state of compression between steps, beside the checkpoints of Burn's learner.
//!
//! Burn's checkpoints have three parts, and a strategy cannot add more. So the state has its own folder, and follows
//! the learner's checkpointing strategy: it is saved with the epochs that are saved, and removed with those that are
//! removed.

mod folder;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bonfire_collective::{ProcessGroup, Rank};
use burn::module::Module;
use burn_train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn_train::metric::store::EventStoreClient;

use crate::error::LearnerError;
use crate::records::passed_on;
use bonfire_train::{Ddp, World, with_file_timeout};
use folder::CompressionFolder;

const MAIN: Rank = Rank::new(0);

/// Checkpoints of the [`CompressionState`](bonfire_train::CompressionState) of a training with Burn's learner, for
/// [`LearnerConfig::with_compression_checkpoints`](crate::LearnerConfig::with_compression_checkpoints). Rank 0 writes and reads them; no other
/// rank needs the folder.
///
/// The learner's checkpointing strategy, in [`follow`](Self::follow), selects the epochs. Epoch e is in the folder
/// `step-00000000e`, which appears completely or not at all, with the hash of its content. It holds as much as the
/// compressed gradients of every rank.
///
/// A training that resumes with `.checkpoint(epoch)` continues from it as
/// [`Ddp::restore_compression`](bonfire_train::Ddp::restore_compression) does: with as many ranks bit for bit.
///
/// ```no_run
/// # mod bonfire { pub mod learner { pub use bonfire_learner::*; } }
/// # use bonfire_learner::DistributedModel;
/// # use bonfire_train::{DdpConfig, World};
/// use bonfire::learner::{CompressionCheckpoints, DistributedTraining, LearnerConfig};
/// use burn_train::SupervisedTraining;
/// use burn_train::checkpoint::KeepLastNCheckpoints;
///
/// # fn kept<M: DistributedModel>(training: SupervisedTraining<M>, world: &World, config: DdpConfig)
/// # -> SupervisedTraining<M> {
/// let kept = CompressionCheckpoints::new("runs/first/compression");
/// training
///     .with_default_checkpointers()
///     .with_checkpointing_strategy(kept.follow(KeepLastNCheckpoints::new(2)))
///     .distributed_with(world, LearnerConfig::from(config).with_compression_checkpoints(&kept))
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompressionCheckpoints {
    folder: CompressionFolder,
    told: Arc<Mutex<Told>>,
}

/// The actions of the learner's strategy since the last call.
#[derive(Debug, Default)]
enum Told {
    /// It has not been called.
    #[default]
    Nothing,
    Actions(Vec<CheckpointingAction>),
}

impl CompressionCheckpoints {
    /// Uses a folder of rank 0, which the first checkpoint makes.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: CompressionFolder::new(folder),
            told: Arc::default(),
        }
    }

    /// Wraps `strategy`, for `SupervisedTraining::with_checkpointing_strategy`. The state of compression is saved and
    /// deleted with the checkpoints.
    pub fn follow<S: CheckpointingStrategy>(
        &self,
        strategy: S,
    ) -> impl CheckpointingStrategy + use<S> {
        Followed {
            strategy,
            told: Arc::clone(&self.told),
        }
    }

    /// Checks that files can be written, before an error would cost an epoch.
    pub(crate) fn prepare(&self) -> Result<(), LearnerError> {
        Ok(self.folder.prepare()?)
    }

    /// Restores the state that was saved at the end of an epoch, on all ranks. Every rank must call it.
    pub(crate) fn restore<M: Module>(
        &self,
        epoch: usize,
        ddp: &mut Ddp<M>,
        group: &ProcessGroup,
    ) -> Result<(), LearnerError> {
        let is_main = group.rank() == MAIN;
        let bytes = if is_main {
            self.folder.read(epoch as u64)?
        } else {
            Vec::new()
        };
        let bytes = passed_on(bytes, group)?;
        if !bytes.is_empty() {
            return Ok(ddp.restore_compression(&self.folder.parse(&bytes)?)?);
        }
        if is_main {
            tracing::warn!(
                "{} has nothing of epoch {epoch}: the training continues without what compression left out \
                 of the gradients until then",
                self.folder.path().display()
            );
        }
        Ok(())
    }

    /// Saves and deletes as the learner did at the end of an epoch, if rank 0 has `asked` it. Every rank must call it.
    pub(crate) fn end_epoch<M: Module>(
        &self,
        epoch: usize,
        asked: bool,
        ddp: &Ddp<M>,
        world: &World,
    ) -> Result<(), LearnerError> {
        let actions = if asked { self.told()? } else { Vec::new() };
        // Rank 0 has just written the learner's files.
        let group = with_file_timeout(world.group(), ddp.module());
        let mut saves = [i64::from(actions.contains(&CheckpointingAction::Save))];
        group.broadcast(&mut saves, MAIN)?;
        if saves[0] != 0 {
            let state = ddp.compression_state()?;
            if world.is_main() {
                self.folder.save(epoch as u64, group.world_size(), &state)?;
            }
        }
        for action in actions {
            if let CheckpointingAction::Delete(epoch) = action {
                self.folder.forget(epoch as u64)?;
            }
        }
        Ok(())
    }

    /// The last actions of the learner's strategy.
    fn told(&self) -> Result<Vec<CheckpointingAction>, LearnerError> {
        match std::mem::take(&mut *lock(&self.told)) {
            Told::Nothing => Err(LearnerError::NotFollowing),
            Told::Actions(actions) => Ok(actions),
        }
    }
}

struct Followed<S> {
    strategy: S,
    told: Arc<Mutex<Told>>,
}

impl<S: CheckpointingStrategy> CheckpointingStrategy for Followed<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        collector: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let actions = self.strategy.checkpointing(epoch, collector);
        *lock(&self.told) = Told::Actions(actions.clone());
        actions
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}
