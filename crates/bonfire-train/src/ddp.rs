//! A model that several ranks train together, each on its share of the data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::Tensor;
use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};

use crate::loss::weights::{Last, MicroBatches};
use crate::loss::{IntoLoss, Loss, Weight, global_loss};
use crate::optim::gradients::{self, Clip};
use crate::parameters::buffers::Buffers;
use crate::parameters::fingerprint::{self, Fingerprint};
use crate::parameters::replicate::replicate;
use crate::parameters::{ParameterTable, is_autodiff};
use crate::reducer::harvest::{averaged, harvest};
use crate::reducer::hooks::{Anchors, Depth, Listener, Pass, measured};
use crate::reducer::timing::{StepTiming, Stopwatch};
use crate::reducer::{Accumulate, Reducer};
use crate::world::exchange::group::NormGroups;
use crate::world::patience::WarmUp;
use crate::{BufferSync, DdpConfig, Precision, TrainError, World};

mod alone;
mod compressed;
pub(crate) mod data_parallel;
mod guard;
mod own_backward;
mod summary;
mod synchroniser;

pub use own_backward::OwnStep;
pub use summary::BucketSummary;
use synchroniser::{Synchroniser, averages};

/// A model replicated on all ranks of a group.
///
/// All replicas start from the parameters of rank 0. Every rank calls the same methods in the same
/// order with batches of its own; [`backward`](Self::backward) returns gradients averaged over the
/// ranks, the same bits everywhere, so the replicas stay equal bit for bit.
///
/// An error or a panic of the forward pass on one rank ends the group: the other ranks get
/// [`PeerFailed`](bonfire_collective::CollectiveError::PeerFailed) instead of waiting.
#[derive(Debug)]
pub struct Ddp<M> {
    /// Taken only while the optimizer replaces it.
    module: Option<M>,
    group: WarmUp,
    table: Arc<ParameterTable>,
    synchroniser: Synchroniser,
    precision: Precision,
    buffers: Buffers,
    buffer_sync: BufferSync,
    norm_groups: NormGroups,
    anchors: Anchors,
    depth: Depth,
    micro_batches: MicroBatches,
    /// Calls of `backward` so far.
    steps: u64,
    /// Of the micro-batches since the last synchronised step.
    forward_backward: Duration,
    last_step: StepTiming,
    last_loss: Option<Tensor<1>>,
    last_weight: Weight,
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

    /// Replicates a model: checks that all ranks have the same parameters and configuration, and
    /// gives every rank the values of rank 0, those of frozen parameters and buffers included.
    /// Every rank must call it. A model made on a device without autodiff is put in training mode.
    ///
    /// # Errors
    /// [`TrainError::ModelMismatch`] on all ranks if their models or configurations differ,
    /// [`TrainError::UnsupportedDtype`] for parameters whose gradients cannot be averaged,
    /// [`TrainError::TiedParameter`] for one that the model holds twice,
    /// [`TrainError::Compression`] for a compression that cannot be,
    /// [`TrainError::UnsupportedPrecision`] for a precision that the device has not,
    /// [`TrainError::NoDeviceRoute`] on all ranks if gradients cannot travel as they must,
    /// [`TrainError::Collective`] if a rank fails.
    #[track_caller]
    pub fn with_config(model: M, world: &World, config: DdpConfig) -> Result<Self, TrainError> {
        let group = world.warm_up();
        // An error of one rank alone must not leave the others waiting in the comparison.
        let checked = config.compression.check(config.sync);
        checked
            .map_err(TrainError::from)
            .and_then(|()| config.precision.check(&model))
            .inspect_err(|error| group.abort(&error.to_string()))?;
        let model = if is_autodiff(&model) {
            model
        } else {
            model.train()
        };
        let table =
            ParameterTable::of(&model).inspect_err(|error| group.abort(&error.to_string()))?;
        let fingerprint = Fingerprint {
            config,
            entries: table.entries().to_vec(),
        };
        fingerprint::verify(&fingerprint, &group)?;
        let model =
            replicate(model, &group).inspect_err(|error| group.abort(&error.to_string()))?;
        let buffers = Buffers::of(&model);
        let table = Arc::new(table);
        let synchroniser =
            Synchroniser::new(&model, &group, &table, &config).inspect_err(|error| {
                // That there is no such way is what all ranks return.
                if !matches!(error, TrainError::NoDeviceRoute { .. }) {
                    group.abort(&error.to_string());
                }
            })?;
        Ok(Self {
            module: Some(model),
            group,
            table,
            synchroniser,
            precision: config.precision,
            buffers,
            buffer_sync: config.buffers,
            norm_groups: world.norm_groups().clone(),
            anchors: Anchors::default(),
            depth: Depth::default(),
            micro_batches: MicroBatches::default(),
            steps: 0,
            forward_backward: Duration::ZERO,
            last_step: StepTiming::default(),
            last_loss: None,
            last_weight: Weight::Equal,
        })
    }

    /// The model. For validation, `ddp.module().valid()`.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect(MODULE_PRESENT)
    }

    /// The type that forward and backward passes compute in.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The model without autodiff, its trainable parameters in the type that passes compute in: what
    /// validates as it trains. [`module`](Self::module) validates in the type of the parameters.
    pub fn lowered(&self) -> M {
        self.precision
            .cast_model(self.module().valid(), &self.table)
    }

    /// The model, out of its group.
    pub fn into_module(self) -> M {
        self.module.expect(MODULE_PRESENT)
    }

    /// Runs a forward and a backward pass on this rank's batch and returns the mean of all ranks'
    /// gradients, under the identities of the parameters of [`module`](Self::module). Gradients
    /// travel while the backward pass still runs. Batches of [`no_sync`](Self::no_sync) since the
    /// last call are part of the mean.
    ///
    /// A parameter that this rank's loss does not depend on counts as zero here; one that no rank's
    /// loss depends on has no gradient, on any rank.
    ///
    /// The mean is over the ranks' batches, or over samples with [`Loss::mean_over`].
    ///
    /// # Errors
    /// [`TrainError::Forward`] if the forward pass returned an error, [`TrainError::Collective`] if
    /// another rank failed; [`TrainError`] lists the rest. The group has ended then, on all ranks.
    ///
    /// # Panics
    /// If the forward pass panics, after telling the other ranks.
    #[track_caller]
    pub fn backward<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<GradientsParams, TrainError> {
        // Who asks a rank what it does learns whether it computes or is busy with something else.
        self.group.progress(self.steps);
        self.steps += 1;
        self.group.phase("Ddp::backward");
        let gradients = self.guarded(|ddp| ddp.synchronise(forward));
        self.group.end_step();
        self.group.phase("after Ddp::backward");
        gradients
    }

    /// Runs a forward and a backward pass whose gradients stay on this rank until the next
    /// [`backward`](Self::backward), which averages over all of them: k - 1 calls of `no_sync` and
    /// one of `backward` are one step over k batches per rank.
    ///
    /// # Errors
    /// [`TrainError::Forward`] if the forward pass returned an error; the group has ended then.
    ///
    /// # Panics
    /// If the forward pass panics, after telling the other ranks.
    #[track_caller]
    pub fn no_sync<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<(), TrainError> {
        self.guarded(|ddp| ddp.accumulate(forward))
    }

    /// Updates the parameters. Equal gradients and equal optimizers keep the replicas equal.
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: GradientsParams,
    ) {
        // Handed over rather than cloned, so that the optimizer may update in place.
        let module = self.module.take().expect(MODULE_PRESENT);
        self.module = Some(optimizer.step(lr, module, gradients));
    }

    /// This rank's loss in the latest forward pass, detached from its graph.
    pub fn last_loss(&self) -> Option<Tensor<1>> {
        self.last_loss.clone()
    }

    /// How much this rank's loss counts in the latest forward pass.
    #[doc(hidden)]
    pub fn last_weight(&self) -> Weight {
        self.last_weight
    }

    /// The mean of all ranks' losses in the latest forward pass, over samples where they are weighted
    /// with [`Loss::mean_over`]: the same bits on every rank. Every rank must call it. It waits for
    /// the device; a program that wants to stop at a loss that is not finite calls it in every step.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteLoss`] on all ranks, naming those whose loss is infinite or no number;
    /// [`TrainError::NoSamples`] if no rank had any; [`TrainError::Collective`].
    #[track_caller]
    pub fn global_loss(&self) -> Result<f64, TrainError> {
        global_loss(self.last_loss(), self.last_weight, &self.group)
    }

    /// The norm of all gradients together, still on the device; nothing without gradients.
    pub fn global_norm(&self, gradients: &GradientsParams) -> Option<Tensor<1>> {
        gradients::global_norm(self.module(), gradients)
    }

    /// Clips averaged gradients. All ranks do the same, because all have the same gradients.
    #[must_use]
    pub fn clip(&self, gradients: GradientsParams, clip: Clip) -> GradientsParams {
        gradients::clip(self.module(), gradients, clip)
    }

    /// That all averaged gradients are finite. All ranks find the same, because all have the same
    /// gradients: they may stop, or skip the step, without asking each other. It waits for the
    /// device.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteGradient`], or [`TrainError::UnreadableTensor`].
    pub fn check_finite(&self, gradients: &GradientsParams) -> Result<(), TrainError> {
        let mut broken = gradients::non_finite(self.module(), gradients)?.into_iter();
        match broken.next() {
            None => Ok(()),
            Some(parameter) => Err(TrainError::NonFiniteGradient {
                parameter,
                others: broken.len(),
            }),
        }
    }

    /// Where the time of the latest [`backward`](Self::backward) went.
    pub fn last_step(&self) -> StepTiming {
        self.last_step
    }

    /// What happens in the backward passes to come.
    #[cfg(test)]
    fn trace(&self) -> crate::reducer::trace::Trace {
        match &self.synchroniser {
            Synchroniser::Bucketed(reducer) => lock(reducer).trace.clone(),
            Synchroniser::Naive(_) => crate::reducer::trace::Trace::new(),
        }
    }

    /// Leaves every rank with the buffers that the ranks agree on.
    #[track_caller]
    fn agree_on_buffers(&mut self) -> Result<(), TrainError> {
        let module = self.module();
        let agreed = self.buffers.agree(
            module,
            &self.group,
            self.buffer_sync,
            self.micro_batches.presence(),
        )?;
        let module = self.module.take().expect(MODULE_PRESENT);
        self.module = Some(Buffers::put(module, agreed));
        Ok(())
    }

    /// The forward pass. The graph is the same whoever listens, so that the bits of the gradients
    /// are, too.
    fn loss<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
        listener: &Listener,
    ) -> Result<Loss, TrainError> {
        let module = self.module.as_ref().expect(MODULE_PRESENT);
        let pass = Pass {
            listener,
            precision: self.precision,
        };
        let hooked = self
            .anchors
            .attach(module, &self.table, &self.depth, pass)?;
        let mut loss = forward(&hooked).into_loss().map_err(TrainError::Forward)?;
        self.micro_batches.add(loss.weight)?;
        self.norm_groups.weigh(loss.weight.count() as f64);
        self.last_loss = Some(loss.tensor.clone().without_autodiff());
        self.last_weight = loss.weight;
        if counts(&loss) {
            loss.tensor = measured(loss.tensor, &self.depth)?;
        }
        Ok(loss)
    }

    fn accumulate<L: IntoLoss>(&mut self, forward: impl FnOnce(&M) -> L) -> Result<(), TrainError> {
        let start = Instant::now();
        let loss = self.loss(forward, &Listener::Nobody)?;
        let entering = self.micro_batches.entering(loss.weight, Last::No);
        let gradients = counts(&loss).then(|| loss.tensor.backward());
        if let Some(failure) = self.norm_groups.failure() {
            return Err(failure);
        }
        let module = self.module.as_ref().expect(MODULE_PRESENT);
        match &mut self.synchroniser {
            Synchroniser::Bucketed(reducer) => {
                let mut sink = Accumulate {
                    reducer: &mut lock(reducer),
                    entering,
                };
                sink.reducer.begin_accumulating()?;
                harvest(module, &self.table, gradients.as_ref(), &mut sink)?;
                sink.reducer.end_accumulating(entering)?;
            }
            Synchroniser::Naive(naive) => {
                naive.entering = entering;
                harvest(module, &self.table, gradients.as_ref(), naive)?;
            }
        }
        self.forward_backward += start.elapsed();
        Ok(())
    }

    #[track_caller]
    fn synchronise<L: IntoLoss>(
        &mut self,
        forward: impl FnOnce(&M) -> L,
    ) -> Result<GradientsParams, TrainError> {
        let start = Instant::now();
        let mut watch = Stopwatch::default();
        let gradients = match &self.synchroniser {
            Synchroniser::Bucketed(_) if self.is_alone() => self.step_alone(forward, start)?,
            Synchroniser::Bucketed(reducer) => {
                let reducer = Arc::clone(reducer);
                let loss = self.loss(forward, &Listener::Reducer(Arc::clone(&reducer)))?;
                self.synchronise_buckets(&reducer, loss, start, &mut watch)?
            }
            Synchroniser::Naive(_) => {
                let loss = self.loss(forward, &Listener::Nobody)?;
                self.synchronise_naively(loss, start, &mut watch)?
            }
        };
        watch.time(|| self.agree_on_buffers())?;
        self.micro_batches = MicroBatches::default();
        self.last_step = StepTiming {
            forward_backward: std::mem::take(&mut self.forward_backward),
            exposed_communication: watch.total(),
        };
        Ok(gradients)
    }

    fn synchronise_buckets(
        &mut self,
        shared: &Arc<Mutex<Reducer>>,
        loss: Loss,
        start: Instant,
        watch: &mut Stopwatch,
    ) -> Result<GradientsParams, TrainError> {
        let (table, micro_batches) = (Arc::clone(&self.table), self.micro_batches);
        let entering = micro_batches.entering(loss.weight, Last::Yes);
        let normalizer = micro_batches.normalizer(&self.group);
        lock(shared).begin((entering, normalizer), self.norm_groups.are_used())?;
        // Gradients travel from here on.
        let gradients = counts(&loss).then(|| loss.tensor.backward());
        lock(shared).check()?;
        self.norm_groups.end_step()?;
        let module = self.module();
        let mut reducer = lock(shared);
        harvest(module, &table, gradients.as_ref(), &mut *reducer)?;
        let forward_backward = start.elapsed().saturating_sub(reducer.waited());
        watch.add(reducer.waited());

        reducer.settle(micro_batches, watch)?;
        let averages = averages(module, &table, gradients, (&mut reducer, &mut *watch))?;
        reducer.end()?;
        self.forward_backward += forward_backward + reducer.computed();
        Ok(averages)
    }

    fn synchronise_naively(
        &mut self,
        loss: Loss,
        start: Instant,
        watch: &mut Stopwatch,
    ) -> Result<GradientsParams, TrainError> {
        let Synchroniser::Naive(naive) = &mut self.synchroniser else {
            unreachable!("the synchroniser never changes");
        };
        let module = self.module.as_ref().expect(MODULE_PRESENT);
        naive.entering = self.micro_batches.entering(loss.weight, Last::Yes);
        let normalizer = self.micro_batches.normalizer(&self.group);
        let gradients = counts(&loss).then(|| loss.tensor.backward());
        self.norm_groups.end_step()?;
        harvest(module, &self.table, gradients.as_ref(), naive)?;
        self.forward_backward += start.elapsed();
        naive.average_all(normalizer, self.micro_batches, watch)?;
        let average = |parameter| naive.average(parameter);
        let averages = averaged(module, &self.table, gradients, average);
        naive.end();
        Ok(averages)
    }
}

const MODULE_PRESENT: &str =
    "the module is only away while the optimizer steps, or after it panicked";

/// Whether a loss has gradients that count.
fn counts(loss: &Loss) -> bool {
    loss.weight != Weight::Samples(0) && loss.tensor.is_tracked()
}

fn lock(reducer: &Mutex<Reducer>) -> MutexGuard<'_, Reducer> {
    reducer.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
