//! Gradient compression: smaller messages in place of gradients.
//!
//! A [`Compressor`] belongs to a reducer and keeps state between steps, by parameter; a [`Codec`] belongs to a
//! bucket and keeps the memory that is sent. Both follow PyTorch's communication hooks (`default_hooks.py`,
//! `powerSGD_hook.py`).
//!
//! Must never make replicas differ: every value that ranks compute alike is computed from reduced
//! values, with operations in a fixed order.

mod cast;
mod codec;
mod config;
mod matrix;
mod power_sgd;
mod state;

use bonfire_plan::{DType, WorldSize};

pub(crate) use cast::cast;
pub(crate) use codec::{Codec, Message};
pub use config::{GradientCompression, PowerSgdConfig};
use power_sgd::PowerSgd;
pub(crate) use power_sgd::Presence;
pub use state::CompressionState;

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
        /// The configured value: infinite, NaN, 0 or negative.
        rate: f64,
    },
    /// The epsilon is not a number that can be added to a norm.
    #[error(
        "PowerSgdConfig::orthogonalization_epsilon is {epsilon}; choose 0 or a small positive number"
    )]
    UnusableEpsilon {
        /// The configured value: infinite, NaN or negative.
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
        /// The path of the first parameter that differs.
        parameter: String,
        /// The size and rank of its matrix in the state, or `none`.
        saved: String,
        /// The size and rank of its matrix in this training, or `none`.
        expected: String,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter<'a> {
    pub name: &'a str,
    pub dtype: DType,
    /// The shape of the complete parameter.
    pub shape: &'a [usize],
}

impl GradientCompression {
    /// Checks that this compression can be used.
    ///
    /// # Errors
    /// [`CompressionError`] for numbers out of range.
    pub fn check(&self) -> Result<(), CompressionError> {
        match self {
            Self::PowerSgd(config) => config.check(),
            Self::None | Self::Fp16 | Self::Bf16 => Ok(()),
        }
    }

    /// Returns the type of 16 bits in which gradients of `dtype` are sent, if it differs from their own.
    pub fn sixteen_bits(self, dtype: DType) -> Option<DType> {
        let wide = matches!(dtype, DType::F32 | DType::F64);
        match self {
            Self::Fp16 if wide => Some(DType::F16),
            Self::Bf16 if wide => Some(DType::BF16),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Compressor {
    compression: GradientCompression,
    power_sgd: Option<PowerSgd>,
}

impl Compressor {
    /// Returns true if any gradient is sent in another form.
    pub(crate) fn compresses(&self) -> bool {
        !matches!(self.compression, GradientCompression::None)
    }

    /// For the parameters of a model, which are the same on all ranks.
    pub(crate) fn new<'a>(
        compression: GradientCompression,
        parameters: impl IntoIterator<Item = Parameter<'a>>,
        world_size: WorldSize,
    ) -> Self {
        if world_size.get() == 1 {
            return Self { compression: GradientCompression::None, power_sgd: None };
        }
        let power_sgd = match compression {
            GradientCompression::PowerSgd(config) => Some(PowerSgd::new(config, parameters)),
            _ => None,
        };
        Self { compression, power_sgd }
    }

    pub(crate) fn end_step(&mut self) {
        if let Some(power_sgd) = &mut self.power_sgd {
            power_sgd.end_step();
        }
    }
}
