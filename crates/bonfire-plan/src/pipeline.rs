//! Pipelines: which rank computes which stage of the model for which micro-batch, and when, as data.
//!
//! The layers of a model are cut into stages, one behind the other. A batch is cut into micro-batches. A
//! [`Schedule`] gives each rank its list of [`Action`]s. It starts with passes over stages alone; further
//! functions add messages, sums of gradients, and gathers of parameters. The verifier proves a list before it
//! runs, wherever it is from; the simulator says how long it takes.
//!
//! ```
//! # mod bonfire { pub mod collective { pub use bonfire_plan::*; } pub mod parallel { pub mod schedule { pub use bonfire_plan::pipeline::*; } } }
//! use std::num::NonZeroU32;
//!
//! use bonfire::collective::WorldSize;
//! use bonfire::parallel::schedule::{Costs, Kind, PassTimes, Schedule, Shape, simulate, verify};
//!
//! let shape = Shape {
//!     kind: Kind::OneForwardOneBackward,
//!     ranks: WorldSize::new(4)?,
//!     chunks: NonZeroU32::MIN,
//!     micro_batches: NonZeroU32::new(8).unwrap(),
//! };
//! let schedule = Schedule::new(shape)?.with_messages()?;
//! // Rank 0 holds four activations at most, rank 3 one.
//! assert_eq!(verify(&schedule)?.live_max, [4, 3, 2, 1]);
//!
//! let times = PassTimes { forward_s: 1.0, input_gradient_s: 1.0, weight_gradient_s: 1.0 };
//! let timing = simulate(&schedule, &Costs::even(times, &schedule, 0.0)?)?;
//! assert!((timing.bubble() - 3.0 / 11.0).abs() < 1e-12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Bubble
//!
//! The bubble is the part of the ranks' time in which they compute nothing: 1 - busy / (ranks x makespan),
//! where the makespan is from the start of the first pass to the end of the last. Some papers divide by the
//! busy time instead, which gives larger figures: of 1F1B (p-1)/m and not (p-1)/(m+p-1).
//!
//! Nothing here performs I/O, reads a clock, or knows tensors.

mod action;
mod choose;
mod closed_forms;
mod csv;
mod error;
mod kind;
mod orders;
mod partition;
mod passes;
mod run;
mod schedule;
mod shape;
mod simulate;
mod verify;

pub use action::{Action, Compute, Message, Pass, PassTimes, Payload, UnknownAction};
pub use choose::{Candidate, Demand, choose};
pub use csv::CsvError;
pub use error::{Blocked, Broken, Rule, ShapeError};
pub use kind::Kind;
pub use partition::{PartitionError, partition};
pub use schedule::Schedule;
pub use shape::Shape;
pub use simulate::{Costs, CostsError, Span, Timing, simulate};
pub use verify::{Proof, verify};
