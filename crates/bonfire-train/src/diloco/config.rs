//! Options of the exchanges between workers.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

use super::DilocoError;

bonfire_optim::config! {
    /// Options of [`Diloco`](crate::diloco::Diloco). All ranks must agree on them. The defaults are those of the
    /// paper, but for 50 steps rather than 500.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    DilocoConfig {
        /// Steps that a worker takes alone between two exchanges of the same parameter. Default 50.
        local_steps: NonZeroU64 = NonZeroU64::new(50).expect("it is not zero") => with_local_steps,
        /// The learning rate of the outer optimizer. Default 0.7.
        outer_rate: f64 = 0.7,
        /// Its Nesterov momentum, at least 0 and less than 1. Default 0.9.
        outer_momentum: f64 = 0.9,
        /// Number of parts of the parameters, which are exchanged one after the other in the course of `local_steps`,
        /// so that the link is used evenly. Default 1.
        fragments: NonZeroUsize = NonZeroUsize::MIN => with_fragments,
        /// Steps that a worker continues during an exchange; less than `local_steps`. Default 0: it waits.
        delay: u64 = 0,
        /// The share of a worker's own parameters that remains when it takes those of the exchange, at least 0 and
        /// less than 1. Default 0. With a `delay`, 0.5 keeps half of the worker's steps meanwhile.
        mixing: f64 = 0.0,
        /// The data type of exchanged differences. Default: f32.
        outer_gradients: OuterGradients = OuterGradients::F32 => with_outer_gradients,
    }
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

impl DilocoConfig {
    /// Sets the outer optimizer's learning rate and its momentum.
    pub fn with_outer(self, outer_rate: f64, outer_momentum: f64) -> Self {
        Self { outer_rate, outer_momentum, ..self }
    }

    /// Sets the steps that workers continue during an exchange, and the share of their own parameters that they keep.
    pub fn with_delay(self, delay: u64, mixing: f64) -> Self {
        Self { delay, mixing, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), DilocoError> {
        let part = |value: f64| (0.0..1.0).contains(&value);
        let wrong = if !(self.outer_rate.is_finite() && self.outer_rate > 0.0) {
            Some(format!("outer_rate is {}, and must be more than 0", self.outer_rate))
        } else if !part(self.outer_momentum) {
            Some(format!(
                "outer_momentum is {}, and must be at least 0 and less than 1",
                self.outer_momentum
            ))
        } else if !part(self.mixing) {
            Some(format!("mixing is {}, and must be at least 0 and less than 1", self.mixing))
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
