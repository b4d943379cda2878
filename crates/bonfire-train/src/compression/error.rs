//! Errors of gradient compression.

/// A compression has unusable options or state.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressionError {
    /// The rank is 0, so matrices would be zero.
    #[error("PowerSgdConfig::rank is 0, which would send nothing; choose 1 or more")]
    ZeroRank,
    /// The rate is not a number that can be compared with sizes.
    #[error("PowerSgdConfig::compression_rate_min is {rate}; choose a finite number above 0")]
    UnusableRate {
        /// The rate that was configured.
        rate: f64,
    },
    /// The epsilon is not a number that can be added to a norm.
    #[error(
        "PowerSgdConfig::orthogonalization_epsilon is {epsilon}; choose 0 or a small positive number"
    )]
    UnusableEpsilon {
        /// The epsilon that was configured.
        epsilon: f64,
    },
    /// There is a state to restore, but this configuration keeps none.
    #[error(
        "the state is that of PowerSGD, which this training does not use; configure it as the one \
         that was saved, or do not restore its compression"
    )]
    NothingToRestore,
    /// The state belongs to another model or configuration.
    #[error(
        "the state has {saved} for parameter {parameter}, but this training needs {expected}; use \
         the model and the PowerSgdConfig that it was saved with, or do not restore its compression"
    )]
    OtherMatrix {
        /// The path of the parameter.
        parameter: String,
        /// The saved shape or size.
        saved: String,
        /// The shape or size that fits.
        expected: String,
    },
}
