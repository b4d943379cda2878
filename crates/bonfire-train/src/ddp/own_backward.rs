//! Steps that run their own backward pass, as the `TrainStep` of Burn's learner does: they return gradients and not a
//! loss.
//!
//! The hooks take the gradients while that pass runs, so buckets are sent during it as in [`Ddp::backward`]. The
//! step's own gradients are empty and not used. The stages of a pipeline have a pass each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use burn::module::Module;

use super::{Ddp, MODULE_PRESENT, Step};
use crate::loss::weights::Last;
use crate::loss::{IntoLoss, Weight};
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
    /// If `step` panics, after reporting it to the other ranks; or with samples and no step.
    #[track_caller]
    pub fn run_own<R>(
        &mut self,
        samples: usize,
        step: Option<impl FnOnce(&M) -> R>,
        last: Last,
    ) -> Result<OwnStep<R>, TrainError> {
        assert!(step.is_some() || samples == 0, "{samples} samples without a step");
        if self.config.placement.is_sharded() {
            return Err(TrainError::unsupported(
                self.config.placement,
                "Burn's learner steps its optimizer itself; write the training loop with Ddp::backward and Ddp::step",
            ));
        }
        const NAME: &str = "a step of the learner";
        let number = self.step_number();
        self.group.progress(number);
        self.steps += u64::from(last == Last::Yes);
        let _watched = self.watchdog.watch(NAME, number, &self.group);
        let weight = Weight::Samples(samples);
        let step = step.map(|step| |_: &M, hooked: &M| Ok(step(hooked)));
        let own = self.call(NAME, |ddp| ddp.own(weight, step, last));
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
    /// If `passes` panics, after reporting it to the other ranks; or if parameters are sharded.
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
        let own = self.call(NAME, |ddp| ddp.own(Weight::Equal, Some(passes), Last::Yes));
        self.group.end_step();
        let OwnStep { output, synchronised } = own?;
        let (loss, output) = output.expect("the passes have run");
        let (gradients, timing) = synchronised.expect("gradients have been sent");
        Ok(Step { gradients, loss, output, timing })
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
        let begin = Instant::now();
        self.guess_depth();
        self.micro_batches.add(weight)?;
        self.norm_groups.weigh(weight.count() as f64);
        let mut watch = Stopwatch::default();
        match last {
            Last::Yes => self.begin_sending(weight, &mut watch)?,
            Last::No => {
                let scale = self.micro_batches.scale(weight);
                self.reducer.lock().begin_accumulating(scale)?;
            }
        }
        let listener = Listener::Reducer(Arc::downgrade(&self.reducer));
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
                let hooked = self.anchors.attach(module, &self.table, &self.depth, pass)?;
                // Gradients are sent from here on.
                Some(step(module, &hooked)?)
            }
        };
        if last == Last::No {
            self.reducer.lock().check()?;
            if let Some(failure) = self.norm_groups.failure() {
                return Err(failure);
            }
            self.reducer.lock().end_accumulating()?;
            self.forward_backward += begin.elapsed();
            return Ok(OwnStep { output, synchronised: None });
        }
        let gradients = self.settle(None, begin, &mut watch)?;
        let gradients = gradients.divided(self.divided.as_ref());
        let timing = self.end_step(watch)?;
        Ok(OwnStep { output, synchronised: Some((gradients, timing)) })
    }
}
