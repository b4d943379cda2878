//! Steps that run their own backward pass, as the `TrainStep` of Burn's learner does: they return gradients and not a
//! loss.
//!
//! The hooks take the gradients while that pass runs, so buckets are sent during it as in [`Ddp::backward`]. The
//! step's own gradients are empty and not used. The stages of a pipeline have a pass each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use burn::module::Module;

use super::synchroniser::{Synchroniser, averages};
use super::{Ddp, MODULE_PRESENT, Step, lock};
use crate::loss::weights::{Last, MicroBatches};
use crate::loss::{IntoLoss, Weight};
use crate::reducer::harvest::harvest;
use crate::reducer::hooks::{Listener, Pass};
use crate::reducer::timing::{StepTiming, Stopwatch};
use crate::{Gradients, Sharding, TrainError};

/// Operations between one parameter and the next on the way to the loss: a linear layer with its activation has three
/// for two parameters, a transformer block fewer than forty for its twelve. Too many cost little; with too few some
/// gradients are sent late.
const OPERATIONS_PER_PARAMETER: usize = 4;

/// The result of a step that ran its own backward pass.
#[derive(Debug)]
#[non_exhaustive]
pub struct OwnStep<R> {
    /// The output of the step; `None` on a rank without a batch.
    pub output: Option<R>,
    /// The mean gradients over the samples of all ranks since the last synchronised step, and their timing; `None`
    /// before the last batch of a step.
    pub synchronised: Option<(Gradients, StepTiming)>,
}

impl<M: Module> Ddp<M> {
    /// Replaces the model by one with the same parameters and other values.
    pub fn set_module(&mut self, module: M) {
        self.module = Some(module);
        self.passes = 0;
    }

    /// Runs a `step` with its own forward and backward pass, such as a `TrainStep` of Burn's learner, on a batch of
    /// `samples` samples; its gradients are sent while it runs. A rank without a batch passes no step and no samples.
    /// Every rank must call it, equally often and with the same `last`.
    ///
    /// # Errors
    /// See [`backward`](Self::backward).
    ///
    /// # Panics
    /// If `step` panics, after reporting it to the other ranks; or with samples and no step, or if gradients are not
    /// sent in buckets.
    #[track_caller]
    pub fn run_own<R>(
        &mut self,
        samples: usize,
        step: Option<impl FnOnce(&M) -> R>,
        last: Last,
    ) -> Result<OwnStep<R>, TrainError> {
        assert!(
            step.is_some() || samples == 0,
            "{samples} samples without a step"
        );
        if self.config.placement.is_sharded() {
            return Err(TrainError::UnsupportedPlacement {
                placement: self.config.placement,
                reason: "Burn's learner steps its optimizer itself; write the training loop with \
                         Ddp::backward and Ddp::step"
                    .to_owned(),
            });
        }
        const NAME: &str = "a step of the learner";
        let number = self.step_number();
        self.group.progress(number);
        self.steps += u64::from(last == Last::Yes);
        let _watched = self.watchdog.watch(NAME, number, &self.group);
        let weight = Weight::Samples(samples);
        let step = step.map(|step| |_: &M, hooked: &M| Ok(step(hooked)));
        let own = self.guarded(NAME, |ddp| ddp.own(weight, step, last));
        if last == Last::Yes {
            self.group.end_step();
        }
        own
    }

    /// Runs `passes` with two forms of the model: a plain one, and one whose backward pass marks gradients as final.
    /// Use the second form for a parameter in one pass alone. Its gradients are sent while the rest of `passes` runs,
    /// and the gradients of the step are the mean over the ranks. The returned loss is only reported.
    ///
    /// # Errors
    /// See [`backward`](Self::backward).
    ///
    /// # Panics
    /// If `passes` panics, after reporting it to the other ranks; or if parameters are sharded, or gradients are not
    /// sent in buckets.
    #[track_caller]
    pub fn backward_in_parts<L: IntoLoss>(
        &mut self,
        passes: impl FnOnce(&M, &M) -> L,
    ) -> Result<Step<L::Output>, TrainError> {
        let parameters = self.config.placement.parameters;
        assert_eq!(parameters, Sharding::Replicated, "who has the parameters");
        const NAME: &str = "Ddp::backward_in_parts";
        let _watched = self.begin_step(NAME);
        let passes = |model: &M, hooked: &M| {
            let loss = passes(model, hooked).into_loss();
            loss.map_err(TrainError::Forward)
        };
        let own = self.guarded(NAME, |ddp| ddp.own(Weight::Equal, Some(passes), Last::Yes));
        self.group.end_step();
        let OwnStep {
            output,
            synchronised,
        } = own?;
        let (loss, output) = output.expect("the passes have run");
        let (gradients, timing) = synchronised.expect("gradients have been sent");
        Ok(Step {
            gradients,
            loss,
            output,
            timing,
        })
    }

    /// Estimates the depth of the loss's graph: a step does not show its loss.
    fn guess_depth(&self) {
        let guess = OPERATIONS_PER_PARAMETER * self.table.len();
        // A loss that was seen is more exact.
        let (known, now) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.depth.compare_exchange(0, guess, known, now);
    }

    /// `step` gets the model without and with hooks.
    fn own<R>(
        &mut self,
        weight: Weight,
        step: Option<impl FnOnce(&M, &M) -> Result<R, TrainError>>,
        last: Last,
    ) -> Result<OwnStep<R>, TrainError> {
        let start = Instant::now();
        self.guess_depth();
        let Synchroniser::Bucketed(reducer) = &self.synchroniser else {
            panic!("a step that runs its own backward pass needs GradientSync::Bucketed");
        };
        let reducer = Arc::clone(reducer);
        self.micro_batches.add(weight)?;
        self.norm_groups.weigh(weight.count() as f64);
        let entering = self.micro_batches.entering(weight);
        match last {
            Last::Yes => {
                let normalizer = self.micro_batches.normalizer(&self.group);
                let exchanges = self.norm_groups.are_used();
                lock(&reducer).begin(self.micro_batches, entering, normalizer, exchanges)?;
            }
            Last::No => lock(&reducer).begin_accumulating(entering)?,
        }
        let listener = Listener::Reducer(Arc::clone(&reducer));
        let output = match step {
            None => None,
            Some(step) => {
                let module = self.module.as_ref().expect(MODULE_PRESENT);
                let pass = Pass {
                    listener: &listener,
                    precision: self.config.precision,
                    // What is not wanted is dropped; a learner looks for it in vain.
                    keeps_gradients: matches!(weight, Weight::Samples(_)),
                    gathered: None,
                };
                let hooked = self
                    .anchors
                    .attach(module, &self.table, &self.depth, pass)?;
                // Gradients are sent from here on.
                Some(step(module, &hooked)?)
            }
        };
        lock(&reducer).check()?;
        if last == Last::No {
            if let Some(failure) = self.norm_groups.failure() {
                return Err(failure);
            }
            lock(&reducer).end_accumulating()?;
            self.forward_backward += start.elapsed();
            return Ok(OwnStep {
                output,
                synchronised: None,
            });
        }
        self.norm_groups.end_step()?;
        let mut watch = Stopwatch::default();
        let mut reducer = lock(&reducer);
        // Parameters that the loss does not depend on count as zero.
        harvest(self.module(), &self.table, None, &mut *reducer)?;
        self.forward_backward += start.elapsed().saturating_sub(reducer.waited());
        watch.add(reducer.waited());
        reducer.settle(&mut watch)?;
        let gradients = averages(
            self.module(),
            self.no_gradients(),
            None,
            &mut reducer,
            &mut watch,
        )?;
        self.forward_backward += reducer.computed();
        reducer.end()?;
        let presence = self.micro_batches.presence();
        watch.time(|| self.agree_on_buffers(presence))?;
        self.micro_batches = MicroBatches::default();
        let timing = StepTiming {
            forward_backward: std::mem::take(&mut self.forward_backward),
            exposed_communication: watch.total(),
        };
        Ok(OwnStep {
            output,
            synchronised: Some((gradients.divided(self.divided.as_ref()), timing)),
        })
    }
}
