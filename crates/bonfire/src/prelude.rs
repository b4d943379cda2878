//! What nearly every program uses: `use bonfire::prelude::*;`.

pub use crate::checkpoint::{Checkpoints, Keep, Milestone};
pub use crate::collective::{ProcessGroup, Rank, ReduceOp, WorldSize};
pub use crate::compression::GradientCompression;
pub use crate::config::Config;
pub use crate::data::{DistributedSampler, LastBatch, Loader, Order, Remainder, SamplerConfig};
pub use crate::ddp::{IntoLoss, Loss, Placement};
pub use crate::optim::{Clip, Decay, GlobalBatch, LossScaler, RateRule, Schedule};
pub use crate::report::WeightedMean;
pub use crate::trainer::{Data, Parts, prepare};
pub use crate::world::DeviceKind;
pub use crate::{Ddp, DdpConfig, LaunchArgs, World, launch, launch_with, spawn};
