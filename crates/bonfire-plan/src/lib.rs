//! What every rank does in a collective, as data.
//!
//! A [`Schedule`] gives each rank a list of [`Step`]s: put a range into a peer's inbox, wait for a
//! peer's frame, fold or copy it, release its slot; or fold ranges of peers' buffers where they
//! lie. The lists are built by pure functions, proved by a symbolic verifier before they run, and
//! executed unchanged by every engine. [`estimate`] returns how long one takes without making it.
//!
//! This crate must never perform I/O, read a clock, or depend on a tensor framework.
//!
//! ```
//! use std::num::NonZeroUsize;
//!
//! use bonfire_plan::*;
//!
//! // Four ranks reduce 1000 elements round a ring, in frames of at most 256 elements.
//! let world_size = WorldSize::new(4)?;
//! let schedule = Schedule::new(ScheduleShape {
//!     collective: Collective::AllReduce,
//!     algorithm: Algorithm::Ring,
//!     world_size,
//!     count: 1000,
//!     chunk_elems_max: NonZeroUsize::new(256).unwrap(),
//!     partition: Partition::Balanced,
//!     hosts: Hosts::one(world_size),
//! })?;
//!
//! // Proved for one slot between each two ranks, and so for any number of slots.
//! let report = check(&schedule, NonZeroUsize::MIN)?;
//!
//! // 2 (n - 1) rounds, and 2 (n - 1) / n of the buffer sent by each rank.
//! assert_eq!(report.cost.rounds(), 6);
//! assert_eq!(report.cost.bytes_sent_max(DType::F32).get(), 1500 * 4);
//! // The fold of each shard starts at another rank: the same bits on all ranks and in every run,
//! // but not those of the fold over ranks 0 to 3.
//! assert_eq!(report.order, Order::Fixed);
//!
//! // Who sends how much, and what every rank does.
//! println!("{}\n{}", report.cost, Plan::new(schedule));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod check;
mod collective;
pub mod device_map;
mod estimate;
mod layout;
pub mod memory;
mod mesh;
pub mod pipeline;
pub mod rate;
pub mod simulate;
mod types;

pub use check::{
    Blocked, CheckError, Cost, Fault, Flaw, Obstacle, RankCost, Report, check, check_plan,
};
pub use collective::{Hosts, Partition, Plan, Role, Schedule, ScheduleShape, Source, Stage, Step};
pub use estimate::{LinkCosts, LinkFigures, estimate};
pub use layout::buckets;
pub use layout::{
    Cut, Division, Layout, Placement, SHARDED_ELEMS_MIN, ShardGroup, ShardUnit, Sharding,
};
pub use mesh::{Axis, Coordinates, Grid, MeshError, MeshShape};
pub use types::{
    Algorithm, Bytes, CallSite, Collective, DType, ElemRange, NamedRanks, Operation, Order,
    PlanError, Rank, ReduceOp, UnknownBytes, UnknownName, WorldSize, chunks, nearest, shard_range,
};
