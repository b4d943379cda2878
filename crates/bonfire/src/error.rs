//! The facade's error: whatever stopped a job, printed as one line.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use bonfire_checkpoint::CheckpointError;
#[cfg(feature = "weights")]
use bonfire_checkpoint::weights::FileError;
use bonfire_collective as collective;
use bonfire_collective::{CollectiveError, Rank};
use bonfire_config::ConfigErrors;
use bonfire_data::{DataError, UnusableWeights};
#[cfg(feature = "images")]
use bonfire_data::{PictureError, TransformError};
use bonfire_launch as launch;
use bonfire_launch::{EnvError, FlagError, LaunchError, RankCountError};
#[cfg(feature = "learner")]
use bonfire_learner::LearnerError;
use bonfire_optim::FileMemoryError;
#[cfg(all(feature = "flex", feature = "weights"))]
use bonfire_parallel::PlaceError;
use bonfire_parallel::{ParallelError, PipelineError};
use bonfire_plan::device_map::MapError;
use bonfire_plan::pipeline::{
    Broken, CostsError, CsvError, PartitionError, ShapeError, UnknownAction,
};
use bonfire_plan::{PlanError, UnknownBytes, UnknownName};
use bonfire_report::{PageError, ReportError};
use bonfire_train as train;
use bonfire_train::TrainError;
#[cfg(feature = "weights")]
use bonfire_train::WeightsError;
use bonfire_train::diloco::DilocoError;
use thiserror::Error as ThisError;

use crate::freeze::UnknownParameter;

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;

/// The result of an operation that can end a job.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The rank that reports the error that ends this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
#[error("rank {rank} reports the error")]
pub struct Reporter {
    /// The number of the rank.
    pub rank: Rank,
}

impl Reporter {
    /// Finds it in an error, or in one of its causes.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        // A program may have wrapped the error in its own type, but its causes stay the same.
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(teller) = error.downcast_ref() {
                return Some(*teller);
            }
            cause = error.source();
        }
        None
    }
}

/// An error that ends a job.
///
/// Its `Debug` form is readable, too, so that `fn main() -> bonfire::Result<()>` ends in one clear line with all
/// causes.
#[derive(ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The environment of a launcher is wrong.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The launcher's flags contradict each other or lack something.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The ranks could not be started, or one of them failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The number of ranks cannot be determined.
    #[error(transparent)]
    RankCount(#[from] RankCountError),
    /// The number of ranks is 0.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A flag of [`launch`](crate::launch) is wrong.
    #[error("{0}")]
    Usage(String),
    /// A collective operation failed; the message names the rank at fault.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A step or another operation of training failed.
    #[error(transparent)]
    Train(TrainError),
    /// An operation between ranks that have parts of a model failed.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// Training over a pipeline failed.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// Training over slow links failed.
    #[error(transparent)]
    Diloco(#[from] DilocoError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A pattern of [`freeze`](crate::ddp::freeze) names no parameter.
    #[error(transparent)]
    UnknownParameter(#[from] UnknownParameter),
    /// A configuration has errors; all are listed.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Files for the state of optimizers cannot be made.
    #[error(transparent)]
    Offload(#[from] FileMemoryError),
    /// The weights of samples cannot be used.
    #[error(transparent)]
    SampleWeights(#[from] UnusableWeights),
    /// Training with Burn's learner failed.
    #[cfg(feature = "learner")]
    #[error(transparent)]
    Learner(#[from] LearnerError),
    /// Pictures cannot be found, read or used.
    #[cfg(feature = "images")]
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A transform of pictures fits no picture.
    #[cfg(feature = "images")]
    #[error(transparent)]
    Transform(#[from] TransformError),
    /// Parameters from a file cannot be loaded.
    #[cfg(feature = "weights")]
    #[error(transparent)]
    Weights(WeightsError),
    /// A file of parameters cannot be read.
    #[cfg(feature = "weights")]
    #[error(transparent)]
    File(#[from] FileError),
    /// A model cannot be placed on devices.
    #[cfg(all(feature = "flex", feature = "weights"))]
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A string names an unknown item or an invalid value.
    #[error(transparent)]
    Value(BoxError),
    /// Communication failed: a store, a token, a connection, an inspection.
    #[error(transparent)]
    Communication(BoxError),
    /// The data of a rank cannot be read or resumed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The training cannot be recorded or its report written.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// A report cannot be written or read.
    #[error(transparent)]
    Page(#[from] PageError),
    /// Reading or writing a file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The program cannot start itself, because the system does not provide its path.
    #[error("cannot find this program's own file, to start it as several ranks")]
    OwnPath(#[source] io::Error),
    /// The program's own error, with its source.
    #[error(transparent)]
    Program(BoxError),
    /// One of several ranks of this process failed.
    #[error("rank {rank} failed")]
    Rank {
        /// The rank that failed first.
        rank: Rank,
        /// The error that this rank returned.
        source: BoxError,
    },
    /// This rank ends because of another, which reports the error; see [`all_or_none`](crate::all_or_none).
    #[error("{0}")]
    ReportedElsewhere(#[source] Reporter),
    /// The function of a rank panicked.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The number of the rank.
        rank: Rank,
        /// The message of the panic.
        message: String,
    },
}

impl Error {
    /// Wraps a program's error, or unwraps one of this crate.
    pub(crate) fn from_program(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(own) => *own,
            Err(other) => Self::Program(other),
        }
    }
}

impl From<TrainError> for Error {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Checkpoint(CheckpointError::OnWriter { .. }) => {
                Self::ReportedElsewhere(Reporter { rank: Rank::new(0) })
            }
            error => Self::Train(error),
        }
    }
}

#[cfg(feature = "weights")]
impl From<WeightsError> for Error {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Train(error) => error.into(),
            error => Self::Weights(error),
        }
    }
}

/// Errors that programs rarely branch on, each as a variant of [`Error`].
macro_rules! wrapped {
    ($($variant:ident: $($error:ty),+;)+) => {$($(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::$variant(error.into())
            }
        }
    )+)+};
}

wrapped! {
    Value: UnknownName, train::MeshError, collective::OverrideError, collective::OptionError,
        collective::SettingError, launch::StreamChoiceError, Broken, CsvError, PartitionError, ShapeError,
        MapError, CostsError, UnknownAction, UnknownBytes;
    Communication: collective::ConnectError, collective::StoreError, collective::TokenError,
        collective::InspectError;
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&with_causes(self))
    }
}

/// An error and its causes, separated by colons; a repeated cause is left out.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once_and_in_one_line() {
        let disk = io::Error::other("disk full");
        let error = Error::Rank { rank: Rank::new(2), source: Box::new(Error::OwnPath(disk)) };
        assert_eq!(
            format!("{error:?}"),
            "rank 2 failed: cannot find this program's own file, to start it as several ranks: \
             disk full"
        );
        let error = TrainError::Forward("no text".into());
        assert_eq!(format!("{:?}", Error::from(error)), "the forward pass failed: no text");
    }

    /// `?` works in a program of [`Result`] on whatever the library returns.
    #[test]
    fn every_error_of_the_library_becomes_ours() {
        fn ours<E: Into<Error>>() {}
        ours::<TrainError>();
        ours::<ParallelError>();
        ours::<train::MeshError>();
        ours::<PipelineError>();
        ours::<DilocoError>();
        ours::<CheckpointError>();
        ours::<UnknownName>();
        ours::<UnknownBytes>();
        ours::<MapError>();
        ours::<CostsError>();
        ours::<UnknownAction>();
        ours::<collective::OptionError>();
        ours::<collective::SettingError>();
        ours::<ShapeError>();
        ours::<PartitionError>();
        ours::<CsvError>();
        ours::<Broken>();
        ours::<DataError>();
        ours::<UnknownParameter>();
        ours::<UnusableWeights>();
        #[cfg(feature = "learner")]
        ours::<LearnerError>();
        #[cfg(feature = "images")]
        {
            ours::<PictureError>();
            ours::<TransformError>();
        }
        #[cfg(feature = "weights")]
        {
            ours::<WeightsError>();
            ours::<FileError>();
        }
        #[cfg(all(feature = "flex", feature = "weights"))]
        ours::<PlaceError>();
        ours::<CollectiveError>();
        ours::<PlanError>();
        ours::<collective::ConnectError>();
        ours::<collective::StoreError>();
        ours::<collective::TokenError>();
        ours::<collective::InspectError>();
        ours::<EnvError>();
        ours::<FlagError>();
        ours::<LaunchError>();
        ours::<RankCountError>();
        ours::<io::Error>();
        let unknown = "tpu".parse::<train::DeviceKind>().unwrap_err();
        assert!(Error::from(unknown).to_string().contains("`tpu`"));
    }

    #[test]
    fn our_own_error_is_not_wrapped_again() {
        let error = Error::from_program(Error::Usage("bad flag".to_owned()).into());
        assert!(matches!(error, Error::Usage(_)), "{error:?}");
        let error = Error::from_program("trouble".into());
        assert!(matches!(error, Error::Program(_)), "{error:?}");
    }
}
