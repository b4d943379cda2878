//! Imports for nearly every program: `use bonfire::prelude::*;`, beside `use burn::prelude::*;` or without it. No name
//! is in both: [`config::Config`](crate::config::Config) is imported by its path, since Burn's prelude has a `Config`,
//! too.

pub use crate::checkpoint::{Checkpoints, Keep, Milestone};
pub use crate::collective::{ProcessGroup, Rank, ReduceOp, WorldSize};
pub use crate::compression::GradientCompression;
pub use crate::data::{DistributedSampler, LastBatch, Loader, Order, Remainder, SamplerConfig};
pub use crate::ddp::{IntoLoss, Loss, Placement};
pub use crate::optim::{Clip, Decay, GlobalBatch, LossScaler, RateRule, Schedule};
pub use crate::report::WeightedMean;
pub use crate::trainer::{Data, Parts, prepare};
pub use crate::{Ddp, DdpConfig, LaunchArgs, World, launch, launch_with, spawn};

/// Both preludes in one scope: rustc denies a name that both have.
#[cfg(test)]
#[deny(ambiguous_glob_reexports)]
pub mod with_burns {
    pub use burn::prelude::*;

    pub use crate::prelude::*;
}
