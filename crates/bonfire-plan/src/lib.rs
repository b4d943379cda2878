//! What every rank does in a collective, as data.
//!
//! A [`Schedule`] gives each rank a list of [`Step`]s: put a range into a peer's inbox, wait for a
//! peer's frame, fold or copy it, release its slot. The lists are built by pure functions, proved
//! by a symbolic verifier before they run, and executed unchanged by every engine.
//!
//! This crate must never perform I/O, read a clock, or depend on a tensor framework.

#![forbid(unsafe_code)]

mod binomial;
mod check;
mod chunk;
mod cost;
mod direct;
mod dissemination;
mod dtype;
mod error;
mod names;
mod op;
mod plan;
mod rank;
mod ring;
mod schedule;
mod step;
pub mod wire;

pub use check::{Blocked, CheckError, Fault, Flaw, Obstacle, Order, Report, check, check_plan};
pub use chunk::{Bytes, ElemRange, chunks, shard_range};
pub use cost::{Cost, RankCost};
pub use dtype::DType;
pub use error::PlanError;
pub use op::{Algorithm, Collective, ReduceOp};
pub use plan::Plan;
pub use rank::{Rank, WorldSize};
pub use schedule::{Schedule, ScheduleShape};
pub use step::{Source, Stage, Step};
