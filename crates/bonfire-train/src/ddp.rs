//! A model that several ranks train together, each on its share of the data.

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::{Mutex, ProcessGroup, WorldSize};
use bonfire_optim::Offload;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;

use crate::loss::IntoLoss;
use crate::loss::weights::MicroBatches;
use crate::optim::gradients::{Devices, Gradients};
use crate::parameters::buffers::{Attendance, Buffers};
use crate::parameters::fingerprint::{self, Entry, Fingerprint};
use crate::parameters::replicate::{Where, outline, replicate, replicate_rows};
use crate::parameters::shard_groups::ShardGroups;
use crate::parameters::shards::Shards;
use crate::parameters::{ParameterTable, device_of, trainable};
use crate::reducer::Reducer;
use crate::reducer::collect::Site;
use crate::reducer::device_route::transfer::Replicas;
use crate::reducer::hooks::{Anchors, Depth};
use crate::world::Divided;
use crate::world::PassFailures;
use crate::world::exchange::group::NormGroups;
use crate::world::timeouts::WarmUp;
use crate::world::watchdog::Watchdog;
use crate::{DdpConfig, DeviceKind, Placement, Precision, Sharding, TrainError, World};

mod averaging;
mod change;
pub(crate) mod data_parallel;
mod digest;
mod foreign;
mod gather;
mod guard;
mod own_backward;
mod pass;
pub(crate) mod record;
mod rows;
mod step;
mod summary;

use averaging::{lane_of, reducer_of};
pub use digest::Digest;
use gather::Gatherer;
pub use own_backward::OwnStep;
pub use step::{MicroStep, Step, StepOptions};
pub use summary::BucketSummary;

/// A model replicated on all ranks of a group.
///
/// All replicas start from the parameters of rank 0. Every rank calls the same methods in the same order with its own
/// batches; [`backward`](Self::backward) returns gradients averaged over the ranks, the same bits everywhere, so the
/// replicas stay equal bit for bit.
///
/// A rank's model may lie on several devices, and moves activations between them. Its gradients go through host
/// memory.
///
/// An error or a panic of the forward pass on one rank ends the group: the other ranks get
/// [`PeerFailed`](bonfire_collective::CollectiveError::PeerFailed) instead of waiting.
#[derive(Debug)]
pub struct Ddp<M> {
    /// `None` only while the optimizer replaces it.
    module: Option<M>,
    group: WarmUp,
    table: Arc<ParameterTable>,
    shards: Arc<Shards>,
    reducer: Arc<Mutex<Reducer>>,
    config: DdpConfig,
    buffers: Buffers,
    norm_groups: NormGroups,
    failures: PassFailures,
    anchors: Anchors,
    depth: Depth,
    micro_batches: MicroBatches,
    steps: u64,
    /// Calls of `backward` since the model last changed.
    passes: u64,
    updates: u64,
    watchdog: Watchdog,
    /// The time of micro-batches since the last synchronised step.
    forward_backward: Duration,
    /// `None` unless parameters are sharded.
    gatherer: Option<Arc<Gatherer>>,
    /// True if the optimizer fits this placement, and has state for this rank's part alone.
    is_optimizer_ready: bool,
    /// `None` unless parameters are outside of the device's memory.
    offload: Option<Offload>,
    /// The ranks that have other parts of the parameters, if they are divided.
    divided: Option<Divided>,
    /// True if all gradients are on the CPU, which adds in one order.
    is_cpu: bool,
    /// The exchange of this rank's device with the others', where gradients stay there.
    devices: Option<Arc<dyn Devices>>,
}

/// Structures that a [`Ddp`] derives from a model and keeps until the model has other parameters.
struct Setup<M> {
    module: M,
    table: Arc<ParameterTable>,
    shards: Arc<Shards>,
    reducer: Arc<Mutex<Reducer>>,
    buffers: Buffers,
    gatherer: Option<Arc<Gatherer>>,
}

impl<M: Module> Setup<M> {
    /// Compares the ranks' models and sends all ranks that of rank 0. Every rank calls it, and the caller aborts the
    /// group if it fails.
    #[track_caller]
    fn new(
        module: M,
        group: &WarmUp,
        failures: &PassFailures,
        config: &DdpConfig,
        place: Where<'_>,
    ) -> Result<Self, TrainError> {
        let is_cut = config.placement.parameters == Sharding::Sharded;
        let placement = config.placement;
        let groups = ShardGroups::new(placement, group)?;
        let (module, table) = if is_cut || place.offload.is_some() {
            verify(outline(&module), config, group)?;
            let (rows, table) = replicate_rows(module, placement, groups.shards(), place, group)?;
            verify(table.entries().to_vec(), config, group)?;
            (rows, table)
        } else {
            let table = ParameterTable::of(&module)?;
            verify(table.entries().to_vec(), config, group)?;
            (replicate(module, group)?, table)
        };
        let buffers = Buffers::of(&module);
        let table = Arc::new(table);
        let computing = place.computing.cloned();
        let shards = Arc::new(Shards::new(&table, placement, groups, computing));
        let reducer = reducer_of(&module, group, &table, &shards, config)?;
        let gatherer = if is_cut {
            let lane = lane_of(&module, group, &reducer, config)?;
            let (table, shards) = (Arc::clone(&table), Arc::clone(&shards));
            Some(Gatherer::new(table, shards, failures.clone(), lane))
        } else {
            None
        };
        let module = match &gatherer {
            Some(gatherer) => gatherer.gathering(module),
            None => module,
        };
        Ok(Self { module, table, shards, reducer, buffers, gatherer })
    }
}

impl<M: Module> Ddp<M> {
    /// Replicates a model with the default configuration. See [`with_config`](Self::with_config).
    ///
    /// # Errors
    /// See [`with_config`](Self::with_config).
    #[track_caller]
    pub fn new(model: M, world: &World) -> Result<Self, TrainError> {
        Self::with_config(model, world, DdpConfig::default())
    }

    /// Replicates a model: checks that all ranks have the same parameters and configuration, and broadcasts the values
    /// of rank 0, those of frozen parameters and buffers included. Every rank must call it. A model made on a device
    /// without autodiff is put in training mode.
    ///
    /// Where [`DdpConfig::placement`] shards parameters, and the model was made on a device with autodiff,
    /// parameters that Burn has not initialised yet are initialised and cut one after the other: the model may be
    /// larger than memory. Those of Burn's layers are such until something uses them.
    ///
    /// # Errors
    /// [`TrainError::ModelMismatch`] on all ranks if their models or configurations differ,
    /// [`TrainError::UnsupportedDtype`] for parameters whose gradients cannot be averaged,
    /// [`TrainError::TiedParameter`] for one that the model holds twice, [`TrainError::Compression`] for an unusable
    /// compression, [`TrainError::UnsupportedPrecision`] for a precision that the device lacks,
    /// [`TrainError::UnsupportedPlacement`] for one that [`DdpConfig`] does not go with, [`TrainError::Offload`] where
    /// a file cannot be made, [`TrainError::NoDeviceRoute`] on all ranks if the route is not available,
    /// [`TrainError::Collective`] if a rank fails.
    #[track_caller]
    pub fn with_config(model: M, world: &World, mut config: DdpConfig) -> Result<Self, TrainError> {
        let group = world.warm_up();
        let is_cpu = world.device_kind() == DeviceKind::Cpu;
        // In memory is where parameters on the CPU are anyway.
        let is_elsewhere = |offload: &Offload| offload.has_files() || !is_cpu;
        let offload = config.offload.take().filter(Offload::has_parameters).filter(is_elsewhere);
        let model = checked(model, &config).and_then(|model| match offload {
            Some(_) => check_offload(config.placement, world).map(|()| model),
            None => Ok(model),
        });
        let computing = (offload.is_some() && !is_cpu).then(|| world.device());
        let place = Where { offload: offload.as_ref(), computing: computing.as_ref() };
        // A closure would lose the caller's place, which operations record.
        let setup = match model {
            Ok(model) => Setup::new(model, &group, world.failures(), &config, place),
            Err(error) => Err(error),
        };
        let setup = match setup {
            // All ranks return these, and the group continues.
            Err(
                error @ (TrainError::ModelMismatch(_)
                | TrainError::OtherProgram { .. }
                | TrainError::NoDeviceRoute { .. }),
            ) => return Err(error),
            setup => group.or_abort(setup)?,
        };
        let trained_on = device_of(&setup.module);
        let stay = setup.reducer.lock().site() == Site::Device;
        let devices = (stay && group.world_size() > WorldSize::ONE)
            .then(|| Arc::new(Replicas(world.clone())) as Arc<dyn Devices>);
        let watchdog = Watchdog::new(&group);
        Ok(Self {
            module: Some(setup.module),
            group,
            table: setup.table,
            shards: setup.shards,
            reducer: setup.reducer,
            config,
            buffers: setup.buffers,
            norm_groups: world.norm_groups().clone(),
            failures: world.failures().clone(),
            anchors: Anchors::default(),
            depth: Depth::default(),
            micro_batches: MicroBatches::default(),
            steps: 0,
            passes: 0,
            updates: 0,
            watchdog,
            forward_backward: Duration::ZERO,
            gatherer: setup.gatherer,
            is_optimizer_ready: false,
            offload,
            divided: world.divided().cloned(),
            is_cpu: is_cpu && trained_on.is_some() && trained_on == Offload::device(),
            devices,
        })
    }

    /// Compares the ranks' models and configurations as [`with_config`](Self::with_config) does, without changing
    /// anything. Every rank must call it.
    ///
    /// # Errors
    /// As [`with_config`](Self::with_config).
    #[track_caller]
    pub fn compare(model: &M, world: &World, config: &DdpConfig) -> Result<(), TrainError> {
        let group = world.warm_up();
        // An error of one rank alone must not leave the others waiting in the comparison.
        let table = checked(model.clone(), config).and_then(|model| ParameterTable::of(&model));
        let table = group.or_abort(table)?;
        verify(table.entries().to_vec(), config, &group)
    }

    /// Returns the model. For validation, use `ddp.module().valid()`.
    ///
    /// Where [`DdpConfig::placement`] shards the parameters, it holds this rank's rows of them and gathers
    /// the rest whenever a forward pass uses them, here as in training: all ranks must run as many forward
    /// passes. [`whole`](Self::whole) is the model with all its parameters.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect(MODULE_PRESENT)
    }

    /// Gathers the model with all its parameters on this rank, without autodiff: for export, or for a validation in
    /// which ranks have different numbers of batches. Where parameters are sharded, every rank must call it, and it
    /// needs the memory of the complete model.
    ///
    /// # Errors
    /// Where parameters are sharded, [`TrainError::Collective`] or [`TrainError::UnreadableTensor`]; the
    /// group has ended then.
    #[track_caller]
    pub fn whole(&mut self) -> Result<M, TrainError> {
        self.call("Ddp::whole", |ddp| {
            ddp.wait()?;
            let whole = ddp.module().valid().materialize();
            ddp.wait()?;
            Ok(whole)
        })
    }

    /// Waits for the last step where only the device waits for gradients: if a rank has failed meanwhile, the model is
    /// not what it would be. `digest`, checkpoints and the next backward pass wait by themselves; call this before you
    /// save [`module`](Self::module) in another way.
    ///
    /// # Errors
    /// [`TrainError::Collective`] or [`TrainError::DeviceRoute`] if the step failed.
    pub fn wait(&self) -> Result<(), TrainError> {
        self.reducer.lock().wait()?;
        if let Some(gatherer) = &self.gatherer {
            gatherer.settle()?;
        }
        self.devices.as_ref().map_or(Ok(()), |devices| devices.settle())
    }

    /// Returns the data type of forward and backward passes.
    pub fn precision(&self) -> Precision {
        self.config.precision
    }

    /// Gathers [`whole`](Self::whole) with its trainable parameters in the type of passes, so that it validates as it
    /// trains. [`module`](Self::module) validates in the type of the parameters.
    ///
    /// # Errors
    /// Those of [`whole`](Self::whole).
    #[track_caller]
    pub fn lowered(&mut self) -> Result<M, TrainError> {
        let whole = self.whole()?;
        Ok(self.config.precision.cast_model(whole, &self.table))
    }

    /// Returns the model without its group; drops the state of synchronisation.
    ///
    /// # Panics
    /// If the last step fails on the device after [`step`](Self::step) has returned; [`wait`](Self::wait) returns that
    /// error.
    pub fn into_module(self) -> M {
        self.wait().unwrap_or_else(|failure| panic!("{failure}"));
        self.module.expect(MODULE_PRESENT)
    }

    /// Runs a forward and a backward pass on this rank's batch and returns the mean of all ranks' gradients, the loss,
    /// and the forward pass's output. Gradients are sent while the backward pass still runs. Batches of
    /// [`no_sync`](Self::no_sync) since the last call are part of the mean.
    ///
    /// A parameter that this rank's loss does not depend on counts as zero here; one that no rank's
    /// loss depends on has no gradient, on any rank.
    ///
    /// The mean is over the ranks' batches, or over samples with [`Loss::mean_over`](crate::Loss::mean_over).
    ///
    /// `forward` returns a loss of one number, or `(loss, output)`, or either in a `Result`.
    ///
    /// # Errors
    /// [`TrainError::Forward`] if the forward pass returned an error, [`TrainError::LossShape`] if the loss is not one
    /// number, [`TrainError::ForeignGradients`] if it depends on trainable tensors that are not parameters of this
    /// model, [`TrainError::Collective`] if another rank failed; [`TrainError`] lists the rest. The group has ended
    /// then, on all ranks.
    ///
    /// # Panics
    /// If the forward pass panics, after reporting it to the other ranks.
    #[track_caller]
    pub fn backward<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<Step<L::Output>, TrainError> {
        const NAME: &str = "Ddp::backward";
        let _watched = self.begin_step(NAME);
        let step = self.call(NAME, |ddp| ddp.synchronise(forward));
        self.group.end_step();
        let step = step?;
        Ok(Step { gradients: step.gradients.divided(self.divided.as_ref()), ..step })
    }

    /// Runs a forward and a backward pass whose gradients stay on this rank until the next
    /// [`backward`](Self::backward), which averages over all of them: k - 1 calls of `no_sync` and
    /// one of `backward` are one step over k batches per rank.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    ///
    /// # Panics
    /// If the forward pass panics, after reporting it to the other ranks.
    #[track_caller]
    pub fn no_sync<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<MicroStep<L::Output>, TrainError> {
        const NAME: &str = "Ddp::no_sync";
        let _watched = self.watchdog.watch(NAME, self.step_number(), &self.group);
        self.call(NAME, |ddp| ddp.accumulate(forward))
    }

    /// Updates the parameters by the optimizer's rule. Equal gradients and equal optimizers keep the replicas equal.
    ///
    /// Where [`DdpConfig::placement`] shards the optimizer's state, the optimizer sees this rank's part of the
    /// parameters, keeps its state for this part, and the ranks gather the updated parameters. Every rank must call it
    /// then. Where the parts are rows, the optimizer must treat each element by itself, as SGD, Adam, AdamW, Lion and
    /// RMSProp do; with [`Placement::of_whole_parameters`](crate::Placement::of_whole_parameters) it may be any.
    ///
    /// # Errors
    /// [`TrainError::Collective`] if another rank has failed. Where the optimizer's state is sharded:
    /// [`TrainError::RowsDiffer`] for an optimizer, or its own clipping, that needs complete parameters and gets rows;
    /// [`TrainError::Collective`]; [`TrainError::UnreadableTensor`].
    #[track_caller]
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: Gradients,
    ) -> Result<(), TrainError> {
        let done = self.call("Ddp::step", |ddp| {
            if ddp.config.placement.is_sharded() {
                return ddp.step_rows(optimizer, lr.into(), gradients);
            }
            // Handed over rather than cloned, so that the optimizer may update in place.
            let module = ddp.module.take().expect(MODULE_PRESENT);
            let (module, result) = gradients.step(optimizer, lr.into(), module);
            ddp.module = Some(module);
            result
        });
        (self.passes, self.updates) = (0, self.updates + 1);
        done
    }

    /// Unscales and clips the gradients, as `options` say, and [steps](Self::step). Returns false if they overflowed,
    /// on any rank, under a scaled loss: then all ranks skip the step.
    ///
    /// ```no_run
    /// # use bonfire_train::{Clip, Ddp, LossScaler, StepOptions, TrainError};
    /// # use burn::{Tensor, module::Module, optim::ModuleOptimizer};
    /// # fn step<M: Module>(ddp: &mut Ddp<M>, loss: impl Fn(&M) -> Tensor<1>,
    /// #     optimizer: &mut ModuleOptimizer, scaler: &mut LossScaler) -> Result<(), TrainError> {
    /// let step = ddp.backward(|model| scaler.scale(loss(model)))?;
    /// let options = StepOptions::default().with_scaler(scaler).with_clip(Clip::Norm(1.0));
    /// ddp.step_with(optimizer, 1e-3, step.gradients, options)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`step`](Self::step), [`LossScaler::unscale`](crate::LossScaler::unscale) and [`Gradients::clip`].
    /// [`TrainError::ScaleNotTaken`] where factors are deferred and an optimizer lacks the handle, which is found after
    /// its parameters have been stepped, or clips, which is found before. Both end the group.
    #[track_caller]
    pub fn step_with(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: Gradients,
        options: StepOptions<'_>,
    ) -> Result<bool, TrainError> {
        match options.apply(gradients)? {
            Some(gradients) => self.step(optimizer, lr, gradients).map(|()| true),
            None => Ok(false),
        }
    }

    fn no_gradients(&self) -> Gradients {
        let rounds_alike = self.is_cpu || self.group.world_size() == WorldSize::ONE;
        let replicas = (!rounds_alike).then(|| ProcessGroup::clone(&self.group));
        let none = Gradients::new(Arc::clone(&self.table));
        let none = none.agreeing(replicas, self.devices.clone());
        if self.config.placement.is_sharded() {
            let group = self.shards.groups().among(&self.group).clone();
            none.cut(Arc::clone(&self.shards), group)
        } else {
            none
        }
    }

    #[cfg(test)]
    fn trace(&self) -> crate::reducer::trace::Trace {
        self.reducer.lock().trace.clone()
    }

    #[track_caller]
    fn agree_on_buffers(&mut self, presence: Attendance) -> Result<(), TrainError> {
        let agreed =
            self.buffers.agree(self.module(), &self.group, self.config.buffers, presence)?;
        let module = self.module.take().expect(MODULE_PRESENT);
        self.module = Some(Buffers::put(module, agreed));
        Ok(())
    }
}

const MODULE_PRESENT: &str =
    "the module is only away while the optimizer steps, or after it panicked";

fn checked<M: Module>(model: M, config: &DdpConfig) -> Result<M, TrainError> {
    config.compression.check()?;
    config.precision.check(&model)?;
    if let Some(reason) = config.forbids_shards() {
        return Err(TrainError::unsupported(config.placement, reason));
    }
    Ok(trainable(model))
}

/// Checks that parameters can be outside of a device's memory.
fn check_offload(placement: Placement, world: &World) -> Result<(), TrainError> {
    let device = world.device_name();
    let is_cpu = world.device_kind() == DeviceKind::Cpu;
    let are_cut = placement.parameters == Sharding::Sharded;
    let reason = if is_cpu && placement.is_sharded() && !are_cut {
        "parameters in files are for replicated and zero3".to_owned()
    } else if !is_cpu && !are_cut {
        format!("parameters are offloaded from {device} with zero3")
    } else if Offload::device().is_none() {
        format!("what is offloaded from {device} is on the CPU: build with the feature `flex`")
    } else {
        return Ok(());
    };
    Err(TrainError::unsupported(placement, reason))
}

#[track_caller]
fn verify(entries: Vec<Entry>, config: &DdpConfig, group: &ProcessGroup) -> Result<(), TrainError> {
    let fingerprint = Fingerprint { config: config.clone(), entries };
    fingerprint::verify(&fingerprint, group)
}

#[cfg(test)]
mod tests;
