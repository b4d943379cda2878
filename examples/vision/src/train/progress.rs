//! The progress of a run: the state in its checkpoints, and its resumption.

use std::fs;
use std::hash::{BuildHasher, RandomState};

use anyhow::{Result, ensure};
use bonfire::checkpoint::Checkpoints;
use bonfire::collective::Rank;
use bonfire::data::SamplerState;
use bonfire::{Ddp, World};
use burn::optim::ModuleOptimizer;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::model::Model;

/// The program's state in a checkpoint, besides model and optimizer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The seed of the run's data order.
    pub(crate) seed: u64,
    /// The position in the data.
    pub(crate) data: SamplerState,
    /// The highest accuracy so far, in per cent.
    pub(crate) best: Option<f64>,
}

impl Progress {
    /// The next epoch is `epoch`, counted from 0.
    pub(crate) fn next_epoch(&mut self, epoch: usize) {
        (self.data.epoch, self.data.offset) = (epoch as u64, 0);
    }
}

/// Restores the last checkpoint, if it is configured and exists, and returns its progress and steps; `None` if the run
/// begins.
pub(crate) fn resumed(
    world: &World,
    config: &Config,
    checkpoints: &Checkpoints,
    ddp: &mut Ddp<Model>,
    optimizer: &mut ModuleOptimizer,
) -> Result<Option<(Progress, u64)>> {
    if !config.train.auto_resume {
        let path = checkpoints.folder().display();
        ensure!(
            !holds_checkpoints(world, checkpoints)?,
            "{path} has checkpoints, and TRAIN.AUTO_RESUME is off; give another OUT_DIR"
        );
        return Ok(None);
    }
    let fresh = optimizer.clone();
    let Some(resumed) = checkpoints.resume(ddp, optimizer)? else {
        return Ok(None);
    };
    if !config.train.load_opt {
        *optimizer = fresh;
    }
    Ok(Some((resumed.state, resumed.milestone.step)))
}

/// Returns true if rank 0 has any checkpoint; the same on every rank.
fn holds_checkpoints(world: &World, checkpoints: &Checkpoints) -> Result<bool> {
    let mut any = [0_u8];
    if world.is_main() {
        // The folder is made with the first of them.
        let entries = fs::read_dir(checkpoints.folder()).into_iter().flatten();
        let mut names = entries.flatten().map(|entry| entry.file_name());
        any = [u8::from(names.any(|name| name.as_encoded_bytes().starts_with(b"step-")))];
    }
    world.group().broadcast(&mut any, Rank::new(0))?;
    Ok(any == [1])
}

/// The seed of the configuration, or else one that rank 0 draws for all.
pub(crate) fn agreed(world: &World, seed: Option<u64>) -> Result<u64> {
    if let Some(seed) = seed {
        return Ok(seed);
    }
    let mut drawn = [RandomState::new().hash_one(0)];
    world.group().broadcast(&mut drawn, Rank::new(0))?;
    Ok(drawn[0])
}
