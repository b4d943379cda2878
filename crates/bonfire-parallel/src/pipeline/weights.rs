//! The gradients of weights that are computed after those of inputs.
//!
//! A backward pass needs the gradient of a stage's input at once, because the rank in front waits for it, and the
//! gradients of the weights at any time. Schedules such as ZB-H1 and ZBV put these into the time in which a rank
//! would wait (Qi et al. 2023, arXiv 2401.10241).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_train::custom_gradient;
use burn::nn::Linear;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::module::linear;

/// Where the layers of a stage leave the gradients of their weights, if the schedule has them computed later.
///
/// What a stage does not leave here is computed together with the gradients of the inputs. So a schedule with split
/// backward passes gains as much as is left here; the gradients are the same bits.
#[derive(Clone, Default)]
pub struct WeightGradients {
    /// Nothing where backward passes are whole.
    later: Option<Later>,
}

/// One entry adds the gradients of a layer.
type Later = Arc<Mutex<Vec<Box<dyn FnOnce(&mut GradientsParams) + Send>>>>;

impl WeightGradients {
    /// For a backward pass in two halves.
    pub(super) fn split() -> Self {
        Self {
            later: Some(Later::default()),
        }
    }

    /// `layer.forward(input)`. In the backward pass, the gradient of the input is computed at once, and those of
    /// weight and bias when the schedule says so; until then, the input and the gradient of the output are kept.
    ///
    /// It is just the forward pass where backward passes are whole, where the input needs no gradient, so that nobody
    /// waits for it, and where the weight is frozen.
    pub fn linear<const D: usize>(&self, layer: &Linear, input: Tensor<D>) -> Tensor<D> {
        let weight = layer.weight.val();
        let Some(later) = &self.later else {
            return layer.forward(input);
        };
        if !input.is_tracked() || !weight.is_require_grad() || D == 1 {
            return layer.forward(input);
        }
        let bias = layer.bias.as_ref().filter(|bias| bias.val().is_require_grad());
        let ids = (layer.weight.id, bias.map(|bias| bias.id));
        let weight = weight.without_autodiff();
        let bias = layer.bias.as_ref().map(|bias| bias.val().without_autodiff());
        let (kept, transposed) = (input.clone().without_autodiff(), weight.clone());
        let later = Arc::clone(later);
        custom_gradient(
            input,
            |input| linear(input, weight, bias),
            move |gradient: Tensor<D>| {
                let input_gradient = linear(gradient.clone(), transposed.swap_dims(0, 1), None);
                let add = move |all: &mut GradientsParams| {
                    let gradient: Tensor<2> = rows(gradient);
                    if let Some(bias) = ids.1 {
                        let [_, outputs] = gradient.dims();
                        let sum = gradient.clone().sum_dim(0).reshape([outputs]);
                        register(all, bias, sum);
                    }
                    register(all, ids.0, rows(kept).swap_dims(0, 1).matmul(gradient));
                };
                let mut later = later.lock().unwrap_or_else(PoisonError::into_inner);
                later.push(Box::new(add));
                input_gradient
            },
        )
    }

    /// Computes what was left for later, and adds it to the gradients of the other parameters.
    pub(super) fn compute(self, all: &mut GradientsParams) {
        let Some(later) = self.later else { return };
        let later = std::mem::take(&mut *later.lock().unwrap_or_else(PoisonError::into_inner));
        later.into_iter().for_each(|add| add(all));
    }
}

/// The last dimension as columns, all others as rows.
fn rows<const D: usize>(tensor: Tensor<D>) -> Tensor<2> {
    let columns = tensor.dims()[D - 1];
    let rows = tensor.shape().num_elements() / columns.max(1);
    tensor.reshape([rows, columns])
}

/// Adds a gradient of a parameter, which other layers may use, too.
fn register<const D: usize>(
    all: &mut GradientsParams,
    id: burn::module::ParamId,
    gradient: Tensor<D>,
) {
    let sum = match all.remove::<D>(id) {
        Some(other) => other + gradient,
        None => gradient,
    };
    all.register(id, sum);
}

impl fmt::Debug for WeightGradients {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.later.is_some() { "later" } else { "at once" };
        formatter.debug_tuple("WeightGradients").field(&what).finish()
    }
}
