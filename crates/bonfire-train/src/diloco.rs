//! Training over slow links: DiLoCo.
//!
//! Workers train alone, each with its own optimizer, for [`local_steps`](DilocoConfig::local_steps) steps. Then they
//! average their differences to the common parameters, and an outer optimizer, SGD with Nesterov momentum, takes the
//! mean for a gradient. Parameters are sent once per round rather than gradients in each step: 50 steps send as much
//! as one step of [`Ddp`](crate::Ddp).
//!
//! Workers are the ranks along the axis `dp_replicate` of a [`Mesh`](crate::Mesh). A worker may be one rank, or
//! several along `dp_shard` that are near each other and train with their own [`Ddp`](crate::Ddp).
//!
//! ```no_run
//! # mod bonfire { pub use bonfire_train::{Ddp, World}; pub mod diloco { pub use bonfire_train::diloco::*; } pub mod world { pub use bonfire_train::*; } }
//! use bonfire::{Ddp, World};
//! use bonfire::diloco::{Diloco, DilocoConfig, DilocoError};
//! use bonfire::world::Axis;
//! use burn::module::Module;
//! use burn::optim::ModuleOptimizer;
//! use burn::tensor::Tensor;
//!
//! fn train<M: Module>(
//!     world: &World,
//!     model: M,
//!     mut optimizer: ModuleOptimizer,
//!     loss: impl Fn(&M) -> Tensor<1>,
//! ) -> Result<M, DilocoError> {
//!     // Two workers, each of them half of the ranks.
//!     let mesh = world.mesh("dp_replicate=2,dp_shard=-1")?;
//!     let (mut diloco, model) = Diloco::new(model, &mesh, DilocoConfig::default())?;
//!     let mut ddp = Ddp::new(model, mesh.sub(Axis::DpShard))?;
//!     for _ in 0..1000 {
//!         let step = ddp.backward(&loss)?;
//!         ddp.step(&mut optimizer, 1e-3, step.gradients)?;
//!         diloco.step_in(&mut ddp)?;
//!     }
//!     diloco.finish_in(&mut ddp)?;
//!     Ok(ddp.into_module())
//! }
//! ```
//!
//! After Douillard et al. 2023 (DiLoCo, arXiv 2311.08105), and Douillard et al. 2025 (Streaming DiLoCo, arXiv
//! 2501.18512) for fragments, delay and fewer bits. Parameters are sent through host memory.

mod config;
mod error;
mod floats;
mod message;
mod outer;

pub use config::{DilocoConfig, OuterGradients};
pub use error::DilocoError;
pub use outer::{Diloco, DilocoState};
