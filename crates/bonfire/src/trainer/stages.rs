//! A model as the stages of a pipeline, and what a trainer does with them: a step over all micro-batches, evaluation.
//!
//! The order of passes is that of `bonfire-plan`, and [`Pipeline`] runs them; nothing here does.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::ReduceOp;
use bonfire_config::{Batches, Config, OffloadTo};
use bonfire_data::{DistributedSampler, LastBatch, Remainder};
use bonfire_parallel::{Axes, IntoOutput, Pass, Pipeline, PipelineError, PipelineTiming};
use bonfire_plan::Axis;
use bonfire_plan::pipeline::partition;
use bonfire_report::Activity;
use bonfire_train::{Checkpoints, Ddp, Gradients, Mesh, Resumed, StepOptions};
use burn::module::{Module, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;
use serde::de::DeserializeOwned;

use super::data::Source;
use super::engine::{Calls, Engine, Model, Part};
use super::mesh::Place;
use super::{Data, StepOutput, Trainer};
use crate::all_or_none;
use crate::error::{BoxError, Error, Result};

/// The layers of a model, from which each rank makes its stages: in [`Parts`](super::Parts) it takes the place of the
/// model. The ranks of `pp` in `mesh` then have the layers one behind the other, by the schedule of `pipeline` in the
/// configuration.
///
/// [`Trainer::next_batch`] returns the micro-batches of a step, `batch.accumulation` of them, and `step` takes them with
/// the forward pass of all stages, which is that of [`Pipeline::backward`].
///
/// ```
/// use bonfire::checkpoint::TensorTable;
/// use bonfire::config::Config;
/// use bonfire::parallel::{Output, Pass, PipelineError};
/// use bonfire::trainer::{Data, Parts, Stages, prepare};
/// use bonfire::{Error, spawn};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Tensor;
///
/// fn forward(stage: &Vec<Linear>, pass: &mut Pass<'_, Tensor<2>>) -> Result<Output, PipelineError> {
///     let x = if pass.is_first() { pass.micro_batch().clone() } else { pass.input()? };
///     let x = stage.iter().fold(x, |x, layer| layer.forward(x).tanh());
///     Ok(if pass.is_last() { (x - 0.5).powi_scalar(2).mean().into() } else { x.into() })
/// }
///
/// let losses = spawn(4, |world| {
///     let words = ["mesh=dp=2,pp=2", "batch.micro=4", "batch.accumulation=4", "optimizer.lr=0.05", "epochs=20"];
///     let config = Config::default().with_words(words)?;
///     let mesh = world.mesh(config.mesh)?;
///     let device = world.device();
///     let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
///     let whole = TensorTable::of(&layers);
///     let stages = Stages::new(vec![1.0; 4], move |run| Ok::<_, Error>(layers[run].to_vec()));
///     let device = device.autodiff();
///     let data = Data::new(64, move |indices: &[usize]| Tensor::ones([indices.len(), 8], &device));
///     let parts = Parts::new(stages, data).with_mesh(&mesh, whole);
///     let mut trainer = prepare(&world, &config, parts)?;
///     let mut last = f64::NAN;
///     while let Some(micro_batches) = trainer.next_batch()? {
///         last = trainer.step(micro_batches, forward)?.loss.value()?;
///     }
///     trainer.finish()?;
///     Ok::<_, Error>(last)
/// })?;
/// assert!(losses.iter().all(|loss| *loss < 0.05), "{losses:?}");
/// # Ok::<(), Error>(())
/// ```
pub struct Stages<S> {
    weights: Vec<f64>,
    make: Box<dyn FnMut(Range<usize>) -> Result<S, BoxError>>,
    tie: Option<Tie<S>>,
}

type Tie<S> = Box<dyn FnOnce(Pipeline<S>) -> Result<Pipeline<S>, PipelineError>>;

impl<S: Module> Stages<S> {
    /// Takes the weights of all layers, such as their numbers of parameters or [seconds](crate::parallel::layer_seconds),
    /// by which they are cut into stages of about the same weight. `make` makes a stage of the layers in a range; it is
    /// called for those of this rank, in order. Its parameters keep the identities of the whole model's.
    pub fn new<E: Into<BoxError>>(
        weights: impl Into<Vec<f64>>,
        mut make: impl FnMut(Range<usize>) -> Result<S, E> + 'static,
    ) -> Self {
        Self {
            weights: weights.into(),
            make: Box::new(move |layers| make(layers).map_err(Into::into)),
            tie: None,
        }
    }

    /// Ties a parameter of the first stage to the last one, as [`Pipeline::with_tied`] does.
    #[must_use]
    pub fn with_tied<const D: usize>(
        mut self,
        parameter: impl Fn(&S) -> &Param<Tensor<D>> + 'static,
    ) -> Self {
        self.tie = Some(Box::new(move |pipeline| pipeline.with_tied(parameter)));
        self
    }
}

impl<S> fmt::Debug for Stages<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stages").field("weights", &self.weights).finish_non_exhaustive()
    }
}

impl<S: Module + 'static> Model for Stages<S> {
    type Engine = Pipeline<S>;
    type Batch<B: Send + 'static> = Vec<B>;

    fn part(self, place: &Place, config: &Config, batches: &Batches) -> Result<Part<Pipeline<S>>> {
        let Self { weights, mut make, tie } = self;
        let mesh = mesh_of(place)?;
        if config.offload.parameters != OffloadTo::None {
            return Err(Error::Usage("offload.parameters: not with Stages".to_owned()));
        }
        let pp = mesh.sub(Axis::Pp);
        let schedule = config.stages(pp.world_size(), batches)?;
        let runs = partition(&weights, schedule.stages() as usize);
        let runs = runs.map_err(|cause| Error::Usage(format!("mesh={}: {cause}", mesh.grid())))?;
        let numbers = schedule.stages_on(pp.rank()).into_iter();
        let stages = numbers.map(|number| make(runs[number as usize].clone()));
        let stages: Result<Vec<S>, BoxError> = stages.collect();
        Ok(Part {
            module: stages.map_err(Error::from_program)?,
            connect: Box::new(move |stages, place, config| {
                let axes = Axes { stages: mesh_of(place)?.sub(Axis::Pp), data: place.replicas() };
                let pipeline = Pipeline::with_config(stages, schedule, axes, config)?;
                Ok(match tie {
                    Some(tie) => tie(pipeline)?,
                    None => pipeline,
                })
            }),
        })
    }

    fn calls(batches: &Batches) -> Calls {
        Calls { passes: batches.accumulation, last: LastBatch::Drop }
    }

    fn grouped<B: Send + 'static>(data: Data<B>, batches: &Batches) -> Data<Vec<B>> {
        let (micro, passes) = (super::resolve::micro(batches).get(), batches.accumulation);
        let source = match data.source {
            Source::Samples(len, make) => Source::Samples(
                len,
                Arc::new(move |epoch, indices: &[usize]| {
                    indices.chunks(micro).map(|own| make(epoch, own)).collect()
                }),
            ),
            Source::Passes(make) => Source::Passes(Arc::new(move |first| {
                (first..first + passes).map(|pass| make(pass)).collect()
            })),
        };
        Data { source }
    }
}

fn mesh_of(place: &Place) -> Result<&Mesh> {
    place.mesh().ok_or_else(|| {
        Error::Usage(
            "Stages need the mesh of config.mesh; hand it over with Parts::with_mesh".to_owned(),
        )
    })
}

impl<S: Module> Engine for Pipeline<S> {
    type Module = Vec<S>;

    fn ddp(&mut self) -> &mut Ddp<Vec<S>> {
        Self::ddp(self)
    }

    fn resume<T: DeserializeOwned>(
        &mut self,
        checkpoints: &Checkpoints,
        optimizer: &mut ModuleOptimizer,
    ) -> Result<Option<Resumed<T>>> {
        Ok(Self::resume(self, checkpoints, optimizer)?)
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

impl<S: Module + 'static, B: Send + 'static> Trainer<Stages<S>, Vec<B>> {
    /// Trains on the micro-batches of a step, and returns their mean loss and the times of the pipeline. `forward` is
    /// that of [`Pipeline::backward`].
    ///
    /// # Errors
    /// As [`Pipeline::backward`] and [`Pipeline::step_with`]; those of a step of any trainer whose figures are shown or
    /// that is saved.
    #[track_caller]
    pub fn step<R: IntoOutput>(
        &mut self,
        micro_batches: Vec<B>,
        forward: impl Fn(&S, &mut Pass<'_, B>) -> R,
    ) -> Result<StepOutput<PipelineTiming>> {
        self.begin_pass();
        let done = self.engine.backward(&micro_batches, forward)?;
        self.update(done)
    }

    /// Returns the mean loss over other data, of which each sample counts once, whatever the number of ranks. `forward`
    /// is that of [`step`](Self::step), on tensors without autodiff: see [`Pipeline::evaluate`].
    ///
    /// # Errors
    /// The data's of any rank, on all ranks; as [`Pipeline::evaluate`].
    #[track_caller]
    pub fn evaluate<R: IntoOutput>(
        &mut self,
        data: &Data<B>,
        forward: impl Fn(&S, &mut Pass<'_, B>) -> R,
    ) -> Result<f64> {
        let (world, place, micro) = (&self.world, &self.place, self.micro);
        let make = data.samples()?;
        let sampler = DistributedSampler::new(place.data(), data.len());
        let sampler = sampler.with_remainder(Remainder::Exact);
        let indices = sampler.indices(0);
        // As many on every rank: the last of them may be empty on some.
        let round = micro * usize::try_from(self.accumulation).unwrap_or(1);
        let most = data.len().div_ceil(place.data().world_size().len());
        let mut shown = self.journal.batches("evaluation", indices.len().div_ceil(micro));
        let pipeline = &mut self.engine;
        let mean = self.journal.time(Activity::Evaluation, || {
            let mut totals = [0.0, 0.0];
            for first in (0..most).step_by(round) {
                let own = indices.iter().skip(first).take(round);
                let own: Vec<usize> = own.copied().collect();
                let batches = own.chunks(micro).map(|indices| make(0, indices));
                let batches: Result<Vec<B>, BoxError> = batches.collect();
                let batches = all_or_none(world, batches.map_err(Error::from_program))?;
                let losses = pipeline.evaluate(&batches, &forward)?;
                for (loss, indices) in losses.into_iter().zip(own.chunks(micro)) {
                    totals[0] += loss * indices.len() as f64;
                    totals[1] += indices.len() as f64;
                    shown.batch(indices.len());
                }
            }
            place.replicas().group().all_reduce(&mut totals, ReduceOp::Sum)?;
            Ok::<_, Error>(totals[0] / totals[1])
        })?;
        self.progress.evaluation_is_due = false;
        Ok(mean)
    }

    /// Returns the pipeline, for operations that a trainer lacks, such as [`Pipeline::gather`].
    pub fn pipeline(&mut self) -> &mut Pipeline<S> {
        &mut self.engine
    }
}
