//! A model that several ranks train together, each on its share of the data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bonfire_collective::{ProcessGroup, WorldSize};
use bonfire_optim::Offload;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;

use crate::loss::IntoLoss;
use crate::loss::weights::MicroBatches;
use crate::optim::gradients::Gradients;
use crate::parameters::buffers::{Attendance, Buffers};
use crate::parameters::fingerprint::{self, Entry, Fingerprint};
use crate::parameters::replicate::{Where, outline, replicate, replicate_rows};
use crate::parameters::shard_groups::ShardGroups;
use crate::parameters::shards::Shards;
use crate::parameters::{ParameterTable, device_of, trainable};
use crate::reducer::Reducer;
use crate::reducer::hooks::{Anchors, Depth};
use crate::world::exchange::group::NormGroups;
use crate::world::failures::PassFailures;
use crate::world::timeouts::WarmUp;
use crate::world::watchdog::Watchdog;
use crate::{
    CompressionError, DdpConfig, GradientCompression, GradientSync, Placement, Precision, Sharding,
    TrainError, World,
};

mod alone;
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
mod synchroniser;

pub use digest::Digest;
use gather::Gatherer;
pub use own_backward::OwnStep;
pub use step::{MicroStep, Step};
pub use summary::BucketSummary;
use synchroniser::Synchroniser;

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
    synchroniser: Synchroniser,
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
    /// True if all gradients are on the CPU, which adds in one order.
    is_cpu: bool,
}

/// Structures that a [`Ddp`] derives from a model and keeps until the model has other parameters.
struct Setup<M> {
    module: M,
    table: Arc<ParameterTable>,
    shards: Arc<Shards>,
    synchroniser: Synchroniser,
    buffers: Buffers,
    gatherer: Option<Arc<Gatherer>>,
}

impl<M: Module> Setup<M> {
    /// Compares the ranks' models and sends all ranks that of rank 0. Every rank calls it.
    #[track_caller]
    fn new(
        module: M,
        group: &WarmUp,
        config: &DdpConfig,
        place: Where<'_>,
    ) -> Result<Self, TrainError> {
        let abort = |error: &TrainError| {
            // All ranks return this one.
            if !matches!(error, TrainError::NoDeviceRoute { .. }) {
                group.abort(&error.to_string());
            }
        };
        let is_cut = config.placement.parameters == Sharding::Sharded;
        let placement = config.placement;
        let groups = ShardGroups::new(placement, group).inspect_err(abort)?;
        let (module, table) = if is_cut || place.offload.is_some() {
            verify(outline(&module), config, group)?;
            let (rows, table) = replicate_rows(module, placement, groups.shards(), place, group)
                .inspect_err(abort)?;
            verify(table.entries().to_vec(), config, group)?;
            (rows, table)
        } else {
            let table = ParameterTable::of(&module).inspect_err(abort)?;
            verify(table.entries().to_vec(), config, group)?;
            (replicate(module, group).inspect_err(abort)?, table)
        };
        let buffers = Buffers::of(&module);
        let table = Arc::new(table);
        let computing = place.computing.cloned();
        let shards = Arc::new(Shards::new(&table, placement, groups, computing));
        let synchroniser =
            Synchroniser::new(&module, group, &table, &shards, config).inspect_err(abort)?;
        let gatherer = is_cut.then(|| Gatherer::new(Arc::clone(&table), Arc::clone(&shards)));
        let module = match &gatherer {
            Some(gatherer) => gatherer.gathering(module),
            None => module,
        };
        Ok(Self {
            module,
            table,
            shards,
            synchroniser,
            buffers,
            gatherer,
        })
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
    /// [`TrainError::NoDeviceRoute`] on all ranks if the route is not available, [`TrainError::Collective`] if a rank
    /// fails.
    #[track_caller]
    pub fn with_config(model: M, world: &World, config: DdpConfig) -> Result<Self, TrainError> {
        Self::with_offload(model, world, config, None)
    }

    /// Replicates a model with offloaded parameters, if the offload [has
    /// them](bonfire_optim::Offload::with_parameters). Parameters that Burn has not initialised yet are initialised
    /// one after the other. The optimizer has to have the same offload.
    ///
    /// On the CPU they are in files, frozen ones too: the kernel writes out pages when memory is short. Those of fewer
    /// than 64 KiB stay in memory, and so do gradients and other results of a step. The bits are those without it. An
    /// optimizer without the offload leaves the parameters that it steps in memory.
    ///
    /// A GPU keeps, with [`Placement::zero3`](crate::Placement::zero3), all uncut parameters: those of less than 1024
    /// elements, and frozen ones. This rank's rows of the others are in host memory or files, where they are stepped,
    /// and a complete parameter is copied to the GPU whenever the model uses it, forwards and backwards. This works on
    /// a single GPU, too. `Module::devices` of such a model names the CPU, too: batches belong on [`World::device`].
    ///
    /// ```no_run
    /// # use bonfire_optim::{AdamWConfig, Offload};
    /// # use bonfire_train::{Ddp, DdpConfig, Placement, TrainError, World};
    /// # use burn::{nn::Linear, optim::ModuleOptimizer};
    /// # fn train(model: Linear, world: World) -> Result<(), TrainError> {
    /// let offload = Offload::to_files(std::env::temp_dir())?.with_parameters();
    /// let config = DdpConfig::default().with_placement(Placement::zero3());
    /// let ddp = Ddp::with_offload(model, &world, config, offload.clone())?;
    /// let optimizer = ModuleOptimizer::from(AdamWConfig::new().build().with_offload(offload));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`with_config`](Self::with_config); [`TrainError::Offload`] where a file cannot be made; and
    /// [`TrainError::UnsupportedPlacement`] on GPUs for other placements than `zero3`, and on the CPU for those that
    /// shard the optimizer's state and not the parameters.
    #[track_caller]
    pub fn with_offload(
        model: M,
        world: &World,
        config: DdpConfig,
        offload: impl Into<Option<Offload>>,
    ) -> Result<Self, TrainError> {
        let group = world.warm_up();
        let is_cpu = world.device_name() == "cpu";
        // In memory is where parameters on the CPU are anyway.
        let is_elsewhere = |offload: &Offload| offload.has_files() || !is_cpu;
        let offload = offload
            .into()
            .filter(Offload::has_parameters)
            .filter(is_elsewhere);
        let model = checked(model, &config)
            .and_then(|model| match &offload {
                Some(_) => check_offload(config.placement, world.device_name()).map(|()| model),
                None => Ok(model),
            })
            .inspect_err(|error| group.abort(&error.to_string()))?;
        let computing = offload.is_some().then(|| world.device());
        let place = Where {
            offload: offload.as_ref(),
            computing: computing.as_ref().filter(|_| !is_cpu),
        };
        let setup = Setup::new(model, &group, &config, place)?;
        let trained_on = device_of(&setup.module);
        let watchdog = Watchdog::new(&group);
        Ok(Self {
            module: Some(setup.module),
            group,
            table: setup.table,
            shards: setup.shards,
            synchroniser: setup.synchroniser,
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
            is_cpu: is_cpu && trained_on.is_some() && trained_on == Offload::device(),
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
        let table = checked(model.clone(), config)
            .and_then(|model| ParameterTable::of(&model))
            .inspect_err(|error| group.abort(&error.to_string()))?;
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
        self.guarded("Ddp::whole", |ddp| Ok(ddp.module().valid().materialize()))
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
    pub fn into_module(self) -> M {
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
        let step = self.guarded(NAME, |ddp| ddp.synchronise(forward));
        self.group.end_step();
        step
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
        self.guarded(NAME, |ddp| ddp.accumulate(forward))
    }

    /// Updates the parameters by the optimizer's rule. Equal gradients and equal optimizers keep the replicas equal.
    ///
    /// Where [`DdpConfig::placement`] shards the optimizer's state, the optimizer sees this rank's part of the
    /// parameters, keeps its state for this part, and the ranks gather the updated parameters. Every rank must call it
    /// then. Where the parts are rows, the optimizer must treat each element by itself, as SGD, Adam, AdamW, Lion and
    /// RMSProp do; with [`Placement::of_whole_parameters`](crate::Placement::of_whole_parameters) it may be any.
    ///
    /// # Errors
    /// [`TrainError::Collective`] if another rank has failed. [`TrainError::ScaleNotTaken`] where the scale of
    /// gradients is [deferred](Gradients::defer_scale) and an optimizer lacks the handle, which is found after its
    /// parameters have been stepped, or clips, which is found before. Both end the group. Where the optimizer's state
    /// is sharded: [`TrainError::RowsDiffer`] for an optimizer, or its own clipping, that needs complete parameters
    /// and gets rows; [`TrainError::Collective`]; [`TrainError::UnreadableTensor`].
    #[track_caller]
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: Gradients,
    ) -> Result<(), TrainError> {
        let done = self.guarded("Ddp::step", |ddp| {
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

    fn no_gradients(&self) -> Gradients {
        let rounds_alike = self.is_cpu || self.group.world_size() == WorldSize::ONE;
        let replicas = (!rounds_alike).then(|| ProcessGroup::clone(&self.group));
        let none = Gradients::new(Arc::clone(&self.table)).agreeing(replicas);
        if self.config.placement.is_sharded() {
            let group = self.shards.groups().among(&self.group).clone();
            none.cut(Arc::clone(&self.shards), group)
        } else {
            none
        }
    }

    #[cfg(test)]
    fn trace(&self) -> crate::reducer::trace::Trace {
        match &self.synchroniser {
            Synchroniser::Bucketed(reducer) => lock(reducer).trace.clone(),
            Synchroniser::Naive(_) => crate::reducer::trace::Trace::new(),
        }
    }

    #[track_caller]
    fn agree_on_buffers(&mut self, presence: Attendance) -> Result<(), TrainError> {
        let agreed =
            self.buffers
                .agree(self.module(), &self.group, self.config.buffers, presence)?;
        let module = self.module.take().expect(MODULE_PRESENT);
        self.module = Some(Buffers::put(module, agreed));
        Ok(())
    }
}

const MODULE_PRESENT: &str =
    "the module is only away while the optimizer steps, or after it panicked";

fn checked<M: Module>(model: M, config: &DdpConfig) -> Result<M, TrainError> {
    config.compression.check()?;
    if matches!(config.compression, GradientCompression::PowerSgd(_))
        && config.sync != GradientSync::Bucketed
    {
        return Err(CompressionError::NeedsBuckets.into());
    }
    config.precision.check(&model)?;
    if let Some(reason) = config.forbids_shards() {
        return Err(TrainError::UnsupportedPlacement {
            placement: config.placement,
            reason: reason.to_owned(),
        });
    }
    Ok(trainable(model))
}

/// Checks that parameters can be outside of a device's memory.
fn check_offload(placement: Placement, device: &str) -> Result<(), TrainError> {
    let are_cut = placement.parameters == Sharding::Sharded;
    let reason = match device {
        "cpu" if placement.is_sharded() && !are_cut => {
            "parameters in files are for replicated and zero3".to_owned()
        }
        device if device != "cpu" && !are_cut => {
            format!("parameters are offloaded from {device} with zero3")
        }
        device if Offload::device().is_none() => {
            format!("what is offloaded from {device} is on the CPU: build with the feature `flex`")
        }
        _ => return Ok(()),
    };
    Err(TrainError::UnsupportedPlacement { placement, reason })
}

#[track_caller]
fn verify(entries: Vec<Entry>, config: &DdpConfig, group: &ProcessGroup) -> Result<(), TrainError> {
    let fingerprint = Fingerprint {
        config: *config,
        entries,
    };
    fingerprint::verify(&fingerprint, group)
}

fn lock(reducer: &Mutex<Reducer>) -> MutexGuard<'_, Reducer> {
    reducer.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
