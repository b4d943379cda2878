//! Saves and resumes a training on any mesh.
//!
//! It saves the model and the optimizer: the windows of a step and its learning rate follow from the number of the
//! step.

use anyhow::Result;
use bonfire::checkpoint::{Checkpoints, Keep, Milestone, Resumed, TensorTable};
use bonfire::world::Mesh;
use bonfire::{Ddp, World};
use burn::module::Module;
use burn::optim::ModuleOptimizer;

use crate::options::Settings;

#[derive(Debug)]
pub struct Saver {
    checkpoints: Option<Checkpoints>,
    interval: u64,
    /// The steps that the last checkpoint has.
    saved: Option<u64>,
}

impl Saver {
    pub fn open(
        world: &World,
        mesh: &Mesh,
        whole: TensorTable,
        settings: &Settings,
    ) -> Result<Self> {
        let open = |folder| -> Result<Checkpoints> {
            let checkpoints = Checkpoints::open(world, folder, Keep::default())?;
            Ok(checkpoints.with_parts(whole, mesh)?)
        };
        Ok(Self {
            checkpoints: settings.checkpoints.as_ref().map(open).transpose()?,
            interval: settings.checkpoint_interval,
            saved: None,
        })
    }

    /// Restores the last checkpoint by `resume`, and returns the number of its steps.
    pub fn resume(
        &self,
        resume: impl FnOnce(&Checkpoints) -> Result<Option<Resumed<()>>>,
    ) -> Result<u64> {
        let resumed = match &self.checkpoints {
            Some(checkpoints) => resume(checkpoints)?,
            None => None,
        };
        Ok(resumed.map_or(0, |resumed| resumed.milestone.step))
    }

    pub fn is_due(&self, steps: u64) -> bool {
        steps.is_multiple_of(self.interval)
    }

    /// Saves a training of `steps` steps, unless it has been saved.
    pub fn save<M: Module>(
        &mut self,
        steps: u64,
        ddp: &mut Ddp<M>,
        optimizer: &ModuleOptimizer,
    ) -> Result<()> {
        if let Some(checkpoints) = self.checkpoints.as_ref().filter(|_| self.saved != Some(steps)) {
            let milestone = Milestone { step: steps, metric: None };
            checkpoints.save(milestone, ddp, optimizer, &())?;
            self.saved = Some(steps);
        }
        Ok(())
    }
}
