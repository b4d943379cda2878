//! What every rank does in a collective: the shape of a schedule, its steps, and the algorithms that build them.

mod algorithm;
mod extent;
mod hosts;
mod in_place;
mod partition;
mod plan;
mod schedule;
mod step;

pub use extent::Role;
pub use hosts::Hosts;
pub(crate) use partition::Blocks;
pub use partition::Partition;
pub use plan::Plan;
pub use schedule::{Schedule, ScheduleShape};
pub use step::{Source, Stage, Step};
