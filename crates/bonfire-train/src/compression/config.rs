//! The configuration of gradient compression.

use serde::{Deserialize, Serialize};

/// The form in which gradients are sent between ranks. A lone rank sends nothing, so it compresses nothing.
///
/// Whatever is chosen, all ranks get the same bits. Parameters that are stored in 16 bits have gradients of 16 bits,
/// which are sent as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GradientCompression {
    /// Sends gradients as they are.
    #[default]
    None,
    /// Rounded to f16: half the bytes, 11 significant bits. Each rank's gradients are divided by the
    /// number of ranks before they are rounded (to nearest, ties to even), then added in f32 and
    /// rounded once. A number beyond 65504 times the number of ranks becomes infinite, on all ranks;
    /// one below 2^-25 times that number becomes zero: use a loss scaler, or
    /// [`Bf16`](Self::Bf16).
    Fp16,
    /// The same with bf16: half the bytes, the range of f32, 8 significant bits.
    Bf16,
    /// Sends matrices as two thin factors.
    PowerSgd(PowerSgdConfig),
}

/// The options of PowerSGD. The defaults are PyTorch's.
///
/// A parameter of type f32 with two dimensions or more is a matrix: its first dimension by all the others. A matrix of
/// n rows and m columns is compressed if `(n + m) * rank * compression_rate_min < n * m`; everything else is sent as
/// it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PowerSgdConfig {
    /// The rank of a gradient's approximation; a matrix with fewer rows or columns has less. A higher rank is more
    /// exact, larger and slower. Default 1.
    pub rank: usize,
    /// Number of first steps that are sent uncompressed, while gradients change too fast. Default 1000.
    pub start_step: u64,
    /// The least factor by which a matrix must become smaller to be compressed. Default 2.
    pub compression_rate_min: f64,
    /// Adds the error of a step to the gradients of the next one. Without it training loses accuracy; with it every
    /// rank keeps a copy of the compressed gradients. Default true.
    pub error_feedback: bool,
    /// Starts a step from the factors of the previous one rather than from random ones. Default true.
    pub warm_start: bool,
    /// Added to the norm of a vector before it divides. Default 0: zero vectors stay.
    pub orthogonalization_epsilon: f64,
    /// The seed of the random factors. They are uniform rather than normal, so that they are the same bits on every
    /// host; only their directions matter. Default 0.
    pub seed: u64,
}

impl PowerSgdConfig {
    /// Sets [`rank`](Self::rank), at least 1.
    #[must_use]
    pub fn with_rank(mut self, rank: usize) -> Self {
        self.rank = rank;
        self
    }

    /// Sets [`start_step`](Self::start_step), a number of steps.
    #[must_use]
    pub fn with_start_step(mut self, start_step: u64) -> Self {
        self.start_step = start_step;
        self
    }

    /// Sets [`compression_rate_min`](Self::compression_rate_min), as a factor.
    #[must_use]
    pub fn with_compression_rate_min(mut self, compression_rate_min: f64) -> Self {
        self.compression_rate_min = compression_rate_min;
        self
    }

    /// Sets [`error_feedback`](Self::error_feedback), true by default.
    #[must_use]
    pub fn with_error_feedback(mut self, error_feedback: bool) -> Self {
        self.error_feedback = error_feedback;
        self
    }

    /// Sets [`warm_start`](Self::warm_start), true by default.
    #[must_use]
    pub fn with_warm_start(mut self, warm_start: bool) -> Self {
        self.warm_start = warm_start;
        self
    }

    /// Sets [`orthogonalization_epsilon`](Self::orthogonalization_epsilon), 0 by default.
    #[must_use]
    pub fn with_orthogonalization_epsilon(mut self, orthogonalization_epsilon: f64) -> Self {
        self.orthogonalization_epsilon = orthogonalization_epsilon;
        self
    }

    /// Sets [`seed`](Self::seed) of the random factors.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl Default for PowerSgdConfig {
    fn default() -> Self {
        Self {
            rank: 1,
            start_step: 1000,
            compression_rate_min: 2.0,
            error_feedback: true,
            warm_start: true,
            orthogonalization_epsilon: 0.0,
            seed: 0,
        }
    }
}
