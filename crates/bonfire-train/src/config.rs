//! How gradients are synchronised.

use serde::{Deserialize, Serialize};

use crate::{GradientCompression, Precision};

/// When and in what units gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GradientSync {
    /// In buckets, while the backward pass still runs.
    #[default]
    Bucketed,
    /// One parameter after the other, after the backward pass: the simplest thing that is right.
    /// Slower; the measure that [`Bucketed`](Self::Bucketed) is compared with.
    Naive,
}

/// Options of [`Ddp`](crate::Ddp). All ranks must agree on them; [`Ddp::new`](crate::Ddp::new)
/// checks that they do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DdpConfig {
    /// A bucket takes no further gradient once it would hold more than this. Default 25 MiB: large
    /// enough to use the bandwidth of a link, small enough that several fit into a backward pass. A
    /// parameter that is larger has a bucket of its own.
    pub bucket_bytes_max: usize,
    /// The same for the bucket that is ready first. Default 1 MiB, so that the links are busy early.
    pub first_bucket_bytes_max: usize,
    /// When and in what units gradients travel.
    pub sync: GradientSync,
    /// What travels instead of the gradients. Default: nothing, they travel as they are.
    pub compression: GradientCompression,
    /// The type that forward and backward passes compute in. Default: that of the parameters.
    pub precision: Precision,
}

impl Default for DdpConfig {
    fn default() -> Self {
        Self {
            bucket_bytes_max: 25 << 20,
            first_bucket_bytes_max: 1 << 20,
            sync: GradientSync::Bucketed,
            compression: GradientCompression::None,
            precision: Precision::F32,
        }
    }
}
