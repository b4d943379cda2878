//! One process, several devices: what PyTorch's `DataParallel` does, as the simplest way to use a
//! second device and the measure of what the others gain.
//!
//! Follows `torch.nn.DataParallel`: for every batch the parameters are copied to all devices, the
//! batch is divided on its first dimension, replicas run forward and backward on threads, and the
//! gradients are added on the first device, where the optimizer is.

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::TrainError;
use crate::loss::{IntoLoss, Weight};
use crate::parameters::trainable;

/// A model on the first of several devices of one process, replicated for every batch.
///
/// Per step and device beyond the first it copies all parameters there and all gradients back, one
/// after the other through the first device, and nothing overlaps: with n devices
/// `2 (n - 1)` times the size of the model, where a rank of [`Ddp`](crate::Ddp) moves about twice the
/// size of the model whatever n is, while backward still runs. The first device also holds the
/// optimizer's state, all gradients and the whole batch. It needs no launcher and no group; for
/// everything else use `Ddp`.
///
/// Several times the same device is allowed: on the CPU that many replicas run on threads.
#[derive(Debug)]
pub struct DataParallel<M> {
    /// Taken only while the optimizer replaces it.
    module: Option<M>,
    devices: Vec<Device>,
    last_loss: Option<Tensor<1>>,
}

/// A batch that can be divided into parts on its first dimension.
pub trait Scatter: Sized {
    /// How many samples it has.
    fn samples(&self) -> usize;

    /// The samples of `range`, on `device`.
    #[must_use]
    fn part(&self, range: Range<usize>, device: &Device) -> Self;
}

macro_rules! scatter_tensor {
    ($($kind:ty),*) => {$(
        impl<const D: usize> Scatter for Tensor<D, $kind> {
            fn samples(&self) -> usize {
                self.dims()[0]
            }

            fn part(&self, range: Range<usize>, device: &Device) -> Self {
                self.clone().narrow(0, range.start, range.len()).to_device(device)
            }
        }
    )*};
}

scatter_tensor!(burn::tensor::Float, Int, Bool);

/// Tensors of the same samples, such as inputs and targets.
impl<A: Scatter, B: Scatter> Scatter for (A, B) {
    /// # Panics
    /// If the two have different numbers of samples.
    fn samples(&self) -> usize {
        let (first, second) = (self.0.samples(), self.1.samples());
        assert_eq!(first, second, "both parts of a batch have the same samples");
        first
    }

    fn part(&self, range: Range<usize>, device: &Device) -> Self {
        (
            self.0.part(range.clone(), device),
            self.1.part(range, device),
        )
    }
}

impl<M: Module> DataParallel<M> {
    /// A model for these devices, on the first of them. A model, or a part of one, made without
    /// autodiff is put in training mode.
    ///
    /// # Panics
    /// If there is no device.
    pub fn new(model: M, devices: Vec<Device>) -> Self {
        let devices: Vec<Device> = devices.into_iter().map(Device::without_autodiff).collect();
        let first = devices.first().expect("at least one device");
        Self {
            module: Some(trainable(model).fork(&first.clone().autodiff())),
            devices,
            last_loss: None,
        }
    }

    /// The model. For validation, `module().valid()`.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect(MODULE_PRESENT)
    }

    /// The model, for other uses.
    pub fn into_module(self) -> M {
        self.module.expect(MODULE_PRESENT)
    }

    /// Runs forward and backward of a batch on all devices and returns the gradients on the first.
    ///
    /// `forward` gets a replica and its part of the batch, both on the same device, and returns the
    /// mean loss of that part; parts count by their samples, so the result is the gradient of the
    /// mean over the batch. Each part but the last has `samples / devices` samples, rounded up; with
    /// fewer samples than devices some devices have none.
    ///
    /// # Errors
    /// [`TrainError::Forward`] if `forward` returned an error, [`TrainError::NoSamples`] for an empty
    /// batch, [`TrainError::MixedWeights`] if it weights the loss of some parts only.
    ///
    /// # Panics
    /// If `forward` panics, after all parts have ended.
    pub fn backward<B, L>(
        &mut self,
        batch: &B,
        forward: impl Fn(&M, B) -> L + Sync,
    ) -> Result<GradientsParams, TrainError>
    where
        B: Scatter + Send,
        L: IntoLoss,
    {
        let module = self.module.as_ref().expect(MODULE_PRESENT);
        let parts = divided(batch.samples(), self.devices.len());
        if parts.is_empty() {
            return Err(TrainError::NoSamples);
        }
        let places = self.devices.iter().enumerate();
        let jobs = parts
            .into_iter()
            .zip(places)
            .map(|(range, (index, device))| {
                let samples = range.len();
                let part = batch.part(range, device);
                let replica = match index {
                    // On its device already; running statistics that it updates are those of the model.
                    0 => module.clone(),
                    _ => module.clone().fork(&device.clone().autodiff()),
                };
                (replica, part, samples)
            });
        let jobs: Vec<(M, B, usize)> = jobs.collect();
        let forward = &forward;
        let results: Vec<_> = thread::scope(|scope| {
            let run = |(replica, part, samples)| {
                scope.spawn(move || half_step(replica, part, samples, forward))
            };
            let threads: Vec<_> = jobs.into_iter().map(run).collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        let mut parts = Vec::with_capacity(results.len());
        for result in results {
            parts.push(result.unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        self.gathered(parts)
    }

    /// Updates the parameters.
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: GradientsParams,
    ) {
        let module = self.module.take().expect(MODULE_PRESENT);
        self.module = Some(optimizer.step(lr, module, gradients));
    }

    /// The mean loss of the latest batch, on the first device.
    pub fn last_loss(&self) -> Option<Tensor<1>> {
        self.last_loss.clone()
    }

    /// The mean of the parts by their samples, on the first device.
    fn gathered(&mut self, parts: Vec<Part>) -> Result<GradientsParams, TrainError> {
        let weighted = parts.iter().filter(|part| part.weighted).count();
        if weighted != 0 && weighted != parts.len() {
            return Err(TrainError::MixedWeights);
        }
        let total: usize = parts.iter().map(|part| part.samples).sum();
        if total == 0 {
            return Err(TrainError::NoSamples);
        }
        let first = self.devices[0].clone();
        let mut sum = Sum {
            parts: Vec::with_capacity(parts.len()),
            device: first.clone(),
            total: GradientsParams::new(),
        };
        let mut mean: Option<Tensor<1>> = None;
        for part in parts.into_iter().filter(|part| part.samples > 0) {
            let share = part.samples as f64 / total as f64;
            let loss = scaled(part.loss.to_device(&first), share);
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

/// What a replica made of its part of a batch.
struct Part {
    gradients: GradientsParams,
    loss: Tensor<1>,
    samples: usize,
    weighted: bool,
}

/// Forward and backward of one replica.
fn half_step<M: Module, B, L: IntoLoss>(
    replica: M,
    part: B,
    samples: usize,
    forward: &(impl Fn(&M, B) -> L + Sync),
) -> Result<Part, TrainError> {
    let (loss, _) = forward(&replica, part)
        .into_loss()
        .map_err(TrainError::Forward)?;
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
    Ok(Part {
        gradients,
        loss: loss.tensor(),
        samples,
        weighted,
    })
}

/// The parts of a batch, as `torch.chunk` divides it: no part is empty.
fn divided(samples: usize, parts: usize) -> Vec<Range<usize>> {
    let size = samples.div_ceil(parts).max(1);
    (0..samples)
        .step_by(size)
        .map(|start| start..samples.min(start + size))
        .collect()
}

/// Times `share`; untouched where it is whole.
fn scaled<const D: usize>(tensor: Tensor<D>, share: f64) -> Tensor<D> {
    if share == 1.0 { tensor } else { tensor * share }
}

/// Adds up gradients in the order of the parts.
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
