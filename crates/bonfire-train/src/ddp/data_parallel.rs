//! One process with several devices, as in PyTorch's `DataParallel`: the simplest use of a second device, and the
//! baseline for all others.
//!
//! Follows `torch.nn.DataParallel`: for every batch the parameters are copied to all devices, the batch is divided
//! along a dimension, and replicas run on threads. Their outputs are concatenated, with a graph that leads to the
//! parameters. Or replicas run backward, too, and the gradients are added on the first device, where the optimizer is.
//!
//! Must never change the model but by `step`, and its running statistics by the first part of a batch.

use std::iter::once;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use crate::TrainError;
use crate::loss::{IntoLoss, Weight};
use crate::nn::recompute::running::Running;
use crate::parameters::trainable;

mod batch;

pub use batch::{Gather, Graphs, Scatter};

/// A model on the first of several devices of one process, replicated for every batch.
///
/// Per step and device beyond the first it copies all parameters there and all gradients back, one after the other
/// through the first device, and nothing overlaps: with n devices `2 (n - 1)` times the size of the model, where a
/// rank of [`Ddp`](crate::Ddp) moves about twice the size of the model whatever n is, while backward still runs. The
/// first device also holds the optimizer's state, all gradients and the complete batch. It needs no launcher and no
/// group; for everything else use `Ddp`.
///
/// The same device may occur several times: on the CPU as many replicas run on threads.
///
/// The first part of a batch runs on the calling thread. Running statistics that it updates are those of the model;
/// those of other replicas are dropped.
#[derive(Debug)]
pub struct DataParallel<M> {
    /// `None` only while the optimizer replaces it.
    module: Option<M>,
    devices: Vec<Device>,
    dim: usize,
    output: Device,
    last_loss: Option<Tensor<1>>,
}

impl<M: Module> DataParallel<M> {
    /// Moves a model to the first of these devices. A model, or a part of one, made without autodiff is put in
    /// training mode.
    ///
    /// # Panics
    /// If there is no device.
    pub fn new(model: M, devices: Vec<Device>) -> Self {
        let devices: Vec<Device> = devices.into_iter().map(Device::without_autodiff).collect();
        let first = devices.first().expect("at least one device").clone();
        Self {
            module: Some(trainable(model).fork(&first.clone().autodiff())),
            devices,
            dim: 0,
            output: first,
            last_loss: None,
        }
    }

    /// Sets the dimension along which batches are divided and outputs concatenated. Default 0.
    pub fn with_dim(self, dim: usize) -> Self {
        Self { dim, ..self }
    }

    /// Sets the device of outputs, and of [`last_loss`](Self::last_loss). Default: the first. Parameters, gradients
    /// and the optimizer stay on the first.
    pub fn with_output_device(self, device: Device) -> Self {
        let output = device.without_autodiff();
        Self { output, ..self }
    }

    /// Returns the model. For validation, use `module().valid()`.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect(MODULE_PRESENT)
    }

    /// Returns the model, and drops the devices.
    pub fn into_module(self) -> M {
        self.module.expect(MODULE_PRESENT)
    }

    /// Runs forward on all devices and concatenates the outputs on the output device.
    ///
    /// `forward` gets a replica and its part of the batch, both on the same device. Each part but the last has
    /// `samples / devices` samples, rounded up; with fewer samples than devices some devices have none. An output is a
    /// tensor, or a pair of outputs. A loss of one number becomes a tensor with one for each part.
    ///
    /// The graph of the output leads to the parameters of [`module`](Self::module), and to those of the batch. A
    /// backward pass from it goes through the parts in turns, on one thread, where [`backward`](Self::backward) has a
    /// thread for each. For an inference, run the replica's `valid()`.
    ///
    /// ```
    /// # use bonfire_train::DataParallel;
    /// # use burn::nn::{Linear, loss::{MseLoss, Reduction}};
    /// # use burn::{optim::{GradientsParams, ModuleOptimizer}, tensor::Tensor};
    /// # fn step(
    /// #     parallel: &mut DataParallel<Linear>, optimizer: &mut ModuleOptimizer, x: Tensor<2>, y: Tensor<2>,
    /// # ) -> Result<(), bonfire_train::TrainError> {
    /// let output = parallel.forward(&x, |model, x| model.forward(x))?;
    /// let loss = MseLoss::new().forward(output, y, Reduction::Mean);
    /// let gradients = GradientsParams::from_grads(loss.backward(), parallel.module());
    /// parallel.step(optimizer, 0.1, gradients);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`TrainError::NoSamples`] for an empty batch.
    ///
    /// # Panics
    /// If the batch or an output has no such [dimension](Self::with_dim). If `forward` panics, after all parts have ended.
    /// With several parts, on a backend that this crate does not know. The backward pass may panic if `forward` uses
    /// tensors that need a gradient and are neither parameters nor the batch.
    pub fn forward<B, T>(
        &self,
        batch: &B,
        forward: impl Fn(&M, B) -> T + Sync,
    ) -> Result<T, TrainError>
    where
        B: Scatter + Send,
        T: Gather + Send,
    {
        let first = &self.devices[0];
        let replicate = |module: &M, device: &Device| copied(module).to_device(device);
        if batch.samples(self.dim) > 1 && self.devices.len() > 1 {
            let mut graphs = Graphs::of(self.module());
            batch.join(&mut graphs);
            graphs.merge(first);
        }
        let run = |replica: M, part: B, _| forward(&replica, part);
        let outputs = self.on_devices(batch, replicate, run)?;
        Ok(T::gather(outputs, self.dim, &self.output))
    }

    /// Runs forward and backward of a batch on all devices and returns the gradients on the first.
    ///
    /// `forward` gets a replica and its part of the batch, as for [`forward`](Self::forward), and returns the
    /// mean loss of that part; parts count by their samples, so the result is the gradient of the
    /// mean over the batch. A batch that comes from a graph is for [`forward`](Self::forward).
    ///
    /// # Errors
    /// [`TrainError::Forward`] if `forward` returned an error, [`TrainError::NoSamples`] for an empty
    /// batch, [`TrainError::MixedWeights`] if it weights the loss of some parts only.
    ///
    /// # Panics
    /// If the batch has no such [dimension](Self::with_dim). If `forward` panics, after all parts have ended.
    pub fn backward<B, L>(
        &mut self,
        batch: &B,
        forward: impl Fn(&M, B) -> L + Sync,
    ) -> Result<GradientsParams, TrainError>
    where
        B: Scatter + Send,
        L: IntoLoss,
    {
        // Parameters of a separate graph, in which a backward pass on the thread ends.
        let replicate =
            |module: &M, device: &Device| copied(module).fork(&device.clone().autodiff());
        let run = |replica, part, samples| half_step(replica, part, samples, &forward);
        let parts = self.on_devices(batch, replicate, run)?;
        let parts: Result<_, TrainError> = parts.into_iter().collect();
        self.gathered(parts?)
    }

    /// Updates the parameters on the first device.
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: GradientsParams,
    ) {
        let module = self.module.take().expect(MODULE_PRESENT);
        self.module = Some(optimizer.step(lr, module, gradients));
    }

    /// Returns the mean loss of the latest batch of [`backward`](Self::backward), on the output device.
    pub fn last_loss(&self) -> Option<Tensor<1>> {
        self.last_loss.clone()
    }

    fn on_devices<B: Scatter + Send, T: Send>(
        &self,
        batch: &B,
        replicate: impl Fn(&M, &Device) -> M,
        run: impl Fn(M, B, usize) -> T + Sync,
    ) -> Result<Vec<T>, TrainError> {
        let module = self.module();
        let ranges = divided(batch.samples(self.dim), self.devices.len());
        let places = self.devices.iter().enumerate();
        let jobs = ranges.into_iter().zip(places);
        let jobs = jobs.map(|(range, (index, device))| {
            let samples = range.len();
            let part = batch.part(self.dim, range, device);
            let replica = match index {
                // On its device already.
                0 => module.clone(),
                _ => replicate(module, device),
            };
            (replica, part, samples)
        });
        let jobs: Vec<(M, B, usize)> = jobs.collect();
        let mut jobs = jobs.into_iter();
        let first = jobs.next().ok_or(TrainError::NoSamples)?;
        let run = |(replica, part, samples)| run(replica, part, samples);
        Ok(thread::scope(|scope| {
            let threads: Vec<_> = jobs.map(|job| scope.spawn(|| run(job))).collect();
            // Burn's running state takes over an update with the next one of the same thread.
            let first = run(first);
            let others = threads.into_iter().map(thread::ScopedJoinHandle::join);
            let others = others.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
            once(first).chain(others).collect()
        }))
    }

    /// The mean of the parts by their samples: gradients on the first device, the loss on the output device.
    fn gathered(&mut self, parts: Vec<Part>) -> Result<GradientsParams, TrainError> {
        let weighted = parts.iter().filter(|part| part.weighted).count();
        if weighted != 0 && weighted != parts.len() {
            return Err(TrainError::MixedWeights);
        }
        let total: usize = parts.iter().map(|part| part.samples).sum();
        if total == 0 {
            return Err(TrainError::NoSamples);
        }
        let mut sum = Sum {
            parts: Vec::with_capacity(parts.len()),
            device: self.devices[0].clone(),
            total: GradientsParams::new(),
        };
        let mut mean: Option<Tensor<1>> = None;
        for part in parts.into_iter().filter(|part| part.samples > 0) {
            let share = part.samples as f64 / total as f64;
            let loss = scaled(part.loss.to_device(&self.output), share);
            mean = Some(mean.map_or(loss.clone(), |mean| mean + loss));
            sum.parts.push((part.gradients, share));
        }
        self.module().visit(&mut sum);
        self.last_loss = mean;
        Ok(sum.total)
    }
}

const MODULE_PRESENT: &str =
    "the module is only away while the optimizer steps, or after it panicked";

/// A copy with the same parameters and its own running statistics: moving Burn's to a device moves those of all
/// clones.
fn copied<M: Module>(module: &M) -> M {
    module.valid().map(&mut Running::of(module))
}

struct Part {
    gradients: GradientsParams,
    loss: Tensor<1>,
    samples: usize,
    weighted: bool,
}

fn half_step<M: Module, B, L: IntoLoss>(
    replica: M,
    part: B,
    samples: usize,
    forward: &(impl Fn(&M, B) -> L + Sync),
) -> Result<Part, TrainError> {
    let (loss, _) = forward(&replica, part).into_loss().map_err(TrainError::Forward)?;
    let (tensor, loss) = loss.split()?;
    let gradients = if tensor.is_tracked() {
        GradientsParams::from_grads(tensor.backward(), &replica)
    } else {
        GradientsParams::new()
    };
    let (samples, weighted) = match loss.weight() {
        Weight::Equal => (samples, false),
        Weight::Samples(samples) => (samples, true),
    };
    Ok(Part { gradients, loss: loss.tensor(), samples, weighted })
}

/// The parts of a batch, as `torch.chunk` divides it: no part is empty.
fn divided(samples: usize, parts: usize) -> Vec<Range<usize>> {
    let size = samples.div_ceil(parts).max(1);
    (0..samples).step_by(size).map(|start| start..samples.min(start + size)).collect()
}

fn scaled<const D: usize>(tensor: Tensor<D>, share: f64) -> Tensor<D> {
    if share == 1.0 { tensor } else { tensor * share }
}

struct Sum {
    parts: Vec<(GradientsParams, f64)>,
    device: Device,
    total: GradientsParams,
}

impl ModuleVisitor for Sum {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let mut sum: Option<Tensor<D>> = None;
        for (gradients, share) in &mut self.parts {
            // A parameter that the model holds twice is taken once.
            let Some(gradient) = gradients.remove::<D>(param.id) else {
                continue;
            };
            let gradient = scaled(gradient.to_device(&self.device), *share);
            sum = Some(match sum {
                None => gradient,
                Some(sum) => sum + gradient,
            });
        }
        if let Some(sum) = sum {
            self.total.register(param.id, sum);
        }
    }
}

#[cfg(test)]
mod tests;
