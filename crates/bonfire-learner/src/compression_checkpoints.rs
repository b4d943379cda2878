//! The state of compression between steps, beside the checkpoints of Burn's learner.
//!
//! Burn's checkpoints have three parts, and a strategy cannot add more. So the state has its own folder, and follows
//! the learner's checkpointing strategy: it is saved with the epochs that are saved, and removed with those that are
//! removed.

use std::path::PathBuf;
use std::sync::Arc;

use bonfire_checkpoint::{CheckpointError, Folder, Found, Milestone};
use bonfire_collective::{Mutex, ProcessGroup, Rank, WorldSize};
use burn::module::Module;
use burn_train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn_train::metric::store::EventStoreClient;

use crate::error::LearnerError;
use crate::records::passed_on;
use bonfire_train::{CompressionState, Ddp, World, with_file_timeout};

const MAIN: Rank = Rank::new(0);

const STATE: &str = "compression.cbor";

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
    folder: Folder,
    pending: Arc<Mutex<PendingActions>>,
}

/// The actions of the learner's strategy that are still to be followed; `None` until it is called.
type PendingActions = Option<Vec<CheckpointingAction>>;

impl CompressionCheckpoints {
    /// Uses a folder of rank 0, which the first checkpoint makes.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Folder::new(folder.into()), pending: Arc::default() }
    }

    /// Wraps `strategy`, for `SupervisedTraining::with_checkpointing_strategy`. The state of compression is saved and
    /// deleted with the checkpoints.
    pub fn follow<S: CheckpointingStrategy>(
        &self,
        strategy: S,
    ) -> impl CheckpointingStrategy + use<S> {
        Followed { strategy, pending: Arc::clone(&self.pending) }
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
        let bytes = if is_main { self.read(epoch)? } else { Vec::new() };
        let bytes = passed_on(bytes, group)?;
        if !bytes.is_empty() {
            let state: CompressionState =
                ciborium::from_reader(bytes.as_slice()).map_err(|cause| {
                    CheckpointError::Other {
                        path: self.folder.path().to_owned(),
                        what: "compression".to_owned(),
                        cause: cause.to_string(),
                    }
                })?;
            return Ok(ddp.restore_compression(&state)?);
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
        let actions = if asked { self.take_actions()? } else { Vec::new() };
        // Rank 0 has just written the learner's files.
        let group = with_file_timeout(world.group(), ddp.module());
        let mut saves = [i64::from(actions.contains(&CheckpointingAction::Save))];
        group.broadcast(&mut saves, MAIN)?;
        if saves[0] != 0 {
            let state = ddp.compression_state()?;
            if world.is_main() {
                self.save(epoch, group.world_size(), &state)?;
            }
        }
        for action in actions {
            if let CheckpointingAction::Delete(epoch) = action {
                for path in self.folder.revisions(epoch as u64)? {
                    self.folder.remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// The bytes of the state at the end of an epoch; empty if it was not saved.
    fn read(&self, epoch: usize) -> Result<Vec<u8>, CheckpointError> {
        match self.folder.revisions(epoch as u64)?.pop() {
            Some(path) => Found::at(path)?.read(STATE),
            None => Ok(Vec::new()),
        }
    }

    /// Saves the state of `ranks` ranks at the end of an epoch, in place of an earlier one of that epoch.
    fn save(
        &self,
        epoch: usize,
        ranks: WorldSize,
        state: &CompressionState,
    ) -> Result<(), CheckpointError> {
        let (step, metric) = (epoch as u64, None);
        let mut draft = self.folder.begin(Milestone { step, metric }, ranks.get())?;
        let mut bytes = Vec::new();
        ciborium::into_writer(state, &mut bytes).map_err(|cause| CheckpointError::Unwritable {
            what: "what compression has left out".to_owned(),
            cause: cause.to_string(),
        })?;
        draft.add(STATE, &bytes)?;
        draft.finish()?;
        // The epoch may have been saved before, by a run that was then resumed from an earlier one.
        let mut found = self.folder.revisions(step)?;
        found.pop();
        found.iter().try_for_each(|path| self.folder.remove(path))
    }

    fn take_actions(&self) -> Result<Vec<CheckpointingAction>, LearnerError> {
        self.pending.lock().take().ok_or(LearnerError::NotFollowing)
    }
}

struct Followed<S> {
    strategy: S,
    pending: Arc<Mutex<PendingActions>>,
}

impl<S: CheckpointingStrategy> CheckpointingStrategy for Followed<S> {
    fn checkpointing(
        &mut self,
        epoch: usize,
        collector: &EventStoreClient,
    ) -> Vec<CheckpointingAction> {
        let actions = self.strategy.checkpointing(epoch, collector);
        *self.pending.lock() = Some(actions.clone());
        actions
    }
}
