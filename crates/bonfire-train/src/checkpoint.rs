//! Trainings that survive their end: model, optimizer and the program's own state, step by step.
//!
//! Rank 0 writes and reads; the other ranks give it their rows and get theirs from it, one tensor after the other.
//! So a folder that only rank 0 sees will do, and no rank ever has all of the training in memory.

#[cfg(feature = "cuda")]
mod moments;
#[cfg(feature = "weights")]
pub(crate) mod pretrained;

use std::path::PathBuf;

use bonfire_checkpoint::{CheckpointError, Folder, Keep, Milestone};
use bonfire_collective::ProcessGroup;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ddp::record::restore::Misfit;
use crate::ddp::record::{WRITER, announced};
use crate::world::patience::patient_with_files;
use crate::{Ddp, TrainError, World};

const MODEL: &str = "model.bpk";
const OPTIMIZER: &str = "optimizer.bpk";
const STATE: &str = "state.cbor";

/// Where a training goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Resumed<S> {
    /// Where it was when it was saved.
    pub milestone: Milestone,
    /// The program's own: `SamplerState`, [`LossScaler`](crate::LossScaler)
    /// and whatever else it goes on with.
    pub state: S,
}

/// The checkpoints of one training, in a folder.
///
/// All ranks call the same methods in the same order.
///
/// ```no_run
/// use bonfire_train::{Checkpoints, Ddp, Keep, Milestone, TrainError, World};
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
    /// from it. Each rank takes the memory of one parameter for it, and that of a copy of its part of the optimizer's
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
        let model = ddp.write_model(&patient.group, path_of(MODEL).as_deref())?;
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

    /// Brings back the last checkpoint that is whole: model and optimizer as they were, whatever the
    /// [`Placement`](crate::Placement) and the number of ranks that saved it and that go on. Without any checkpoint
    /// nothing is changed, and nothing comes back.
    ///
    /// Rank 0 reads one tensor at a time for all, and each rank keeps what its placement has it hold.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] on all ranks if there are checkpoints but all of them are damaged,
    /// or if the checkpoint is of another model, optimizer or state: nothing is changed then.
    /// [`TrainError::Collective`].
    #[track_caller]
    pub fn resume<M: Module, S: DeserializeOwned>(
        &self,
        ddp: &mut Ddp<M>,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Option<Resumed<S>>, TrainError> {
        let patient = self.patient_with(ddp.module());
        let (mut found, mut state) = (None, Vec::new());
        patient.on_writer(|folder| {
            found = folder.newest()?;
            if let Some(found) = &found {
                state = found.read(STATE)?;
            }
            Ok(())
        })?;
        let told = found
            .as_ref()
            .map(|found| (found.milestone, found.world_size, found.path.clone(), state));
        let Some((milestone, saved_by, path, state)) = announced(&patient.group, &told)? else {
            return Ok(None);
        };
        let other = |what: &str, cause: String| CheckpointError::Other {
            path: path.clone(),
            what: what.to_owned(),
            cause,
        };
        let state = ciborium::from_reader(state.as_slice())
            .map_err(|cause| other("program state", cause.to_string()))?;
        let files = [MODEL, OPTIMIZER].map(|name| Some(found.as_ref()?.path.join(name)));
        let restored = ddp.restore(optimizer, &patient.group, files)?;
        let tensors = restored.map_err(|Misfit { what, cause }| other(what, cause))?;
        #[cfg(feature = "cuda")]
        if tensors > 0 {
            moments::tell_detour(ddp.module());
        }
        if self.group.rank() == WRITER {
            tracing::info!(
                step = milestone.step,
                saved_by,
                ranks = self.group.world_size().get(),
                tensors,
                "the training goes on from {}",
                path.display()
            );
        }
        Ok(Some(Resumed { milestone, state }))
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
        let told: Option<String> =
            announced(&self.group, &done.as_ref().err().map(ToString::to_string))?;
        done?;
        match told {
            Some(cause) => Err(CheckpointError::OnWriter { cause }.into()),
            None => Ok(()),
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

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
