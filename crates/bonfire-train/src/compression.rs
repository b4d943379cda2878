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
mod error;
mod matrix;
mod power_sgd;
mod state;

use bonfire_plan::{DType, WorldSize};

pub(crate) use cast::cast;
pub(crate) use codec::{Codec, Message};
pub use config::{GradientCompression, PowerSgdConfig};
pub use error::CompressionError;
use power_sgd::PowerSgd;
pub(crate) use power_sgd::Presence;
pub use state::CompressionState;

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
            return Self {
                compression: GradientCompression::None,
                power_sgd: None,
            };
        }
        let power_sgd = match compression {
            GradientCompression::PowerSgd(config) => Some(PowerSgd::new(config, parameters)),
            _ => None,
        };
        Self {
            compression,
            power_sgd,
        }
    }

    pub(crate) fn end_step(&mut self) {
        if let Some(power_sgd) = &mut self.power_sgd {
            power_sgd.end_step();
        }
    }
}
