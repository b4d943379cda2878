//! Imports for nearly every program: `use bonfire::prelude::*;`, beside `use burn::prelude::*;` or without it. No name
//! is in both: [`config::Config`](crate::config::Config) is imported by its path, since Burn's prelude has a `Config`,
//! too.

pub use crate::checkpoint::{Checkpoints, Keep};
pub use crate::data::Loader;
pub use crate::ddp::Placement;
pub use crate::optim::Clip;
pub use crate::trainer::prepare;
pub use crate::{Ddp, DdpConfig, LaunchArgs, World, launch, launch_with, spawn};

/// Both preludes in one scope: rustc denies a name that both have.
#[cfg(test)]
#[deny(ambiguous_glob_reexports)]
pub mod with_burns {
    pub use burn::prelude::*;

    pub use crate::prelude::*;
}
