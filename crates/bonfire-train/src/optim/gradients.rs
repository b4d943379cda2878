//! The gradients of a step, and the operations on them before the optimizer's.
//!
//! Every rank has the same gradients bit for bit, so all ranks find the same numbers not finite without
//! communication. Where parameters are cut into rows, each rank has the gradients of its own, and the ranks
//! exchange a number per row.
//!
//! The joint norm is the root of a sum over rows, in the order of the parameters, of each row's sum of
//! squares. On the CPU it has the same bits on every rank. A GPU may add in another order in each launch, and each
//! rank tunes its own kernels. There the norm of the first rank counts on all of them, so that all clip alike.

mod norm;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::module::Module;
use burn::module::{Param, ParamId};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

use bonfire_collective::{ProcessGroup, ReduceOp, WorldSize};
use bonfire_optim::{DeferredScale, Factor, Factors, Offload, cast, wide};

pub(crate) use norm::Devices;

use crate::parameters::ParameterTable;
use crate::parameters::shards::Shards;
use crate::world::Divided;
use crate::{TrainError, World};

/// Keeps a vanishing gradient from being divided by zero.
const EPSILON: f32 = 1e-6;

/// Clipping of gradients, by norm or by value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Clip {
    /// Scale the gradients of all parameters by one factor, so that the norm of all of them together
    /// is at most this. Their direction stays (Pascanu et al. 2013, and PyTorch's
    /// `clip_grad_norm_`; Burn's own clipping takes each parameter by itself).
    Norm(f32),
    /// Bring every number into the range from minus this to this.
    Value(f32),
}

/// The gradients that [`Ddp::backward`](crate::Ddp::backward) returns, for [`Ddp::step`](crate::Ddp::step).
///
/// Whatever the type of a gradient, norms and factors are computed in 32 bits or more. Everything but
/// [`check_finite`](Self::check_finite) stays on the device: it waits for a value only in steps on the host.
///
/// Where [`DdpConfig::placement`](crate::DdpConfig) cuts parameters into rows, a rank has the gradients of its own
/// rows. [`norm`](Self::norm), [`clip`](Self::clip) and [`check_finite`](Self::check_finite) cover all of them, so
/// every rank calls them, in the same order; the ranks exchange one number per row. On a
/// [`Mesh`](crate::Mesh) whose axis `tp` divides parameters they cover the complete model, of which each element
/// counts once: all ranks of `tp` call them, in the same order, too.
///
/// Burn's own form, for the program's own optimizer, is `GradientsParams::from(gradients)`.
pub struct Gradients {
    table: Arc<ParameterTable>,
    /// `None` unless parameters are cut.
    rest: Option<Rest>,
    /// The ranks that have other parts of the same parameters.
    parts: Option<ProcessGroup>,
    /// The ranks that have other parameters of the same model.
    stages: Option<ProcessGroup>,
    /// The replicas, if each would round sums in another way.
    replicas: Option<ProcessGroup>,
    /// The same ranks, if their devices exchange values.
    devices: Option<Arc<dyn Devices>>,
    /// In the order of the model's definition. A parameter without a row of this rank has no entry.
    entries: Vec<Entry>,
    factors: Factors,
    /// The handle of optimizers that apply the factors, if they do.
    deferred: Option<DeferredScale>,
}

#[derive(Clone)]
struct Rest {
    shards: Arc<Shards>,
    /// The ranks that have them.
    group: ProcessGroup,
}

struct Entry {
    parameter: usize,
    id: ParamId,
    values: Box<dyn AnyRank>,
    /// True if other ranks of a mesh have other parts of the parameter.
    is_part: bool,
}

impl Gradients {
    pub(crate) fn new(table: Arc<ParameterTable>) -> Self {
        Self {
            table,
            rest: None,
            parts: None,
            stages: None,
            replicas: None,
            devices: None,
            entries: Vec::new(),
            factors: Factors::default(),
            deferred: None,
        }
    }

    pub(crate) fn cut(self, shards: Arc<Shards>, group: ProcessGroup) -> Self {
        Self { rest: Some(Rest { shards, group }), ..self }
    }

    /// Marks replicas whose devices do not add in one order; with the exchange of their devices, if there is one.
    pub(crate) fn agreeing(
        self,
        replicas: Option<ProcessGroup>,
        devices: Option<Arc<dyn Devices>>,
    ) -> Self {
        Self { replicas, devices, ..self }
    }

    pub(crate) fn table(&self) -> &Arc<ParameterTable> {
        &self.table
    }

    pub(crate) fn rows(&self, parameter: usize) -> Option<Range<usize>> {
        let rest = self.rest.as_ref()?;
        rest.shards.is_cut(parameter).then(|| rest.shards.rows(parameter))
    }

    /// Adds the gradient of a parameter, after those of all parameters that are defined before it.
    pub(crate) fn push<const D: usize>(
        &mut self,
        parameter: usize,
        id: ParamId,
        gradient: Tensor<D>,
    ) {
        self.entries.push(Entry { parameter, id, values: Box::new(gradient), is_part: false });
    }

    /// Marks gradients as divided along another axis of a mesh: its ranks have other parts of the parameters that are
    /// noted as cut, and the same of all others.
    pub(crate) fn divided(mut self, divided: Option<&Divided>) -> Self {
        if let Some(Divided { group, cuts }) = divided {
            self.parts = Some(group.clone());
            for entry in &mut self.entries {
                entry.is_part = cuts.get(entry.id).is_some();
            }
        }
        self
    }

    /// Marks gradients as split into stages along another axis of a mesh: the ranks of `world` have other parameters
    /// of the same model, as in a pipeline. [`norm`](Self::norm), [`clip`](Self::clip) and
    /// [`check_finite`](Self::check_finite) then cover those of all ranks, and all must call them, in the same order.
    #[must_use]
    pub fn split_into_stages(mut self, world: &World) -> Self {
        let is_staged = world.world_size() > WorldSize::ONE;
        self.stages = is_staged.then(|| world.group().clone());
        self
    }

    /// Returns the gradient of a parameter of [`Ddp::module`](crate::Ddp::module); `None` if no rank's loss depends on
    /// it.
    pub fn get<const D: usize>(&self, parameter: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.id == parameter.id)?;
        let gradient = entry.values.as_any().downcast_ref::<Tensor<D>>()?;
        Some(self.factors.multiply(gradient.clone()))
    }

    /// Clips the gradients by norm or value.
    ///
    /// # Errors
    /// As [`norm`](Self::norm).
    pub fn clip(self, clip: Clip) -> Result<Self, TrainError> {
        let max = match clip {
            Clip::Value(max) => {
                let multiplied = self.multiplied();
                return Ok(multiplied.changed(|values| values.clamped(max)));
            }
            Clip::Norm(max) => max,
        };
        let Some(norm) = self.norm()? else {
            return Ok(self);
        };
        let factor = norm.add_scalar(EPSILON).recip().mul_scalar(max).clamp_max(1.0);
        Ok(if Offload::device() == Some(factor.device()) {
            // Nothing is waited for.
            match factor.into_scalar::<f64>() {
                1.0 => self,
                factor => self.scaled(factor),
            }
        } else {
            self.scaled(factor)
        })
    }

    /// Leaves the factors of clipping and of the scale of a loss to the optimizers that have the handle, if it is
    /// `Some`.
    pub(crate) fn defer_scale(self, handle: Option<&DeferredScale>) -> Self {
        let deferred = handle.cloned();
        Self { deferred, ..self }
    }

    /// Steps a module with these gradients.
    ///
    /// # Errors
    /// [`TrainError::ScaleNotTaken`]
    pub(crate) fn step<M: Module>(
        mut self,
        optimizer: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        module: M,
    ) -> (M, Result<(), TrainError>) {
        let Some(deferred) = self.deferred.take() else {
            return (optimizer.step(lr, module, self.into()), Ok(()));
        };
        let factors = std::mem::take(&mut self.factors);
        let gradients = GradientsParams::from(self);
        let expected = gradients.len();
        let check = |taken| {
            if taken == expected {
                Ok(())
            } else {
                Err(TrainError::ScaleNotTaken { taken, gradients: expected })
            }
        };
        if optimizer.has_gradient_clipping() {
            // It would clip what is not multiplied yet.
            return (module, check(0));
        }
        let step = || optimizer.step(lr, module, gradients);
        let (module, taken) = deferred.during(factors, step);
        (module, check(taken))
    }

    /// Checks that all gradients are finite, before factors. All ranks have the same gradients and so the same result:
    /// they may stop, or skip the step, without communication. It waits for the device.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteGradient`], or [`TrainError::UnreadableTensor`]; where parameters are cut into
    /// rows also [`TrainError::Collective`].
    pub fn check_finite(&self) -> Result<(), TrainError> {
        let mut broken = self.non_finite()?.into_iter();
        match broken.next() {
            None => Ok(()),
            Some(parameter) => {
                Err(TrainError::NonFiniteGradient { parameter, others: broken.len() })
            }
        }
    }

    pub(crate) fn scaled(self, factor: impl Into<Factor>) -> Self {
        let mut scaled = if self.factors.is_full() { self.multiplied() } else { self };
        scaled.factors.push(factor);
        scaled
    }

    fn multiplied(mut self) -> Self {
        let factors = std::mem::take(&mut self.factors);
        if factors.is_empty() { self } else { self.changed(|values| values.multiplied(&factors)) }
    }

    /// The names, in the order of the model's definition, of the parameters whose gradient has an infinite or NaN
    /// element; with the rank where those of other ranks do. One value per parameter is read from the device, all at
    /// once.
    pub(crate) fn non_finite(&self) -> Result<Vec<String>, TrainError> {
        let own = self.own_non_finite()?;
        let Some(group) = &self.stages else {
            return Ok(own);
        };
        let blocks = group.all_gather_bytes(own.join("\n").as_bytes())?;
        let mut all = Vec::new();
        for (rank, block) in group.world_size().ranks().zip(&blocks) {
            let (rank, names) = (group.world_rank(rank), String::from_utf8_lossy(block));
            all.extend(names.lines().map(|name| format!("{name} on rank {rank}")));
        }
        Ok(all)
    }

    fn own_non_finite(&self) -> Result<Vec<String>, TrainError> {
        // Of all parameters: another rank may have gradients where this one has none.
        let mut broken = vec![0_u8; self.table.len()];
        if !self.entries.is_empty() {
            let finite = self.entries.iter().map(|entry| entry.values.is_finite());
            let finite = Tensor::cat(together(finite.collect()), 0).try_into_data();
            let finite = finite.map_err(TrainError::unreadable("which gradients are finite"))?;
            for (entry, finite) in self.entries.iter().zip(finite.iter::<f32>()) {
                broken[entry.parameter] = u8::from(finite == 0.0);
            }
        }
        let rest = self.rest.as_ref().map(|rest| &rest.group);
        for group in rest.into_iter().chain(&self.parts) {
            group.all_reduce(&mut broken, ReduceOp::Max)?;
        }
        let broken = (0..).zip(broken).filter(|(_, broken)| *broken > 0);
        let names = broken.map(|(parameter, _)| self.table.get(parameter).name.clone());
        Ok(names.collect())
    }

    fn changed(mut self, change: impl Fn(Box<dyn AnyRank>) -> Box<dyn AnyRank>) -> Self {
        let entries = std::mem::take(&mut self.entries).into_iter();
        let changed = entries.map(|entry| Entry {
            values: if entry.values.is_empty() { entry.values } else { change(entry.values) },
            ..entry
        });
        self.entries = changed.collect();
        self
    }
}

impl From<Gradients> for GradientsParams {
    fn from(gradients: Gradients) -> Self {
        let mut all = Self::new();
        for entry in gradients.multiplied().entries {
            // A parameter without a row on this rank has no gradient here.
            if !entry.values.is_empty() {
                entry.values.register(entry.id, &mut all);
            }
        }
        all
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.entries.iter().map(|entry| &self.table.get(entry.parameter).name);
        f.debug_set().entries(names).finish()
    }
}

/// Moves all to the device of the first: some parameters of a model may be offloaded.
fn together(tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
    let Some(device) = tensors.first().map(Tensor::device) else {
        return tensors;
    };
    let tensors = tensors.into_iter();
    tensors.map(|tensor| tensor.to_device(&device)).collect()
}

trait AnyRank: Send {
    fn is_empty(&self) -> bool;

    /// The sum of the squares of each row times some factors, in 32 bits or more.
    fn row_squares(&self, factors: &Factors) -> Tensor<1>;

    /// One if all elements are finite, else zero: boolean types differ between devices.
    fn is_finite(&self) -> Tensor<1>;
    fn multiplied(self: Box<Self>, factors: &Factors) -> Box<dyn AnyRank>;
    fn clamped(self: Box<Self>, max: f32) -> Box<dyn AnyRank>;
    fn register(self: Box<Self>, id: ParamId, all: &mut GradientsParams);
    fn as_any(&self) -> &dyn Any;
}

impl<const D: usize> AnyRank for Tensor<D> {
    fn is_empty(&self) -> bool {
        self.shape().num_elements() == 0
    }

    fn row_squares(&self, factors: &Factors) -> Tensor<1> {
        let wide = wide(self.dtype());
        let elems = self.shape().num_elements();
        let rows = self.dims().first().copied().unwrap_or(1);
        if elems == 0 {
            return Tensor::zeros([1], (&self.device(), wide));
        }
        if let Some(squares) = factors.row_squares(self, rows) {
            return squares;
        }
        let gradient = factors.multiply(cast(self.clone(), wide)).reshape([rows, elems / rows]);
        gradient.square().sum_dim(1).reshape([rows])
    }

    fn is_finite(&self) -> Tensor<1> {
        if self.is_empty() {
            Tensor::ones([1], &self.device())
        } else {
            self.clone().is_finite().all().float()
        }
    }

    fn multiplied(self: Box<Self>, factors: &Factors) -> Box<dyn AnyRank> {
        Box::new(factors.multiply(*self))
    }

    fn clamped(self: Box<Self>, max: f32) -> Box<dyn AnyRank> {
        Box::new((*self).clamp(-max, max))
    }

    fn register(self: Box<Self>, id: ParamId, all: &mut GradientsParams) {
        all.register::<D>(id, *self);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
