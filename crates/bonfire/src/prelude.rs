//! What nearly every program uses: `use bonfire::prelude::*;`.

pub use crate::{
    Ddp, DdpConfig, DeviceKind, DistributedSampler, GradientSync, IntoLoss, LastBatch, LaunchArgs,
    Loader, Loss, Order, ProcessGroup, Rank, ReduceOp, Remainder, SamplerConfig, WeightedMean,
    World, WorldSize, launch, launch_with, spawn,
};
