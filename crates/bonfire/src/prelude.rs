//! What nearly every program uses: `use bonfire::prelude::*;`.

pub use crate::{
    Checkpoints, Clip, Ddp, DdpConfig, Decay, DeviceKind, DistributedSampler, GlobalBatch,
    GradientCompression, GradientSync, IntoLoss, Keep, LastBatch, LaunchArgs, Loader, Loss,
    LossScaler, Milestone, Order, ProcessGroup, Rank, RateRule, ReduceOp, Remainder, SamplerConfig,
    Schedule, Training, WeightedMean, World, WorldSize, launch, launch_with, spawn,
};
