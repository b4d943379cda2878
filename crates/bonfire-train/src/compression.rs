//! What travels instead of the gradients.
//!
//! A [`Compressor`] belongs to a reducer and keeps what outlives a step, by parameter; a
//! [`Carrier`] belongs to a bucket and keeps the memory that travels. Both follow PyTorch's
//! communication hooks (`default_hooks.py`, `powerSGD_hook.py`).
//!
//! Must never make replicas differ: every value that ranks compute alike is computed from reduced
//! values, with operations in a fixed order.

mod carrier;
mod cast;
mod matrix;
mod power_sgd;
mod state;

use bonfire_plan::{DType, WorldSize};

use crate::GradientSync;
pub(crate) use crate::config::compression::GradientCompression;
use crate::error::compression::CompressionError;
use crate::parameters::ParameterTable;
pub(crate) use carrier::{Carrier, Sent};
pub(crate) use cast::cast;
use power_sgd::PowerSgd;
pub(crate) use power_sgd::Presence;
pub use state::CompressionState;

impl GradientCompression {
    /// That this can be used.
    pub(crate) fn check(&self, sync: GradientSync) -> Result<(), CompressionError> {
        match self {
            Self::PowerSgd(_) if sync != GradientSync::Bucketed => {
                Err(CompressionError::NeedsBuckets)
            }
            Self::PowerSgd(config) => config.check(),
            Self::None | Self::Fp16 | Self::Bf16 => Ok(()),
        }
    }

    /// The type that gradients of a type travel in, if it is one of 16 bits and theirs is not.
    pub(crate) fn sixteen_bits(self, dtype: DType) -> Option<DType> {
        let wide = matches!(dtype, DType::F32 | DType::F64);
        match self {
            Self::Fp16 if wide => Some(DType::F16),
            Self::Bf16 if wide => Some(DType::BF16),
            _ => None,
        }
    }
}

/// What a reducer knows about compression.
#[derive(Debug)]
pub(crate) struct Compressor {
    compression: GradientCompression,
    power_sgd: Option<PowerSgd>,
}

impl Compressor {
    pub(crate) fn new(
        compression: GradientCompression,
        table: &ParameterTable,
        world_size: WorldSize,
    ) -> Self {
        if world_size.get() == 1 {
            return Self {
                compression: GradientCompression::None,
                power_sgd: None,
            };
        }
        let power_sgd = match compression {
            GradientCompression::PowerSgd(config) => Some(PowerSgd::new(config, table)),
            _ => None,
        };
        Self {
            compression,
            power_sgd,
        }
    }

    /// Ends a synchronised step.
    pub(crate) fn end_step(&mut self) {
        if let Some(power_sgd) = &mut self.power_sgd {
            power_sgd.end_step();
        }
    }
}
