//! The files of a checkpoint, which rank 0 writes and all ranks take part in.

use bonfire_checkpoint::record::{
    Record, RecordKind, ShardedTable, Snapshot, WRITER, broadcast_value,
};
use bonfire_checkpoint::{CheckpointError, Folder, Keep, Milestone};
use bonfire_collective::ProcessGroup;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use serde::Serialize;

use crate::ddp::record::{Route, record_of};
use crate::world::timeouts::with_file_timeout;
use crate::{Ddp, TrainError};

pub(super) const MODEL: &str = "model.bpk";
pub(super) const OPTIMIZER: &str = "optimizer.bpk";
pub(super) const STATE: &str = "state.cbor";

/// The folder, and the ranks that wait for the one that writes there.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) group: ProcessGroup,
    /// The shards of the model, where ranks have different ones.
    pub(super) sharded: Option<ShardedTable>,
    pub(super) folder: Folder,
    pub(super) keep: Keep,
    /// Restores the optimizer's state, too.
    pub(super) with_optimizer: bool,
}

pub(super) struct Image {
    milestone: Milestone,
    model: Snapshot<Record, TrainError>,
    optimizer: Snapshot<Record, TrainError>,
    /// The program's own state, on the writer.
    state: Result<Vec<u8>, CheckpointError>,
}

impl Files {
    /// Makes groups of the same ranks for work beside the training. Every rank must call it.
    #[track_caller]
    pub(super) fn beside(&self) -> Result<Self, TrainError> {
        let group = self.group.split(Some(0), 0)?;
        let group = group.expect("every rank has a color");
        let sharded = self.sharded.as_ref();
        let sharded = sharded.map(|table| table.beside(&group)).transpose()?;
        Ok(Self { group, sharded, ..self.clone() })
    }

    /// The checkpoints in a group whose timeout covers files with a model's parameters and its optimizer's moments.
    pub(super) fn with_file_timeout<M: Module>(&self, model: &M) -> Self {
        let group = with_file_timeout(&self.group, model);
        Self {
            sharded: self.sharded.clone().map(|table| table.with_timeout_of(&group)),
            group,
            ..self.clone()
        }
    }

    /// The ranks that have the same shards of the model as this one.
    pub(super) fn replicas(&self) -> &ProcessGroup {
        let sharded = self.sharded.as_ref();
        sharded.map_or(&self.group, ShardedTable::replicas)
    }

    /// Takes a snapshot of a training. Every rank must call it.
    #[track_caller]
    pub(super) fn image<M: Module, S: Serialize>(
        &self,
        route: &Route,
        milestone: Milestone,
        ddp: &Ddp<M>,
        optimizer: &ModuleOptimizer,
        state: &S,
    ) -> Result<Image, TrainError> {
        Ok(Image {
            milestone,
            model: ddp.snapshot_model(route).map(record_of),
            optimizer: ddp.snapshot_optimizer(optimizer, route)?,
            state: match self.group.rank() {
                WRITER => state_bytes(state),
                _ => Ok(Vec::new()),
            },
        })
    }

    /// Writes a checkpoint, and removes those that are not kept. Every rank must call it.
    #[track_caller]
    pub(super) fn write(&self, image: Image) -> Result<(), TrainError> {
        let draft = self.on_writer(|| {
            // One that was killed between a save and this has left more than are kept.
            self.folder.retain(self.keep)?;
            self.folder.begin(image.milestone, self.group.world_size().get())
        })?;
        // A failure of the disk, which the other ranks learn of at the end.
        let mut written = Ok(());
        // One after the other: each tensor is in memory once, and gone before the next.
        for (name, kind, snapshot) in [
            (MODEL, RecordKind::Model, image.model),
            (OPTIMIZER, RecordKind::Optimizer, image.optimizer),
        ] {
            self.write_record(snapshot, kind, |record| {
                let draft = draft.as_ref().expect("the writer has begun");
                let file = record.write(&draft.path_of(name), kind);
                if written.is_ok() {
                    written = file;
                }
            })?;
        }
        self.on_writer(|| {
            written?;
            if let Some(mut draft) = draft {
                draft.adopt(MODEL)?;
                draft.adopt(OPTIMIZER)?;
                draft.add(STATE, &image.state?)?;
                draft.finish()?;
            }
            self.folder.retain(self.keep)
        })?;
        Ok(())
    }

    #[track_caller]
    fn write_record(
        &self,
        own: Snapshot<Record, TrainError>,
        kind: RecordKind,
        write: impl FnOnce(Record),
    ) -> Result<(), TrainError> {
        let Some(sharded) = &self.sharded else {
            return own.write(write);
        };
        let mut joined = Ok(());
        let sent = own.write(|own| {
            let all = sharded.joined(own, kind);
            joined = all.and_then(|all| all.write(write));
        });
        // The leads of other shards wait for this one in a group of theirs.
        self.group.or_abort(sent.and_then(|()| Ok(joined?)))
    }

    /// Runs `work` on the writing rank, and returns its outcome there. All ranks return its failure.
    #[track_caller]
    pub(super) fn on_writer<T>(
        &self,
        work: impl FnOnce() -> Result<T, CheckpointError>,
    ) -> Result<Option<T>, TrainError> {
        let is_writer = self.group.rank() == WRITER;
        let done = is_writer.then(work).transpose();
        let failure = done.as_ref().err().map(ToString::to_string);
        let failure = broadcast_value(&self.group, &failure)?;
        let done = done?;
        match failure {
            Some(cause) => Err(CheckpointError::OnWriter { cause }.into()),
            None => Ok(done),
        }
    }
}

fn state_bytes<S: Serialize>(state: &S) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = Vec::new();
    match ciborium::into_writer(state, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(cause) => Err(CheckpointError::Unwritable {
            what: "the program's state".to_owned(),
            cause: cause.to_string(),
        }),
    }
}
