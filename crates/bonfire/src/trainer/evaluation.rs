//! Evaluates a model on other data, when it is due.

use std::sync::Arc;

use bonfire_collective::ReduceOp;
use bonfire_data::{Loader, Remainder};
use bonfire_launch::StopRequest;
use bonfire_plan::memory::Evaluation;
use bonfire_report::Activity;
use bonfire_train::Sharding;
use burn::module::Module;

use super::engine::Model;
use super::resolve::prefetch;
use super::{Data, Trainer};
use crate::error::{Error, Result};
use crate::{NextStep, agree_on_next_step};

impl<M: Model, B: Send + 'static> Trainer<M, B> {
    /// Returns true until the next evaluation or step, if one is due: after every `evaluation.every` steps, without it at
    /// the end of each epoch, and after the last step. It is still true after a resume from a checkpoint that was saved
    /// before the evaluation. It does not communicate.
    ///
    /// ```no_run
    /// # use bonfire::{Error, trainer::{Data, Trainer}};
    /// # use burn::nn::Linear;
    /// # use burn::tensor::Tensor;
    /// # fn mean(model: &Linear, batch: Tensor<2>) -> Tensor<1> { model.forward(batch).mean() }
    /// # fn train(trainer: &mut Trainer<Linear, Tensor<2>>, validation: &Data<Tensor<2>>) -> Result<(), Error> {
    /// loop {
    ///     if trainer.evaluation_is_due() {
    ///         let [loss] = trainer.evaluate(validation, |model, batch| [mean(model, batch).into_scalar()])?;
    ///         trainer.save(Some(loss))?;
    ///     }
    ///     let Some(batch) = trainer.next_batch()? else { break };
    ///     trainer.step(batch, mean)?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn evaluation_is_due(&self) -> bool {
        self.progress.evaluation_is_due
    }
}

impl<M: Module, B: Send + 'static> Trainer<M, B> {
    /// Returns the means of `N` scores over other data, of which each sample counts once, whatever the number of
    /// ranks. On a mesh with `tp` or `cp`, its ranks are given the same samples; `score` of `cp` ranks must then be of
    /// equally many tokens, because their means count the same. `score` returns the means over a batch. The batches
    /// have as many samples as those of a training, and are made like those, ahead of time.
    ///
    /// Where parameters are sharded, each rank gathers the complete model for it: see
    /// [`Ddp::whole`](crate::Ddp::whole).
    ///
    /// # Errors
    /// The data's of any rank, on all ranks; or if a rank has failed.
    #[track_caller]
    pub fn evaluate<E: Send + 'static, const N: usize>(
        &mut self,
        data: &Data<E>,
        score: impl Fn(&M, E) -> [f64; N],
    ) -> Result<[f64; N]> {
        let means = self.means(&StopRequest::never(), data, score)?;
        means.ok_or_else(|| {
            Error::Usage(
                "another rank evaluates with evaluate_or_stop; all call the same".to_owned(),
            )
        })
    }

    /// Evaluates as [`evaluate`](Self::evaluate), but returns `None` when the ranks were asked to stop. The evaluation is
    /// then [due](Self::evaluation_is_due) after a resume.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate).
    #[track_caller]
    pub fn evaluate_or_stop<E: Send + 'static, const N: usize>(
        &mut self,
        data: &Data<E>,
        score: impl Fn(&M, E) -> [f64; N],
    ) -> Result<Option<[f64; N]>> {
        let stop = Arc::clone(&self.stop);
        let means = self.means(&stop, data, score)?;
        if means.is_none() {
            self.note_stop();
        }
        Ok(means)
    }

    /// Evaluates by the program's own pass over data: with batches of another size, or scores that are not means.
    /// `evaluate` gets the model of [`evaluate`](Self::evaluate), and the stop request for
    /// [`agree_on_next_step`]. Where the ranks were asked to stop, it returns `None`; the
    /// evaluation is then [due](Self::evaluation_is_due) after a resume.
    ///
    /// # Errors
    /// Those of `evaluate`, which must end all ranks; or if a rank has failed.
    #[track_caller]
    pub fn evaluate_with<T, E: From<Error>>(
        &mut self,
        evaluate: impl FnOnce(&M, &StopRequest) -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let model = self.whole_model()?;
        let (stop, journal) = (&self.stop, &mut self.journal);
        let result = journal.time(Activity::Evaluation, || evaluate(&model, stop))?;
        self.progress.evaluation_is_due &= result.is_none();
        if result.is_none() {
            self.note_stop();
        }
        Ok(result)
    }

    /// The model for an evaluation, which then is part of the planned memory.
    #[track_caller]
    fn whole_model(&mut self) -> Result<M> {
        if self.config.placement.parameters == Sharding::Sharded {
            let planned = self.planned.iter_mut();
            planned.for_each(|training| training.evaluation = Evaluation::Whole);
        }
        Ok(self.engine.lowered()?)
    }

    /// Returns the means of scores; `None` if a rank was asked to stop.
    #[track_caller]
    fn means<E: Send + 'static, const N: usize>(
        &mut self,
        stop: &StopRequest,
        data: &Data<E>,
        score: impl Fn(&M, E) -> [f64; N],
    ) -> Result<Option<[f64; N]>> {
        let make = Arc::clone(data.samples()?);
        let model = self.whole_model()?;
        let loader = Loader::new(self.place.data(), data.len(), self.micro);
        let batches = loader.with_remainder(Remainder::Exact).next_epoch();
        let mut shown = self.journal.batches("evaluation", batches.len());
        let prepare = move |indices: &[usize]| make(0, indices);
        let mut prepared = batches.prefetch(prefetch(&self.config), prepare)?;
        let (world, replicas) = (&self.world, self.place.replicas());
        let means = self.journal.time(Activity::Evaluation, || {
            // The last is the number of samples.
            let mut totals = vec![0.0; N + 1];
            loop {
                let prepared = match agree_on_next_step(world, stop, prepared.next())? {
                    NextStep::Step(Some(prepared)) => prepared,
                    // Another rank has one more batch.
                    NextStep::Step(None) => continue,
                    NextStep::End => break,
                    NextStep::Stop => return Ok(None),
                };
                let samples = prepared.indices.len();
                let means = score(&model, prepared.batch).into_iter().chain([1.0]);
                let add = totals.iter_mut().zip(means);
                add.for_each(|(total, mean)| *total += mean * samples as f64);
                shown.batch(samples);
            }
            replicas.group().all_reduce(&mut totals, ReduceOp::Sum)?;
            Ok::<_, Error>(Some(std::array::from_fn(|place| totals[place] / totals[N])))
        })?;
        self.progress.evaluation_is_due &= means.is_none();
        Ok(means)
    }
}
