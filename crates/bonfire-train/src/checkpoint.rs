//! Saves and restores trainings: model, optimizer and the program's own state, step by step.
//!
//! Rank 0 writes and reads; it gathers and scatters the other ranks' rows, one tensor after the other. So a folder
//! that only rank 0 sees is enough, and no rank ever has all of the training in memory.

mod files;
mod finite;
#[cfg(feature = "cuda")]
mod moments;
#[cfg(feature = "weights")]
pub(crate) mod pretrained;

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bonfire_checkpoint::record::{
    ShardedTable, TableSharding, TensorTable, WRITER, broadcast_value,
};
use bonfire_checkpoint::{CheckpointError, Folder, Keep, Milestone};
use bonfire_collective::Mutex;
use bonfire_plan::Axis;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::parameters::fingerprint::{self, Entry, Fingerprint};
use crate::{Ddp, DdpConfig, Mesh, TrainError, World};

use files::{Files, MODEL, OPTIMIZER, STATE};

/// A resumed training: its step and the program's state.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Resumed<S> {
    /// The step and metric at which it was saved.
    pub milestone: Milestone,
    /// The program's own state: `SamplerState`, [`LossScaler`](crate::LossScaler) and any other.
    pub state: S,
}

/// The checkpoints of one training, in a folder.
///
/// All ranks call the same methods in the same order.
///
/// ```no_run
/// # mod bonfire { pub use bonfire_train::{Ddp, World}; pub mod checkpoint { pub use bonfire_train::*; } pub mod ddp { pub use bonfire_train::*; } }
/// use bonfire::{Ddp, World};
/// use bonfire::checkpoint::{Checkpoints, Keep, Milestone};
/// use bonfire::ddp::TrainError;
/// use burn::module::Module;
/// use burn::optim::ModuleOptimizer;
///
/// # fn run<M: Module>(world: &World, model: M, mut optimizer: ModuleOptimizer,
/// #     loss: impl Fn(&M) -> burn::Tensor<1>) -> Result<(), TrainError> {
/// let checkpoints = Checkpoints::open(world, "runs/first", Keep::default())?;
/// let mut ddp = Ddp::new(model, world)?;
/// let resumed = checkpoints.resume::<_, u64>(&mut ddp, &mut optimizer)?;
/// let (first, mut seen) = resumed.map_or((0, 0), |resumed| (resumed.milestone.step, resumed.state));
/// for step in first..1000 {
///     let done = ddp.backward(&loss)?;
///     ddp.step(&mut optimizer, 0.1, done.gradients)?;
///     seen += 32;
///     if (step + 1) % 100 == 0 {
///         let milestone = Milestone { step: step + 1, metric: None };
///         checkpoints.save(milestone, &mut ddp, &optimizer, &seen)?;
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Checkpoints {
    files: Files,
    background: Mutex<Background>,
}

#[derive(Debug, Default)]
struct Background {
    /// The same ranks in separate groups, once something has been saved in the background.
    files: Option<Files>,
    saving: Option<JoinHandle<Result<(), TrainError>>>,
}

impl Checkpoints {
    /// Opens a folder for checkpoints. The first one makes it if it is missing, and clears away what an interrupted run
    /// left half-done there. One training can save in a folder at a time; others can resume from it meanwhile.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if rank 0 cannot write there; [`TrainError::Collective`].
    #[track_caller]
    pub fn open(world: &World, folder: impl Into<PathBuf>, keep: Keep) -> Result<Self, TrainError> {
        let files = Files {
            group: world.group().clone(),
            sharded: None,
            folder: Folder::new(folder.into()),
            keep,
            with_optimizer: true,
        };
        files.on_writer(|| files.folder.prepare())?;
        Ok(Self { files, background: Mutex::default() })
    }

    /// Lets [`resume`](Self::resume) leave the optimizer as it is, so that the checkpoint may be of another one.
    pub fn without_optimizer(mut self) -> Self {
        self.files.with_optimizer = false;
        self
    }

    /// Saves a model that is cut among the ranks of a mesh, which has the world of [`open`](Self::open). A [`Ddp`] of
    /// this rank's part, over [`Mesh::replicas`], is saved as the `whole` model that it was made of, and any mesh or a
    /// single rank can resume it. Every rank must call it.
    ///
    /// Each tensor is joined on rank 0 when it is written, and cut when it is read. Of parameters that ranks divide,
    /// the optimizer's state must have the shape of the parameter.
    ///
    /// # Errors
    /// [`TrainError::ModelMismatch`] on all ranks if their `whole` models differ; [`TrainError::Collective`].
    #[track_caller]
    pub fn with_parts(mut self, whole: TensorTable, mesh: &Mesh) -> Result<Self, TrainError> {
        let entry = |(name, shape): (&str, &[usize])| Entry {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: "any".to_owned(),
            trainable: true,
        };
        let same = Fingerprint {
            config: DdpConfig::default(),
            entries: whole.entries().map(entry).collect(),
        };
        fingerprint::verify(&same, &self.files.group)?;
        let tp = mesh.sub(Axis::Tp);
        let sharding =
            TableSharding { shards: tp.world_size(), shard: tp.rank(), cuts: tp.cuts().clone() };
        let replicas = mesh.replicas().group().clone();
        let sharded = ShardedTable::new(Arc::new(whole), sharding, replicas, &self.files.group)?;
        self.files.sharded = Some(sharded);
        Ok(self)
    }

    /// Saves a training. When it returns, the checkpoint is on the disk of rank 0, and older ones that are not kept
    /// are gone, as are damaged ones. Checkpoints of a later step are of another history: they are set aside, in
    /// `earlier-1` of the folder or the next free number.
    ///
    /// It is the same in every [`Placement`](crate::Placement), and any other on any number of ranks can resume it.
    /// Each rank needs the memory of one parameter for it, and of a copy of its part of the optimizer's state.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteParameter`] on all ranks if the training has diverged, and [`TrainError::Checkpoint`] if
    /// rank 0 cannot write it: earlier checkpoints are unchanged, and no disk space is used. It needs space for one
    /// more than are kept. [`TrainError::Collective`]. Those of [`wait`](Self::wait): then nothing is saved.
    #[track_caller]
    pub fn save<M: Module, S: Serialize>(
        &self,
        milestone: Milestone,
        ddp: &mut Ddp<M>,
        optimizer: &ModuleOptimizer,
        state: &S,
    ) -> Result<(), TrainError> {
        self.wait()?;
        let files = self.files.with_file_timeout(ddp.module());
        ddp.wait()?;
        finite::check(ddp.module(), &files.group)?;
        let saved = ddp.call("Checkpoints::save", |ddp| {
            let route = ddp.route(files.replicas());
            let image = files.image(&route, milestone, ddp, optimizer, state)?;
            match files.write(image) {
                // The training can continue without a checkpoint.
                Err(TrainError::Checkpoint(error)) => Ok(Err(error)),
                written => written.map(Ok),
            }
        })?;
        Ok(saved?)
    }

    /// Saves a training as [`save`](Self::save) does, but in the background: it returns when later steps can no longer
    /// change the saved values. One is written at a time, so the next one waits for it.
    ///
    /// Until it is written, each rank keeps the old values of the parameters that it holds, besides the memory of
    /// [`save`](Self::save).
    ///
    /// # Errors
    /// As [`save`](Self::save); but [`wait`](Self::wait), or the next call that saves or resumes, returns errors of
    /// the background.
    #[track_caller]
    pub fn save_in_background<M: Module, S: Serialize>(
        &self,
        milestone: Milestone,
        ddp: &mut Ddp<M>,
        optimizer: &ModuleOptimizer,
        state: &S,
    ) -> Result<(), TrainError> {
        self.wait()?;
        ddp.wait()?;
        finite::check(ddp.module(), &self.files.group)?;
        let mut background = self.background.lock();
        let files = match &background.files {
            Some(files) => files.clone(),
            None => background.files.insert(self.files.beside()?).clone(),
        };
        let files = files.with_file_timeout(ddp.module());
        let group = files.group.clone();
        let image = ddp.call("Checkpoints::save_in_background", |ddp| {
            let route = ddp.route_beside(files.replicas())?;
            files.image(&route, milestone, ddp, optimizer, state)
        })?;
        let named = thread::Builder::new().name("bonfire-save".to_owned());
        let saving = named.spawn(move || files.group.abort_on_panic(|| files.write(image)));
        background.saving = Some(saving.map_err(|cause| {
            group.abort(&format!("no thread to save in: {cause}"));
            CheckpointError::Unwritable {
                what: "a training in the background".to_owned(),
                cause: cause.to_string(),
            }
        })?);
        Ok(())
    }

    /// Replaces the metric of the checkpoint of a step that was saved last, for those that are saved before they are
    /// evaluated. Does nothing if that step was not saved. Every rank must call it.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if rank 0 cannot write it; those of [`wait`](Self::wait).
    #[track_caller]
    pub fn rate(&self, milestone: Milestone) -> Result<(), TrainError> {
        self.wait()?;
        let Files { folder, keep, .. } = &self.files;
        self.files.on_writer(|| {
            folder.rate(milestone)?;
            folder.retain(*keep)
        })?;
        Ok(())
    }

    /// Sets all checkpoints aside, for a training that restarts in their folder: they are moved to `earlier-1` of it,
    /// or the next free number. Every rank must call it.
    ///
    /// # Errors
    /// As [`rate`](Self::rate).
    #[track_caller]
    pub fn set_aside(&self) -> Result<(), TrainError> {
        self.wait()?;
        self.files.on_writer(|| self.files.folder.set_all_aside())?;
        Ok(())
    }

    /// Waits until background saves are on the disk. Dropping the checkpoints waits, too, but only logs errors.
    ///
    /// # Errors
    /// The error of the save; each is returned once.
    pub fn wait(&self) -> Result<(), TrainError> {
        let saving = self.background.lock().saving.take();
        saving.map_or(Ok(()), |saving| saving.join().unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Restores model and optimizer from the last intact checkpoint, whatever the [`Placement`](crate::Placement) and
    /// the numbers of ranks that saved it and that resume. Returns `None` without any checkpoint, and changes nothing.
    ///
    /// Rank 0 reads one tensor at a time for all, and each rank keeps its part by the placement.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if there are checkpoints but all of them are damaged, or if the
    /// checkpoint is of another model, optimizer or state: nothing is changed then. [`TrainError::Collective`].
    #[track_caller]
    pub fn resume<M: Module, S: DeserializeOwned>(
        &self,
        ddp: &mut Ddp<M>,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Option<Resumed<S>>, TrainError> {
        self.wait()?;
        let files = self.files.with_file_timeout(ddp.module());
        let found = files.on_writer(|| {
            let Some(found) = files.folder.newest()? else {
                return Ok(None);
            };
            let state = found.read(STATE)?;
            Ok(Some((found.milestone, found.world_size, found.path, state)))
        })?;
        let found = broadcast_value(&files.group, &found.flatten())?;
        let Some((milestone, saved_by, path, state)) = found else {
            return Ok(None);
        };
        let is_writer = files.group.rank() == WRITER;
        let other = |what: &str, cause: String| CheckpointError::Other {
            path: path.clone(),
            what: what.to_owned(),
            cause,
        };
        let state = ciborium::from_reader(state.as_slice())
            .map_err(|cause| other("program state", cause.to_string()))?;
        let saved = [MODEL, OPTIMIZER].map(|name| is_writer.then(|| path.join(name)));
        let (group, sharded) = (&files.group, files.sharded.as_ref());
        let restored = ddp.restore(optimizer, group, sharded, files.with_optimizer, saved)?;
        let tensors = restored.map_err(|(what, cause)| other(what, cause))?;
        #[cfg(feature = "cuda")]
        if tensors > 0 {
            moments::tell_detour(ddp.module());
        }
        if is_writer {
            tracing::info!(
                step = milestone.step,
                saved_by,
                ranks = files.group.world_size().get(),
                tensors,
                "the training continues from {}",
                path.display()
            );
        }
        Ok(Some(Resumed { milestone, state }))
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            tracing::error!(%error, "a training was not saved");
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
