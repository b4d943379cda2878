//! How gradients are made smaller.

use serde::{Deserialize, Serialize};

/// How gradients are made smaller for the way between the ranks. A lone rank sends nothing, so
/// nothing is made smaller there.
///
/// Whatever is chosen, all ranks get the same bits. Parameters that are stored in 16 bits have
/// gradients of 16 bits, which travel as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GradientCompression {
    /// As they are.
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
    /// Matrices travel as two thin factors. Needs gradients in buckets.
    PowerSgd(PowerSgdConfig),
}

/// How PowerSGD compresses. The defaults are PyTorch's.
///
/// A parameter of type f32 with two dimensions or more is a matrix: its first dimension by all the
/// others. A matrix of n rows and m columns is compressed if `(n + m) * rank *
/// compression_rate_min < n * m`; everything else travels as it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PowerSgdConfig {
    /// The rank of what a gradient is approximated by; a matrix with fewer rows or columns has less.
    /// More is nearer, larger and slower. Default 1.
    pub rank: usize,
    /// So many steps travel uncompressed, while gradients change too fast. Default 1000.
    pub start_step: u64,
    /// At least by this factor must a matrix become smaller to be compressed. Default 2.
    pub compression_rate_min: f64,
    /// Whether what a step leaves out is added to the gradients of the next one. Without it training
    /// loses accuracy; with it every rank keeps a copy of the compressed gradients. Default true.
    pub error_feedback: bool,
    /// Whether a step starts from the factors of the one before rather than from random ones.
    /// Default true.
    pub warm_start: bool,
    /// Added to the length of a vector before it divides. Default 0: vectors of length 0 stay.
    pub orthogonalization_epsilon: f64,
    /// Of the random factors. They are uniform rather than normal, so that they are the same bits on
    /// every host; only their directions matter. Default 0.
    pub seed: u64,
}

impl PowerSgdConfig {
    /// The same with another [`rank`](Self::rank).
    #[must_use]
    pub fn with_rank(mut self, rank: usize) -> Self {
        self.rank = rank;
        self
    }

    /// The same with another [`start_step`](Self::start_step).
    #[must_use]
    pub fn with_start_step(mut self, start_step: u64) -> Self {
        self.start_step = start_step;
        self
    }

    /// The same with another [`compression_rate_min`](Self::compression_rate_min).
    #[must_use]
    pub fn with_compression_rate_min(mut self, compression_rate_min: f64) -> Self {
        self.compression_rate_min = compression_rate_min;
        self
    }

    /// The same with another [`error_feedback`](Self::error_feedback).
    #[must_use]
    pub fn with_error_feedback(mut self, error_feedback: bool) -> Self {
        self.error_feedback = error_feedback;
        self
    }

    /// The same with another [`warm_start`](Self::warm_start).
    #[must_use]
    pub fn with_warm_start(mut self, warm_start: bool) -> Self {
        self.warm_start = warm_start;
        self
    }

    /// The same with another [`orthogonalization_epsilon`](Self::orthogonalization_epsilon).
    #[must_use]
    pub fn with_orthogonalization_epsilon(mut self, orthogonalization_epsilon: f64) -> Self {
        self.orthogonalization_epsilon = orthogonalization_epsilon;
        self
    }

    /// The same with another [`seed`](Self::seed).
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
