//! The model of a trainer: a module with all layers on every rank, or the stages of a pipeline.
//!
//! Both step, resume and are saved by the same trainer. What differs is how a rank's part is made, and how many forward
//! passes a call of `step` runs. No setting is decided here.

use bonfire_config::{Batches, Config};
use bonfire_data::LastBatch;
use bonfire_plan::Axis;
use bonfire_train::{Checkpoints, Ddp, DdpConfig, Gradients, Resumed, StepOptions};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use serde::de::DeserializeOwned;

use super::Data;
use super::mesh::Place;
use crate::error::{Error, Result};

/// A model that [`prepare`](super::prepare) takes: a module, or [`Stages`](super::Stages).
pub trait Model: Sized {
    /// The model in its groups.
    type Engine: Engine;
    /// The data of a call of `step`, from that of a forward pass.
    type Batch<B: Send + 'static>: Send + 'static;

    /// Makes this rank's part, without communication.
    ///
    /// # Errors
    /// [`Error::Usage`] for a configuration that the model cannot have, and the program's own.
    fn part(self, place: &Place, config: &Config, batches: &Batches) -> Result<Part<Self::Engine>>;

    /// Returns the batches of a call of `step`.
    fn calls(batches: &Batches) -> Calls;

    /// Makes the data of calls from that of forward passes.
    fn grouped<B: Send + 'static>(data: Data<B>, batches: &Batches) -> Data<Self::Batch<B>>;
}

/// The batches of a call of `step`.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    pub(super) passes: u64,
    /// Whether a call may have fewer samples.
    pub(super) last: LastBatch,
}

/// This rank's part of a model, and what connects it with the others.
pub struct Part<E: Engine> {
    pub(super) module: E::Module,
    pub(super) connect: Connect<E>,
}

type Connect<E> = Box<dyn FnOnce(<E as Engine>::Module, &Place, DdpConfig) -> Result<E>>;

/// A model in its groups. Every rank calls its methods.
pub trait Engine: Sized {
    type Module: Module;

    /// Returns the parameters among the ranks that have the same.
    fn ddp(&mut self) -> &mut Ddp<Self::Module>;

    /// Restores parameters and optimizer, as [`Checkpoints::resume`] does.
    ///
    /// # Errors
    /// As [`Checkpoints::resume`].
    fn resume<S: DeserializeOwned>(
        &mut self,
        checkpoints: &Checkpoints,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Option<Resumed<S>>>;

    /// Prepares the gradients and steps the optimizer, as [`Ddp::step_with`] does.
    ///
    /// # Errors
    /// As [`Ddp::step_with`].
    fn step_with(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        rate: f64,
        gradients: Gradients,
        options: StepOptions<'_>,
    ) -> Result<bool>;
}

impl<M: Module> Model for M {
    type Engine = Ddp<M>;
    type Batch<B: Send + 'static> = B;

    fn part(self, place: &Place, _: &Config, _: &Batches) -> Result<Part<Ddp<M>>> {
        let grid = place.grid();
        if grid.size(Axis::Pp) > 1 {
            return Err(Error::Usage(format!(
                "mesh={grid}: pp needs the model as stages; hand over Stages in place of the model, or leave pp out of \
                 mesh and give its ranks to dp_shard or dp_replicate"
            )));
        }
        Ok(Part {
            module: self,
            connect: Box::new(|module, place, config| {
                Ok(Ddp::with_config(module, place.averaging(), config)?)
            }),
        })
    }

    fn calls(_: &Batches) -> Calls {
        Calls { passes: 1, last: LastBatch::Keep }
    }

    fn grouped<B: Send + 'static>(data: Data<B>, _: &Batches) -> Data<B> {
        data
    }
}

impl<M: Module> Engine for Ddp<M> {
    type Module = M;

    fn ddp(&mut self) -> &mut Self {
        self
    }

    fn resume<S: DeserializeOwned>(
        &mut self,
        checkpoints: &Checkpoints,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Option<Resumed<S>>> {
        Ok(checkpoints.resume(self, optimizer)?)
    }

    fn step_with(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        rate: f64,
        gradients: Gradients,
        options: StepOptions<'_>,
    ) -> Result<bool> {
        Ok(Self::step_with(self, optimizer, rate, gradients, options)?)
    }
}
