//! The gradients of a step, and what is done to them before the optimizer takes them.
//!
//! Every rank has the same gradients bit for bit, so all ranks clip alike and find the same numbers
//! not finite, without another word between them.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use burn::module::{Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, DType, Tensor};

use crate::TrainError;
use crate::parameters::ParameterTable;

/// Keeps a vanishing gradient from being divided by zero.
const EPSILON: f32 = 1e-6;

/// How gradients are kept from being too large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Scale the gradients of all parameters by one factor, so that the norm of all of them together
    /// is at most this. Their direction stays (Pascanu et al. 2013, and PyTorch's
    /// `clip_grad_norm_`; Burn's own clipping takes each parameter by itself).
    Norm(f32),
    /// Bring every number into the range from minus this to this.
    Value(f32),
}

/// The gradients that [`Ddp::backward`](crate::Ddp::backward) returns, for
/// [`Ddp::step`](crate::Ddp::step).
///
/// Whatever the type of a gradient, norms and factors are computed in 32 bits or more. Everything but
/// [`check_finite`](Self::check_finite) stays on the device: nothing waits for a value.
///
/// Burn's own form, for an optimizer of one's own, is `GradientsParams::from(gradients)`.
pub struct Gradients {
    table: Arc<ParameterTable>,
    /// In the order of the model's definition.
    entries: Vec<Entry>,
}

/// The gradient of a parameter.
struct Entry {
    /// The parameter's place in the table.
    parameter: usize,
    id: ParamId,
    values: Box<dyn AnyRank>,
}

impl Gradients {
    /// None yet, of the parameters of a table.
    pub(crate) fn new(table: Arc<ParameterTable>) -> Self {
        Self {
            table,
            entries: Vec::new(),
        }
    }

    /// Adds that of a parameter, after those of all parameters that are defined before it.
    pub(crate) fn push<const D: usize>(
        &mut self,
        (parameter, id): (usize, ParamId),
        gradient: Tensor<D>,
    ) {
        self.entries.push(Entry {
            parameter,
            id,
            values: Box::new(gradient),
        });
    }

    /// The gradient of a parameter of [`Ddp::module`](crate::Ddp::module); nothing if no rank's loss
    /// depends on it.
    pub fn get<const D: usize>(&self, parameter: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.id == parameter.id)?;
        entry.values.as_any().downcast_ref().cloned()
    }

    /// The norm of all gradients together (2-norm), still on the device; nothing without gradients.
    pub fn norm(&self) -> Option<Tensor<1>> {
        let squares: Vec<Tensor<1>> = self
            .entries
            .iter()
            .map(|entry| entry.values.squared_norm())
            .collect();
        let widest = match squares.iter().any(|square| square.dtype() == DType::F64) {
            true => DType::F64,
            false => DType::F32,
        };
        let squares = squares.into_iter().map(|square| cast(square, widest));
        squares.reduce(|sum, square| sum + square).map(Tensor::sqrt)
    }

    /// The same gradients, clipped.
    #[must_use]
    pub fn clip(self, clip: Clip) -> Self {
        let change = match clip {
            Clip::Value(max) => Change::Clamp(max),
            Clip::Norm(max) => match self.norm() {
                None => return self,
                Some(norm) => {
                    let factor = norm.add_scalar(EPSILON).recip().mul_scalar(max);
                    Change::Scale(Box::new(factor.clamp_max(1.0)))
                }
            },
        };
        self.changed(&change)
    }

    /// That all gradients are finite. All ranks find the same, because all have the same gradients:
    /// they may stop, or skip the step, without asking each other. It waits for the device.
    ///
    /// # Errors
    /// [`TrainError::NonFiniteGradient`], or [`TrainError::UnreadableTensor`].
    pub fn check_finite(&self) -> Result<(), TrainError> {
        let mut broken = self.non_finite()?.into_iter();
        match broken.next() {
            None => Ok(()),
            Some(parameter) => Err(TrainError::NonFiniteGradient {
                parameter,
                others: broken.len(),
            }),
        }
    }

    /// All gradients, multiplied with a factor.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        self.changed(&Change::Multiply(factor))
    }

    /// The places, in the order of the model's definition, of the parameters whose gradient has a
    /// number that is infinite or none. One value per parameter is read from the device, all at once.
    pub(crate) fn non_finite(&self) -> Result<Vec<String>, TrainError> {
        if self.entries.is_empty() {
            return Ok(Vec::new());
        }
        let finite = self.entries.iter().map(|entry| entry.values.is_finite());
        let finite = Tensor::cat(finite.collect(), 0).try_into_data();
        let finite = finite.map_err(|cause| TrainError::UnreadableTensor {
            what: "which gradients are finite".to_owned(),
            cause: format!("{cause:?}"),
        })?;
        let broken = self.entries.iter().zip(finite.iter::<bool>());
        Ok(broken
            .filter(|(_, finite)| !finite)
            .map(|(entry, _)| self.table.get(entry.parameter).name.clone())
            .collect())
    }

    fn changed(mut self, change: &Change) -> Self {
        let entries = std::mem::take(&mut self.entries).into_iter();
        let changed = entries.map(|entry| Entry {
            values: entry.values.changed(change),
            ..entry
        });
        self.entries = changed.collect();
        self
    }
}

impl From<Gradients> for GradientsParams {
    fn from(gradients: Gradients) -> Self {
        let mut all = Self::new();
        for entry in gradients.entries {
            entry.values.register(entry.id, &mut all);
        }
        all
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.entries.iter();
        let names = names.map(|entry| &self.table.get(entry.parameter).name);
        f.debug_set().entries(names).finish()
    }
}

/// What is done to every gradient.
enum Change {
    Scale(Box<Tensor<1>>),
    Multiply(f64),
    Clamp(f32),
}

/// A tensor of any number of dimensions.
trait AnyRank: Send {
    /// In 32 bits or more.
    fn squared_norm(&self) -> Tensor<1>;

    fn is_finite(&self) -> Tensor<1, Bool>;

    fn changed(self: Box<Self>, change: &Change) -> Box<dyn AnyRank>;

    fn register(self: Box<Self>, id: ParamId, all: &mut GradientsParams);

    fn as_any(&self) -> &dyn Any;
}

impl<const D: usize> AnyRank for Tensor<D> {
    fn squared_norm(&self) -> Tensor<1> {
        let gradient = self.clone();
        let wide = wide(gradient.dtype());
        cast(gradient, wide).square().sum()
    }

    fn is_finite(&self) -> Tensor<1, Bool> {
        self.clone().is_finite().all()
    }

    fn changed(self: Box<Self>, change: &Change) -> Box<dyn AnyRank> {
        let dtype = self.dtype();
        let gradient = cast(*self, wide(dtype));
        let changed = match change {
            Change::Scale(factor) => {
                let factor = cast(Tensor::clone(factor), gradient.dtype());
                gradient * factor.reshape([1; D])
            }
            Change::Multiply(factor) => gradient.mul_scalar(*factor),
            Change::Clamp(max) => gradient.clamp(-max, *max),
        };
        Box::new(cast(changed, dtype))
    }

    fn register(self: Box<Self>, id: ParamId, all: &mut GradientsParams) {
        all.register::<D>(id, *self);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The type to compute in: 16 bits overflow at a norm of 256.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        wide => wide,
    }
}

pub(super) fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    match tensor.dtype() == dtype {
        true => tensor,
        false => tensor.cast(dtype),
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
