//! The words of a schedule: ranks, types of elements, ranges, operations, and what may be wrong with them.

mod chunk;
mod dtype;
mod error;
mod fnv;
mod names;
mod op;
mod operation;
mod rank;
mod unknown_name;

pub use chunk::{Bytes, ElemRange, UnknownBytes, chunks, shard_range};
pub(crate) use chunk::{chunk, chunk_count};
pub use dtype::DType;
pub use error::PlanError;
pub(crate) use fnv::fnv_1a;
pub(crate) use names::{joined, named_codes};
#[cfg(test)]
pub(crate) use op::tests::one_of_each;
pub use op::{Algorithm, Collective, NamedRanks, Order, ReduceOp};
pub use operation::{CallSite, Operation};
pub use rank::{Rank, WorldSize};
pub use unknown_name::{UnknownName, nearest};
