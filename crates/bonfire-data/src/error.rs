//! Errors of a rank's data.

use std::error::Error;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The data of a rank cannot be read or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A batch could not be prepared.
    #[error("the data of this rank failed: {0}")]
    Batch(#[source] BoxError),
    /// A checkpoint was made with other data, or with the data in another order.
    #[error(
        "the checkpoint was made with {saved}, but this run has {given}; give it the same data and \
         seed, or start again"
    )]
    OtherData {
        /// The number of samples and their order in the checkpoint.
        saved: String,
        /// The number of samples and their order in this run.
        given: String,
    },
}
