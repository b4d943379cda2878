//! What is done to the gradients of a step before the optimizer takes them.
//!
//! [`Ddp::backward`](crate::Ddp::backward) gives every rank the same gradients bit for bit, so all
//! ranks clip alike and find the same numbers not finite, without another word between them.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Tensor};

use crate::TrainError;

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

/// The norm of all gradients together (2-norm), still on the device; nothing without gradients.
pub fn global_norm<M: Module>(module: &M, gradients: &GradientsParams) -> Option<Tensor<1>> {
    let mut squares = SquaredNorm {
        gradients,
        sum: None,
    };
    module.visit(&mut squares);
    squares.sum.map(Tensor::sqrt)
}

/// Clips the gradients of a module. Everything stays on the device: nothing here waits for a value.
pub fn clip<M: Module>(module: &M, gradients: GradientsParams, clip: Clip) -> GradientsParams {
    let change = match clip {
        Clip::Value(max) => Change::Clamp(max),
        Clip::Norm(max) => match global_norm(module, &gradients) {
            None => return gradients,
            Some(norm) => {
                let factor = norm.add_scalar(EPSILON).recip().mul_scalar(max);
                Change::Scale(Box::new(factor.clamp_max(1.0)))
            }
        },
    };
    changed(module, gradients, change)
}

/// All gradients, multiplied with a factor.
pub(crate) fn scaled<M: Module>(
    module: &M,
    gradients: GradientsParams,
    factor: f64,
) -> GradientsParams {
    changed(module, gradients, Change::Multiply(factor))
}

/// The places, in the order of the module's definition, of the parameters whose gradient has a
/// number that is infinite or none. One value per parameter is read from the device, all at once.
pub(crate) fn non_finite<M: Module>(
    module: &M,
    gradients: &GradientsParams,
) -> Result<Vec<String>, TrainError> {
    let mut finder = Finiteness {
        gradients,
        path: Vec::new(),
        names: Vec::new(),
        finite: Vec::new(),
    };
    module.visit(&mut finder);
    if finder.finite.is_empty() {
        return Ok(Vec::new());
    }
    let finite = Tensor::cat(finder.finite, 0).try_into_data();
    let finite = finite.map_err(|cause| TrainError::UnreadableTensor {
        what: "which gradients are finite".to_owned(),
        cause: format!("{cause:?}"),
    })?;
    let names = finder.names.into_iter().zip(finite.iter::<bool>());
    Ok(names
        .filter_map(|(name, finite)| (!finite).then_some(name))
        .collect())
}

fn changed<M: Module>(module: &M, gradients: GradientsParams, change: Change) -> GradientsParams {
    let mut changer = Changer { gradients, change };
    module.visit(&mut changer);
    changer.gradients
}

/// Adds up the squares of all gradients.
struct SquaredNorm<'a> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for SquaredNorm<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.get::<D>(param.id) else {
            return;
        };
        let square = gradient.square().sum();
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + square,
            None => square,
        });
    }
}

/// What is done to every gradient.
enum Change {
    Scale(Box<Tensor<1>>),
    Multiply(f64),
    Clamp(f32),
}

struct Changer {
    gradients: GradientsParams,
    change: Change,
}

impl ModuleVisitor for Changer {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else {
            return;
        };
        let changed = match &self.change {
            Change::Scale(factor) => gradient * Tensor::clone(factor).reshape([1; D]),
            Change::Multiply(factor) => gradient.mul_scalar(*factor),
            Change::Clamp(max) => gradient.clamp(-max, *max),
        };
        self.gradients.register::<D>(param.id, changed);
    }
}

/// Asks of every gradient whether it is finite.
struct Finiteness<'a> {
    gradients: &'a GradientsParams,
    path: Vec<String>,
    names: Vec<String>,
    finite: Vec<Tensor<1, Bool>>,
}

impl ModuleVisitor for Finiteness<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            self.names.push(self.path.join("."));
            self.finite.push(gradient.is_finite().all());
        }
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests;
