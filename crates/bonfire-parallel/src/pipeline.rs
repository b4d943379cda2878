//! Runs the stages of a model in the order of a schedule.
//!
//! # What holds
//! - **Order.** A rank does its actions in the order of its list, which the verifier of `bonfire-plan` has proved.
//!   Messages are sent while it computes; a pass waits only for the message that it needs.
//! - **Sums.** The gradients of a stage are added in the order of the micro-batches, whatever the order of the
//!   passes, and multiplied once with one over their number. So all schedules give the same bits, and the same as one
//!   rank that adds up the micro-batches itself. A gradient that comes too early waits in memory; with the schedules of
//!   `bonfire-plan` none does.
//! - **Reduction.** The gradients of a stage are sent to the data-parallel ranks after its last backward pass, while
//!   the rank continues with other stages.
//! - **Shapes.** The output of a stage for its first micro-batch fixes the shapes at its boundary. Another shape is an
//!   error.
//! - **Failures.** An error, a panic or the death of a rank ends the pipeline on all ranks, and names the rank.
//!
//! This module decides no order, and does not depend on a stage's computation.

mod channels;
pub(crate) mod error;
mod evaluate;
mod gather;
mod gradients;
pub(crate) mod output;
pub(crate) mod pass;
mod passes;
mod run;
pub(crate) mod seconds;
mod tied;
pub(crate) mod timing;
pub(crate) mod weights;
mod wire;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use bonfire_collective::{CollectiveError, WorldSize};
use bonfire_plan::Sharding;
use bonfire_plan::pipeline::Schedule;
use bonfire_train::{
    Checkpoints, Ddp, DdpConfig, Gradients, Precision, Resumed, Step, StepOptions, TrainError,
    World,
};
use burn::module::{Module, Param};
use burn::optim::ModuleOptimizer;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::tensor::{Device, Tensor};
use serde::de::DeserializeOwned;

use channels::Channels;
use error::PipelineError;
use gradients::given;
use output::IntoOutput;
use pass::Pass;
use passes::Passes;
use tied::Tie;
use timing::PipelineTiming;

/// The stages of a model that are on this rank, and the schedule by which all ranks train the model.
///
/// Every rank calls the same methods in the same order. [`backward`](Self::backward) runs the forward and backward
/// passes of all micro-batches, [`step`](Self::step) updates the parameters of this rank's stages.
///
/// ```no_run
/// # use std::num::NonZeroU32;
/// # use bonfire_parallel::{Output, Pipeline, PipelineError};
/// # use bonfire_plan::pipeline::{Kind, Schedule, Shape};
/// # use bonfire_train::World;
/// # use burn::nn::Linear;
/// # use burn::optim::ModuleOptimizer;
/// # use burn::tensor::Tensor;
/// # fn train(
/// #     world: &World,
/// #     schedule: Schedule,
/// #     stages: Vec<Linear>,
/// #     mut optimizer: ModuleOptimizer,
/// #     batches: Vec<Vec<(Tensor<2>, Tensor<2>)>>,
/// # ) -> Result<(), PipelineError> {
/// let mut pipeline = Pipeline::new(stages, schedule, world)?;
/// for micro_batches in batches {
///     let step = pipeline.backward(&micro_batches, |stage, pass| {
///         let (x, y) = pass.micro_batch().clone();
///         let x = if pass.is_first() { x } else { pass.input()? };
///         let x = stage.forward(x);
///         Ok::<_, PipelineError>(match pass.is_last() {
///             true => Output::from((x - y).powi_scalar(2).mean()),
///             false => Output::from(x),
///         })
///     })?;
///     println!("{} on every rank", step.loss.value()?);
///     pipeline.step(&mut optimizer, 1e-3, step.gradients)?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Pipeline<M> {
    ddp: Ddp<Vec<M>>,
    schedule: Schedule,
    world: World,
    /// The stages of this rank.
    numbers: Vec<u32>,
    devices: Vec<Device>,
    channels: Channels,
    tie: Option<Tie<M>>,
    overlaps: bool,
}

/// A failure of another rank of the pipeline, of which this one heard among those that have other data.
fn as_known_in(world: &World, error: PipelineError) -> PipelineError {
    let PipelineError::Train(TrainError::Collective(CollectiveError::FailedElsewhere { .. })) =
        &error
    else {
        return error;
    };
    world.group().failure().map_or(error, PipelineError::from)
}

/// The ranks that train with this one.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// The ranks with the stages of one copy of the model, ranked as in the schedule.
    pub stages: &'a World,
    /// The ranks that have the same stages as this one and other data.
    pub data: &'a World,
}

/// The result of [`Pipeline::backward`]: the mean loss over the micro-batches, on every rank of the pipeline; the mean
/// gradients of this rank's stages, over the micro-batches and the data-parallel ranks; and the timing.
///
/// [`Gradients::norm`], [`Gradients::clip`] and [`Gradients::check_finite`] cover the complete model: all ranks call
/// them, in the same order. `forward_backward` of `timing` is the time in which this rank computed.
pub type PipelineStep = Step<PipelineTiming>;

impl<M: Module> Pipeline<M> {
    /// Makes a pipeline over all ranks of a world. See [`with_config`](Self::with_config).
    ///
    /// # Errors
    /// As [`with_config`](Self::with_config).
    #[track_caller]
    pub fn new(stages: Vec<M>, schedule: Schedule, world: &World) -> Result<Self, PipelineError> {
        let alone = world.split(Some(world.rank().get()), 0);
        let alone = alone?.expect("every rank gives a color");
        let axes = Axes { stages: world, data: &alone };
        Self::with_config(stages, schedule, axes, DdpConfig::default())
    }

    /// Makes a pipeline over some ranks, of which several have the same stages and other data. Every rank must call
    /// it, with the same schedule, and with the stages of [`Schedule::stages_on`] in that order. Messages and sums of
    /// gradients are added to a schedule without them.
    ///
    /// The stages become a [`Ddp`] over the ranks of `axes.data`, with `config`: its placements of gradients and of the
    /// optimizer's state work here, too.
    ///
    /// # Errors
    /// [`PipelineError::Ranks`], [`PipelineError::Schedule`], [`PipelineError::Stages`] or
    /// [`PipelineError::OtherSchedule`] for a schedule that does not fit, [`PipelineError::Unsupported`] for
    /// parameters in shards and for a precision other than that of the parameters; [`PipelineError::Train`] as
    /// [`Ddp::with_config`] has it.
    #[track_caller]
    pub fn with_config(
        stages: Vec<M>,
        schedule: Schedule,
        axes: Axes<'_>,
        config: DdpConfig,
    ) -> Result<Self, PipelineError> {
        let Axes { stages: world, data } = axes;
        let prepared = prepared(stages.len(), schedule, world);
        let prepared = prepared.and_then(|prepared| check(&config).map(|()| prepared));
        let (schedule, numbers) = world.group().or_abort(prepared)?;
        let channels = Channels::new(world, &schedule)?;
        let ddp = Ddp::with_config(stages, data, config);
        let ddp = ddp.map_err(|error| as_known_in(world, error.into()))?;
        let device = |stage: &M| {
            let own = stage.devices().into_iter().next();
            own.unwrap_or_else(|| world.device().autodiff())
        };
        Ok(Self {
            devices: ddp.module().iter().map(device).collect(),
            ddp,
            schedule,
            world: world.clone(),
            numbers,
            channels,
            tie: None,
            overlaps: data.world_size() > WorldSize::ONE,
        })
    }

    /// Ties a parameter of the first stage to the last one, which has it in [`Pass::tied`]: an embedding that is also
    /// the head. `parameter` finds it in the first stage, and is called there alone. Every rank must call it.
    ///
    /// The parameter is trained on the rank of the first stage. The last stage's part of its gradient, which is summed
    /// over the micro-batches first, is added to that of the first stage; one rank that trains both at once adds them
    /// up for each micro-batch, and rounds otherwise. Gradient and values are each sent once per step.
    ///
    /// # Errors
    /// [`PipelineError::Collective`] if a rank failed; [`PipelineError::Train`] if the parameter cannot be read.
    #[track_caller]
    pub fn with_tied<const D: usize>(
        mut self,
        parameter: impl Fn(&M) -> &Param<Tensor<D>> + 'static,
    ) -> Result<Self, PipelineError> {
        let device = match self.devices.last() {
            Some(device) => device.clone(),
            None => self.world.device().autodiff(),
        };
        let tie = Tie::new(
            &self.schedule,
            self.ddp.module(),
            self.world.group(),
            &self.channels,
            parameter,
            device,
        );
        self.tie = self.or_abort(tie)?;
        Ok(self)
    }

    /// Returns this rank's stages, in the order of the layers.
    pub fn stages(&self) -> &[M] {
        self.ddp.module()
    }

    /// Returns the schedule, with its messages and sums.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Restores this rank's stages and their optimizer from the last checkpoint, as
    /// [`Checkpoints::resume`](bonfire_train::Checkpoints::resume) does; the checkpoints have the complete model's
    /// layout. To save, pass them [`ddp`](Self::ddp). Every rank must call it.
    ///
    /// # Errors
    /// [`PipelineError::Train`] as [`Checkpoints::resume`](bonfire_train::Checkpoints::resume) has it;
    /// [`PipelineError::Collective`].
    #[track_caller]
    pub fn resume<S: DeserializeOwned>(
        &mut self,
        checkpoints: &Checkpoints,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Option<Resumed<S>>, PipelineError> {
        let resumed = checkpoints.resume(&mut self.ddp, optimizer);
        let resumed = resumed.map_err(PipelineError::from).and_then(|resumed| {
            self.share_tied()?;
            Ok(resumed)
        });
        self.or_abort(resumed)
    }

    /// Returns the data-parallel model of this rank's stages, for checkpoints and digests.
    pub fn ddp(&mut self) -> &mut Ddp<Vec<M>> {
        &mut self.ddp
    }

    /// Runs the forward and the backward passes of one step, and returns the mean gradients.
    ///
    /// All micro-batches must have the same size: their losses count equally. Every rank takes the same number; the
    /// first stage uses their inputs and the last their targets. `forward` is called once for each of this rank's
    /// stages and each micro-batch. For the last stage it returns the loss, one number: the mean over the samples; or
    /// that in a [`Loss`](bonfire_train::Loss), such as a [`LossScaler`](bonfire_train::LossScaler) makes, and then
    /// the gradients of all stages are scaled. For the others it returns the input of the next one: a tensor, or an
    /// [`Output`](crate::Output). Either may be in a `Result`.
    ///
    /// # Memory
    /// A stage keeps the graph of each micro-batch from its forward to its backward pass, at most
    /// [`Schedule::live_max`] of them; and the sum of its gradients. Activations and their gradients are sent through
    /// host memory.
    ///
    /// # Errors
    /// [`PipelineError::MicroBatches`], [`PipelineError::Forward`], [`PipelineError::OtherOutput`],
    /// [`PipelineError::NoLoss`]; [`PipelineError::Train`] as [`Ddp::backward`] has it;
    /// [`PipelineError::Collective`] if another rank failed. The pipeline has ended then, on all ranks.
    ///
    /// # Panics
    /// If `forward` panics, after reporting it to the other ranks.
    #[track_caller]
    pub fn backward<B, R: IntoOutput>(
        &mut self,
        micro_batches: &[B],
        forward: impl Fn(&M, &mut Pass<'_, B>) -> R,
    ) -> Result<PipelineStep, PipelineError> {
        let step = self.try_backward(micro_batches, forward);
        self.or_abort(step)
    }

    /// Updates the parameters of this rank's stages, as [`Ddp::step`] does.
    ///
    /// # Errors
    /// As [`Ddp::step`].
    #[track_caller]
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: Gradients,
    ) -> Result<(), PipelineError> {
        self.step_with(optimizer, lr, gradients, StepOptions::default()).map(drop)
    }

    /// Unscales and clips the gradients and [steps](Self::step), as [`Ddp::step_with`] does. Every rank calls it.
    ///
    /// # Errors
    /// As [`Ddp::step_with`].
    #[track_caller]
    pub fn step_with(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: Gradients,
        options: StepOptions<'_>,
    ) -> Result<bool, PipelineError> {
        let stepped = self.ddp.step_with(optimizer, lr, gradients, options);
        let stepped = stepped.map_err(|error| as_known_in(&self.world, error.into()))?;
        if stepped {
            let shared = self.share_tied();
            self.or_abort(shared)?;
        }
        Ok(stepped)
    }

    /// Gathers the stages of all ranks, in the order of the layers, without autodiff: for validation or export of a
    /// model that fits onto one device. Every rank must call it, with modules of the shape of all stages, such as
    /// those that it started from. Float parameters are gathered; all else is that of the modules.
    ///
    /// # Errors
    /// [`PipelineError::Stages`] for another number of modules; [`PipelineError::Train`] if a parameter cannot be
    /// read; [`PipelineError::Collective`].
    #[track_caller]
    pub fn gather(&self, modules: Vec<M>) -> Result<Vec<M>, PipelineError> {
        self.or_abort(self.try_gather(modules))
    }

    #[track_caller]
    fn try_gather(&self, modules: Vec<M>) -> Result<Vec<M>, PipelineError> {
        self.ddp.wait()?;
        let (found, stages) = (modules.len(), self.schedule.stages());
        if found != stages as usize {
            return Err(PipelineError::Stages {
                found,
                expected: stages as usize,
                stages: (0..stages).collect(),
            });
        }
        let one = |(stage, module): (u32, M)| {
            let owner = self.schedule.owner(stage);
            let own = self.numbers.iter().position(|&number| number == stage);
            let module = own.map_or(module, |own| self.ddp.module()[own].clone());
            gather::broadcast(module.valid(), self.world.group(), owner)
        };
        (0..stages).zip(modules).map(one).collect()
    }

    /// Sends the last stage the values of a tied parameter.
    #[track_caller]
    fn share_tied(&mut self) -> Result<(), PipelineError> {
        self.ddp.wait()?;
        match &mut self.tie {
            Some(tie) => tie.share(self.ddp.module(), &self.channels),
            None => Ok(()),
        }
    }

    /// Ends, on an error, all that other ranks may wait in.
    fn or_abort<T>(&self, outcome: Result<T, PipelineError>) -> Result<T, PipelineError> {
        let outcome = self.world.group().or_abort(outcome);
        outcome.map_err(|error| as_known_in(&self.world, error))
    }

    #[track_caller]
    fn try_backward<B, R: IntoOutput>(
        &mut self,
        micro_batches: &[B],
        forward: impl Fn(&M, &mut Pass<'_, B>) -> R,
    ) -> Result<PipelineStep, PipelineError> {
        let (found, expected) = (micro_batches.len(), self.schedule.micro_batches());
        if found != expected as usize {
            return Err(PipelineError::MicroBatches { found, expected });
        }
        let (start, factor) = (Instant::now(), 1.0 / f64::from(expected));
        let device = self.world.device();
        let mut passes = Passes {
            schedule: &self.schedule,
            world: &self.world,
            devices: &self.devices,
            channels: &mut self.channels,
            tie: self.tie.as_ref(),
            numbers: &self.numbers,
        };
        let mut step = if self.overlaps {
            let mut failure = None;
            let step = self.ddp.backward_in_parts(|stages, losses| {
                let reduce = |local, sum| {
                    let sum = given(&losses[local], vec![sum], factor, &device);
                    if sum.is_tracked() {
                        sum.backward();
                    }
                };
                let done = passes.run(stages, micro_batches, forward, reduce);
                done.map_err(|error| failure.insert(error).to_string())
            });
            step.map_err(|error| failure.unwrap_or(error.into()))?
        } else {
            let mut sums = Vec::new();
            let reduce = |_, sum| sums.push(sum);
            let (loss, timing) = passes.run(self.ddp.module(), micro_batches, forward, reduce)?;
            let given = |stages: &Vec<M>| (given(stages, sums, factor, &device), timing);
            let mut step = self.ddp.backward(given)?;
            step.loss = loss;
            step
        };
        // Each rank has the parameters of its stages, and no other has those.
        step.gradients = step.gradients.split_into_stages(&self.world);
        let busy = step.output.busy[self.world.rank().index()];
        step.timing.forward_backward = busy;
        step.timing.exposed_communication = start.elapsed().saturating_sub(busy);
        Ok(step)
    }
}

/// The schedule with its messages, the same on all ranks, and the stages of this one.
#[track_caller]
fn prepared(
    stages: usize,
    schedule: Schedule,
    world: &World,
) -> Result<(Schedule, Vec<u32>), PipelineError> {
    if schedule.ranks() != world.world_size() {
        return Err(PipelineError::Ranks { schedule: schedule.ranks(), world: world.world_size() });
    }
    let schedule = schedule.with_messages()?.with_reductions();
    let mut hasher = DefaultHasher::new();
    schedule.to_csv().hash(&mut hasher);
    let all: Vec<u64> = world.group().all_gather(&[hasher.finish()])?;
    let mut others = world.world_size().ranks().zip(&all);
    if let Some((rank, _)) = others.find(|(_, hash)| **hash != all[0]) {
        return Err(PipelineError::OtherSchedule { rank });
    }
    let numbers = schedule.stages_on(world.rank());
    if numbers.len() != stages {
        return Err(PipelineError::Stages {
            found: stages,
            expected: numbers.len(),
            stages: numbers,
        });
    }
    Ok((schedule, numbers))
}

/// Checks that the stages can be a [`Ddp`] of this configuration.
fn check(config: &DdpConfig) -> Result<(), PipelineError> {
    let refused = |setting, advice| Err(PipelineError::Unsupported { setting, advice });
    if config.placement.parameters == Sharding::Sharded {
        let setting = format!("placement {}", config.placement);
        return refused(
            setting,
            "its stages run outside of the passes that gather parameters; take zero1 or zero2, or more stages",
        );
    }
    if config.precision != Precision::default() {
        let setting = format!("precision {:?}", config.precision);
        return refused(setting, "cast in the stages, which may hand on tensors of any float type");
    }
    Ok(())
}
