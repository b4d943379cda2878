//! Options of the exchanges between workers.

use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::str::FromStr;

use bonfire_plan::UnknownName;
use serde::{Deserialize, Serialize};

use super::DilocoError;

/// Options of [`Diloco`](crate::diloco::Diloco). All ranks must agree on them. The defaults are those of the paper, but for 50
/// steps rather than 500.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DilocoConfig {
    /// Steps that a worker takes alone between two exchanges of the same parameter. Default 50.
    pub local_steps: NonZeroU64,
    /// The learning rate of the outer optimizer. Default 0.7.
    pub outer_rate: f64,
    /// Its Nesterov momentum, at least 0 and less than 1. Default 0.9.
    pub outer_momentum: f64,
    /// Number of parts of the parameters, which are exchanged one after the other in the course of `local_steps`, so
    /// that the link is used evenly. Default 1.
    pub fragments: NonZeroUsize,
    /// Steps that a worker continues during an exchange; less than `local_steps`. Default 0: it waits.
    pub delay: u64,
    /// The share of a worker's own parameters that remains when it takes those of the exchange, at least 0 and less
    /// than 1. Default 0. With a `delay`, 0.5 keeps half of the worker's steps meanwhile.
    pub mixing: f64,
    /// The data type of exchanged differences. Default: f32.
    pub outer_gradients: OuterGradients,
}

/// The data type of a worker's difference to the common parameters. The outer optimizer computes in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OuterGradients {
    /// 4 bytes for each parameter: exact f32 values.
    #[default]
    F32,
    /// 2 bytes: rounded to bf16 by each worker, summed in f32, and the mean rounded again.
    Bf16,
    /// 1 byte, and 4 for each block of 256 parameters: integers from -127 to 127 times a scale of the block. Every
    /// worker sends its integers to every other, so more than four workers send more than with [`Bf16`](Self::Bf16).
    Int8,
}

impl FromStr for OuterGradients {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        UnknownName::find(
            "type of outer gradients",
            text,
            &[Self::F32, Self::Bf16, Self::Int8],
        )
    }
}

impl fmt::Display for OuterGradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

impl Default for DilocoConfig {
    fn default() -> Self {
        Self {
            local_steps: NonZeroU64::new(50).expect("it is not zero"),
            outer_rate: 0.7,
            outer_momentum: 0.9,
            fragments: NonZeroUsize::MIN,
            delay: 0,
            mixing: 0.0,
            outer_gradients: OuterGradients::F32,
        }
    }
}

impl DilocoConfig {
    /// Sets the number of steps between two exchanges.
    pub fn with_local_steps(self, local_steps: NonZeroU64) -> Self {
        Self {
            local_steps,
            ..self
        }
    }

    /// Sets the outer optimizer's learning rate and its momentum.
    pub fn with_outer(self, outer_rate: f64, outer_momentum: f64) -> Self {
        Self {
            outer_rate,
            outer_momentum,
            ..self
        }
    }

    /// Sets the number of parts, exchanged one after the other.
    pub fn with_fragments(self, fragments: NonZeroUsize) -> Self {
        Self { fragments, ..self }
    }

    /// Sets the steps that workers continue during an exchange, and the share of their own parameters that they keep.
    pub fn with_delay(self, delay: u64, mixing: f64) -> Self {
        Self {
            delay,
            mixing,
            ..self
        }
    }

    /// Sets the data type of exchanged differences.
    pub fn with_outer_gradients(self, outer_gradients: OuterGradients) -> Self {
        Self {
            outer_gradients,
            ..self
        }
    }

    pub(crate) fn check(&self) -> Result<(), DilocoError> {
        let part = |value: f64| (0.0..1.0).contains(&value);
        let wrong = if !(self.outer_rate.is_finite() && self.outer_rate > 0.0) {
            Some(format!(
                "outer_rate is {}, and must be more than 0",
                self.outer_rate
            ))
        } else if !part(self.outer_momentum) {
            Some(format!(
                "outer_momentum is {}, and must be at least 0 and less than 1",
                self.outer_momentum
            ))
        } else if !part(self.mixing) {
            Some(format!(
                "mixing is {}, and must be at least 0 and less than 1",
                self.mixing
            ))
        } else if self.delay >= self.local_steps.get() {
            Some(format!(
                "delay is {}, and must be less than local_steps, which is {}",
                self.delay, self.local_steps
            ))
        } else {
            None
        };
        wrong.map_or(Ok(()), |what| Err(DilocoError::Config { what }))
    }

    /// Returns true if the exchange of a fragment begins after `step` steps. The last one's falls on multiples of
    /// `local_steps`.
    pub(crate) fn begins(&self, fragment: usize, step: u64) -> bool {
        let (every, count) = (self.local_steps.get(), self.fragments.get() as u64);
        let phase = (fragment as u64 + 1) * every / count;
        step % every == phase % every
    }
}
