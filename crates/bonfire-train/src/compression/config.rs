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
    /// Rounded to f16: half the bytes, 11 significant bits. Each rank's gradients are divided by the number of ranks
    /// before they are rounded (to nearest, ties to even), then added in f32 and rounded once. A number beyond 65504
    /// times the number of ranks becomes infinite, on all ranks; one below 2^-25 times that number becomes zero: use
    /// a loss scaler, or [`Bf16`](Self::Bf16).
    Fp16,
    /// The same with bf16: half the bytes, the range of f32, 8 significant bits.
    Bf16,
    /// Sends matrices as two thin factors.
    PowerSgd(PowerSgdConfig),
}

bonfire_optim::config! {
    /// The options of PowerSGD. The defaults are PyTorch's.
    ///
    /// A parameter of type f32 with two dimensions or more is a matrix: its first dimension by all the others. A
    /// matrix of n rows and m columns is compressed if `(n + m) * rank * compression_rate_min < n * m`; everything
    /// else is sent as it is.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    PowerSgdConfig {
        /// The rank of a gradient's approximation; a matrix with fewer rows or columns has less. A higher rank is
        /// more exact, larger and slower. Default 1.
        rank: usize = 1 => with_rank,
        /// Number of first steps that are sent uncompressed, while gradients change too fast. Default 1000.
        start_step: u64 = 1000 => with_start_step,
        /// The least factor by which a matrix must become smaller to be compressed. Default 2.
        compression_rate_min: f64 = 2.0 => with_compression_rate_min,
        /// Adds the error of a step to the gradients of the next one. Without it training loses accuracy; with it
        /// every rank keeps a copy of the compressed gradients. Default true.
        error_feedback: bool = true => with_error_feedback,
        /// Starts a step from the factors of the previous one rather than from random ones. Default true.
        warm_start: bool = true => with_warm_start,
        /// Added to the norm of a vector before it divides. Default 0: zero vectors stay.
        orthogonalization_epsilon: f64 = 0.0 => with_orthogonalization_epsilon,
        /// The seed of the random factors. They are uniform rather than normal, so that they are the same bits on
        /// every host; only their directions matter. Default 0.
        seed: u64 = 0 => with_seed,
    }
}
