//! Trainings that survive their end: model, optimizer and the program's own state, step by step.
//!
//! Rank 0 writes and reads; the other ranks get the bytes from it, so a folder that only rank 0 sees
//! will do. A checkpoint appears under its name as a whole or not at all: it is written into a hidden
//! folder, synced, renamed. A manifest in it has the size and the hash of every file; what does not
//! agree with it is passed over for the checkpoint before.

#[cfg(feature = "weights")]
pub(crate) mod pretrained;
pub(crate) mod probe;

mod folder;
mod manifest;
#[cfg(feature = "cuda")]
mod moments;
mod step;

use std::path::PathBuf;

use bonfire_collective::{ProcessGroup, Rank};
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::checkpoint::CheckpointError;
use crate::world::patience::patient_with_files;
use crate::{Ddp, TrainError, World};
use folder::Folder;
use manifest::Manifest;
pub use step::CompressionFolder;

/// Who writes and reads.
const WRITER: Rank = Rank::new(0);

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const STATE: &str = "state.cbor";

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keep {
    /// The last so many, at least one.
    pub last: usize,
    /// And the best of all.
    pub best: Option<Best>,
}

impl Keep {
    /// The last so many, at least one.
    #[must_use]
    pub const fn last(last: usize) -> Self {
        Self { last, best: None }
    }

    /// And the best of all.
    #[must_use]
    pub const fn and_best(self, best: Best) -> Self {
        Self {
            best: Some(best),
            ..self
        }
    }
}

impl Default for Keep {
    /// The last three.
    fn default() -> Self {
        Self::last(3)
    }
}

/// What makes one [`Milestone::metric`] better than another. A metric that is no number is worse
/// than any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// Such as a loss.
    Lowest,
    /// Such as an accuracy.
    Highest,
}

/// Where a training is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Milestone {
    /// Optimizer steps done.
    pub step: u64,
    /// What [`Best`] compares; the same on every rank.
    pub metric: Option<f64>,
}

/// What a checkpoint brings back.
#[derive(Clone)]
pub struct Training<M, S> {
    /// With the parameters' identities, by which the optimizer knows them.
    pub model: M,
    /// With its moments.
    pub optimizer: ModuleOptimizer,
    /// The program's own: `SamplerState`, [`LossScaler`](crate::LossScaler)
    /// and whatever else it goes on with.
    pub state: S,
}

impl<M, S: std::fmt::Debug> std::fmt::Debug for Training<M, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut training = f.debug_struct("Training");
        training.field("state", &self.state).finish_non_exhaustive()
    }
}

/// The checkpoints of one training, in a folder.
///
/// All ranks call the same methods in the same order.
///
/// ```no_run
/// use bonfire_train::{Checkpoints, Ddp, Keep, Milestone, TrainError, Training, World};
/// use burn::module::Module;
/// use burn::optim::ModuleOptimizer;
///
/// # fn run<M: Module>(world: &World, model: M, optimizer: ModuleOptimizer,
/// #     loss: impl Fn(&M) -> burn::Tensor<1>) -> Result<(), TrainError> {
/// let checkpoints = Checkpoints::open(world, "runs/first", Keep::default())?;
/// let fresh = Training { model, optimizer, state: 0_u64 };
/// let (training, milestone) = checkpoints.resume(fresh)?;
/// let mut ddp = Ddp::new(training.model, world)?;
/// let (mut optimizer, mut seen) = (training.optimizer, training.state);
/// for step in milestone.map_or(0, |milestone| milestone.step)..1000 {
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
    group: ProcessGroup,
    folder: Folder,
    keep: Keep,
}

impl Checkpoints {
    /// Opens a folder for checkpoints; if there is none, the first one makes it. What an interrupted run
    /// left half-done there is removed.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if rank 0 cannot write there;
    /// [`TrainError::Collective`].
    #[track_caller]
    pub fn open(world: &World, folder: impl Into<PathBuf>, keep: Keep) -> Result<Self, TrainError> {
        let checkpoints = Self {
            group: world.group().clone(),
            folder: Folder::new(folder.into()),
            keep,
        };
        checkpoints.on_writer(|folder| folder.prepare())?;
        Ok(checkpoints)
    }

    /// Saves a training. When it returns, the checkpoint is on the disk of rank 0, and older ones that
    /// are not kept are gone.
    ///
    /// It is the same whatever the [`Placement`](crate::Placement), and any other on any number of ranks goes on
    /// from it. Rank 0 takes the memory of all parameters for it, and that of the largest one of the optimizer's
    /// state.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if rank 0 cannot write it; the checkpoints before are
    /// as they were. [`TrainError::Collective`].
    #[track_caller]
    pub fn save<M: Module, S: Serialize>(
        &self,
        milestone: Milestone,
        ddp: &mut Ddp<M>,
        optimizer: &ModuleOptimizer,
        state: &S,
    ) -> Result<(), TrainError> {
        let patient = self.patient_with(ddp.module());
        let mut draft = None;
        patient.on_writer(|_| {
            let world_size = self.group.world_size().get();
            draft = Some(self.folder.begin(milestone, world_size)?);
            Ok(())
        })?;
        let path_of = |name| draft.as_ref().map(|draft| draft.path_of(name));
        // One after the other: each is in memory once, and gone before the next.
        let model = ddp.write_model(path_of(MODEL).as_deref())?;
        let file = path_of(OPTIMIZER);
        let moments = ddp.write_optimizer(optimizer, &patient.group, file.as_deref())?;
        patient.on_writer(|folder| {
            model.and(moments)?;
            if let Some(mut draft) = draft {
                draft.adopt(MODEL)?;
                draft.adopt(OPTIMIZER)?;
                draft.add(STATE, &state_bytes(state)?)?;
                draft.finish()?;
            }
            folder.retain(self.keep)
        })
    }

    /// Brings back the last checkpoint that is whole, and says where that was. Without any checkpoint
    /// the training comes back as it was given.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if there are checkpoints but all of them are damaged,
    /// or if the checkpoint is of another model, optimizer or state; [`TrainError::Collective`].
    #[track_caller]
    pub fn resume<M: Module, S: DeserializeOwned>(
        &self,
        training: Training<M, S>,
    ) -> Result<(Training<M, S>, Option<Milestone>), TrainError> {
        let patient = self.patient_with(&training.model);
        let mut newest = None;
        patient.on_writer(|folder| {
            newest = folder.newest()?;
            Ok(())
        })?;
        let (manifest, files) = newest.map_or((None, Vec::new()), |(manifest, files)| {
            (Some(manifest), files)
        });
        let manifest: Option<Manifest> = patient.announce(&manifest)?;
        let Some(manifest) = manifest else {
            return Ok((training, None));
        };
        let mut received = Vec::with_capacity(manifest.files.len());
        let mut own = files.into_iter();
        for entry in &manifest.files {
            let mut bytes = own.next().unwrap_or_else(|| vec![0; entry.bytes]);
            patient.group.broadcast(&mut bytes, WRITER)?;
            received.push((entry.name.as_str(), bytes));
        }
        let milestone = manifest.milestone();
        let path = self.folder.path_of(&manifest);
        let training = restored(training, &mut received, &path)?;
        if self.group.rank() == WRITER {
            tracing::info!(
                step = milestone.step,
                saved_by = manifest.world_size,
                ranks = self.group.world_size().get(),
                "the training goes on from {}",
                path.display()
            );
        }
        Ok((training, Some(milestone)))
    }

    /// The folder.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The same, for files with the parameters of a model and its optimizer's moments.
    fn patient_with<M: Module>(&self, model: &M) -> Self {
        Self {
            group: patient_with_files(&self.group, model),
            folder: self.folder.clone(),
            keep: self.keep,
        }
    }

    /// Does something on the writing rank, and tells all how it went.
    #[track_caller]
    fn on_writer(
        &self,
        work: impl FnOnce(&Folder) -> Result<(), CheckpointError>,
    ) -> Result<(), TrainError> {
        let done = match self.group.rank() == WRITER {
            true => work(&self.folder),
            false => Ok(()),
        };
        let told = self.announce(&done.as_ref().err().map(ToString::to_string))?;
        done?;
        match told {
            Some(cause) => Err(CheckpointError::OnWriter { cause }.into()),
            None => Ok(()),
        }
    }

    /// Gives everybody what the writing rank has.
    #[track_caller]
    fn announce<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<T, TrainError> {
        let mut bytes = serde_json::to_vec(own).expect("plain data can always be written");
        let mut len = [bytes.len() as u64];
        self.group.broadcast(&mut len, WRITER)?;
        bytes.resize(len[0] as usize, 0);
        self.group.broadcast(&mut bytes, WRITER)?;
        serde_json::from_slice(&bytes).map_err(|source| {
            TrainError::from(CheckpointError::OnWriter {
                cause: format!("rank {WRITER} said something else than expected: {source}"),
            })
        })
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

/// Puts the content of a checkpoint into a training. Every rank has the same bytes, so every rank
/// comes to the same end.
fn restored<M: Module, S: DeserializeOwned>(
    training: Training<M, S>,
    files: &mut Vec<(&str, Vec<u8>)>,
    path: &std::path::Path,
) -> Result<Training<M, S>, CheckpointError> {
    let other = |what: &str, cause: String| CheckpointError::Other {
        path: path.to_owned(),
        what: what.to_owned(),
        cause,
    };
    let mut take = |name: &str| {
        let index = files.iter().position(|(found, _)| *found == name);
        let index = index.ok_or_else(|| other(name, "it has no such file".to_owned()))?;
        Ok::<_, CheckpointError>(files.swap_remove(index).1)
    };
    let model = ModuleRecord::from_bytes(Bytes::from_bytes_vec(take(MODEL)?))
        .and_then(|record| training.model.try_load_record(record))
        .map_err(|cause| other("model", cause.to_string()))?;
    let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(take(OPTIMIZER)?))
        .map_err(|cause| other("optimizer", cause.to_string()))?;
    let saved = record.len();
    #[cfg(feature = "cuda")]
    if saved > 0 {
        moments::tell_detour(&model);
    }
    let optimizer = training.optimizer.load_record(record);
    let taken = optimizer.to_record().len();
    if saved != taken {
        let cause = format!("it has {saved} tensors of state, and {taken} of them fit");
        return Err(other("optimizer", cause));
    }
    let state = ciborium::from_reader(take(STATE)?.as_slice())
        .map_err(|cause| other("program state", cause.to_string()))?;
    Ok(Training {
        model,
        optimizer,
        state,
    })
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
