//! What can be wrong with a way to compress.

/// Gradients cannot be compressed as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressionError {
    /// A matrix of rank 0 is zero.
    #[error("PowerSgdConfig::rank is 0, which would send nothing; choose 1 or more")]
    ZeroRank,
    /// The rate is no number that sizes can be compared with.
    #[error("PowerSgdConfig::compression_rate_min is {rate}; choose a finite number above 0")]
    UnusableRate {
        /// What was asked for.
        rate: f64,
    },
    /// The epsilon is no number that can be added to a norm.
    #[error(
        "PowerSgdConfig::orthogonalization_epsilon is {epsilon}; choose 0 or a small positive number"
    )]
    UnusableEpsilon {
        /// What was asked for.
        epsilon: f64,
    },
    /// The naive way sends one parameter after the other and keeps nothing between steps.
    #[error("PowerSGD works on buckets; use it with GradientSync::Bucketed")]
    NeedsBuckets,
    /// There is a state to go on from, but this configuration keeps none.
    #[error(
        "the state is that of PowerSGD, which this training does not use; configure it as the one \
         that was saved, or do not restore its compression"
    )]
    NothingToRestore,
    /// The state is that of another model or configuration.
    #[error(
        "the state has {saved} for parameter {parameter}, but this training needs {expected}; use \
         the model and the PowerSgdConfig that it was saved with, or do not restore its compression"
    )]
    OtherMatrix {
        /// Its path in the model.
        parameter: String,
        /// What was saved.
        saved: String,
        /// What fits.
        expected: String,
    },
}
