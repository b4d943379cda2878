//! Loads parameters from another program's file, as far as they fit.
//!
//! Parameters are loaded by name and shape, and everything else is listed: nothing is skipped silently. Rank 0 reads
//! the file and all ranks get its model, so the file has to be on one host only, and all ranks return the same result
//! or the same error.

use bonfire_checkpoint::CheckpointError;
use bonfire_checkpoint::record::{RecordError, broadcast_value};
use bonfire_checkpoint::weights::{Export, FileError, LoadReport, WeightsFile, WeightsLoader};
use bonfire_collective::{ProcessGroup, Rank};
use burn::module::Module;
use burn_pack::Tensor as Packed;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ddp::record::NamedTensor;
use crate::parameters::ParameterTable;
use crate::parameters::fingerprint::{self, Fingerprint};
use crate::parameters::replicate::replicate;
use crate::world::timeouts::with_file_timeout;
use crate::{Ddp, DdpConfig, TrainError, World};

/// Loading or writing parameters failed, on all ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// This rank, which is rank 0, cannot read or write the file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The ranks' models differ, or a rank failed: with [`CheckpointError::OnWriter`] rank 0 at the file.
    #[error(transparent)]
    Train(#[from] TrainError),
}

impl From<RecordError> for WeightsError {
    fn from(error: RecordError) -> Self {
        Self::Train(error.into())
    }
}

const READER: Rank = Rank::new(0);

/// What came of the file on rank 0, on all ranks.
fn agreed<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    outcome: &Result<T, FileError>,
) -> Result<T, WeightsError> {
    let outcome = broadcast_value(group, outcome)?;
    outcome.map_err(|error| match group.rank() {
        READER => error.into(),
        _ => TrainError::from(CheckpointError::OnWriter { cause: error.to_string() }).into(),
    })
}

/// Loads the parameters of a file into a model, by name and shape: a parameter that the file lacks, or
/// has in another shape, keeps its value and is listed in the report. Values take the type that the
/// model's parameters have. A frozen parameter stays frozen.
///
/// Rank 0 reads; every rank must call this, with a model of the same shape, and gets the model and
/// the report of rank 0. A file of PyTorch's layout is converted: the weights of `Linear` are
/// transposed, and normalization layers' `weight` and `bias` become `gamma` and `beta`.
///
/// ```no_run
/// # mod bonfire { pub use bonfire_train::World; pub mod weights { pub use bonfire_train::*; } }
/// use bonfire::World;
/// use bonfire::weights::{WeightsError, load_weights};
/// use burn::nn::{Linear, LinearConfig};
///
/// fn start(world: &World) -> Result<Linear, WeightsError> {
///     let model = LinearConfig::new(512, 5).init(&world.device());
///     let (model, report) = load_weights(model, "head.safetensors", world)?;
///     if world.is_main() {
///         println!("{report}");
///     }
///     Ok(model)
/// }
/// ```
///
/// # Errors
/// [`WeightsError::File`] on rank 0 if the file cannot be read or nothing in it fits, [`WeightsError::Train`] on the
/// others then, and if the ranks' models differ or a rank fails.
#[track_caller]
pub fn load_weights<M: Module>(
    model: M,
    file: impl Into<WeightsFile>,
    world: &World,
) -> Result<(M, LoadReport), WeightsError> {
    let group = world.group();
    // Before anything is sent: the broadcast takes the shapes to be equal.
    let table = group.or_abort(ParameterTable::of(&model))?;
    let fingerprint =
        Fingerprint { config: DdpConfig::default(), entries: table.entries().to_vec() };
    fingerprint::verify(&fingerprint, group)?;
    let file: WeightsFile = file.into();
    let (model, outcome) =
        if group.rank() == READER { file.load(model) } else { (model, Ok(LoadReport::default())) };
    let report = agreed(&with_file_timeout(group, &model), &outcome)?;
    let model = group.or_abort(replicate(model, group))?;
    if group.rank() == READER {
        tracing::info!(rank = READER.get(), "{}", report.summary());
    }
    Ok((model, report))
}

/// Loads the parameters into a training, whatever its [`Placement`](crate::Placement): each rank gets one tensor at a
/// time and keeps its part of it, so a model may be larger than memory. Parameters that the file lacks keep their
/// values.
///
/// # Errors
/// As [`load_weights`].
#[track_caller]
pub fn load_weights_into<M: Module>(
    ddp: &mut Ddp<M>,
    file: impl Into<WeightsFile>,
) -> Result<LoadReport, WeightsError> {
    let file: WeightsFile = file.into();
    let group = ddp.file_group();
    let mut loader = match group.rank() {
        READER => Some(file.loader(ddp.module())),
        _ => None,
    };
    let failed = loader.as_ref().and_then(|loader| loader.as_ref().err().cloned());
    agreed(&group, &failed.map_or(Ok(()), Err))?;
    ddp.import(&group, loader.as_mut().and_then(|loader| loader.as_mut().ok()))?;
    let outcome = match loader {
        Some(loader) => loader.and_then(WeightsLoader::finish),
        None => Ok(LoadReport::default()),
    };
    let report = agreed(&group, &outcome)?;
    if group.rank() == READER {
        tracing::info!(rank = READER.get(), "{}", report.summary());
    }
    Ok(report)
}

/// Writes the parameters of a training for other programs, as safetensors, whatever its
/// [`Placement`](crate::Placement). Rank 0 writes; each rank has one complete parameter at a time in memory for it.
///
/// Every rank must call this.
///
/// ```no_run
/// # mod bonfire { pub use bonfire_train::Ddp; pub mod weights { pub use bonfire_train::*; pub use bonfire_checkpoint::weights::*; } }
/// use bonfire::Ddp;
/// use bonfire::weights::{Export, WeightsError, save_weights};
/// use burn::nn::Linear;
///
/// fn publish(ddp: &mut Ddp<Linear>) -> Result<(), WeightsError> {
///     save_weights(ddp, Export::new("head.safetensors").for_pytorch())
/// }
/// ```
///
/// # Errors
/// [`WeightsError::File`] on rank 0 if the file cannot be written, [`WeightsError::Train`] on the others then, and if a
/// rank fails.
#[track_caller]
pub fn save_weights<M: Module>(
    ddp: &mut Ddp<M>,
    export: impl Into<Export>,
) -> Result<(), WeightsError> {
    let export: Export = export.into();
    let group = ddp.file_group();
    let mut written = Ok(());
    ddp.wait()?;
    ddp.call("save_weights", |ddp| {
        let snapshot = ddp.snapshot_model(&ddp.route(&group));
        snapshot.write(|tensors| {
            written = export.write(tensors.into_iter().map(for_others).collect());
        })
    })?;
    agreed(&group, &written)
}

/// A tensor under its name for other programs, and the types of the modules around it.
fn for_others(named: NamedTensor) -> (Packed, Vec<String>) {
    let NamedTensor { mut tensor, path } = named;
    // Other programs do not know the variants of enums.
    let known = path.0.iter().filter(|(_, container)| !container.starts_with("Enum:"));
    let names: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
    tensor.name = names.join(".");
    let containers = path.0.into_iter().map(|(_, container)| container);
    (tensor, containers.collect())
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
