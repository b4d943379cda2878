//! The gradients of weights that are computed after those of inputs.
//!
//! A backward pass needs the gradient of a stage's input at once, because the previous rank waits for it, and the
//! gradients of the weights at any time. Schedules such as ZB-H1 and ZBV put these into the time in which a rank would
//! wait (Qi et al. 2023, arXiv 2401.10241).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bonfire_train::custom_gradient;
use burn::module::ParamId;
use burn::nn::Linear;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::module::linear;

/// The store of weight gradients that the schedule computes later.
///
/// All other gradients are computed together with those of the inputs. So a schedule with split backward passes gains
/// as much as is left here; the gradients have the same bits.
#[derive(Clone)]
pub struct WeightGradients {
    when: When,
    left: Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// At the end of the backward pass, which is not split.
    Now,
    /// In a later pass, when the schedule has it.
    Later,
}

type Left = Arc<Mutex<Vec<Box<dyn FnOnce(&mut GradientsParams) + Send>>>>;

impl WeightGradients {
    /// Makes a store for a backward pass that is not split, or for none.
    pub fn at_once() -> Self {
        Self { when: When::Now, left: Left::default() }
    }

    pub(super) fn split() -> Self {
        Self { when: When::Later, left: Left::default() }
    }

    /// Leaves the gradient of a parameter for later, without autodiff: for a layer with its own backward step, which
    /// calls this once there. It is added to the parameter's other gradients. If the backward pass is not split, it is
    /// computed at its end.
    pub fn leave<const D: usize>(
        &self,
        parameter: ParamId,
        gradient: impl FnOnce() -> Tensor<D> + Send + 'static,
    ) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(Box::new(move |all| {
            let own = gradient();
            let sum = match all.remove::<D>(parameter) {
                Some(other) => other + own,
                None => own,
            };
            all.register(parameter, sum);
        }));
    }

    /// Returns `layer.forward(input)` for an input of rows: all dimensions but the last count as one, so it is one
    /// product of two matrices. In the backward pass, the gradient of the input is computed at once, and those of
    /// weight and bias when the schedule has them; until then, the input and the gradient of the output are kept.
    ///
    /// All gradients are computed at once if backward passes are not split, if the input needs no gradient, so that no
    /// rank waits for it, or if the weight is frozen.
    pub fn linear<const D: usize>(&self, layer: &Linear, input: Tensor<D>) -> Tensor<D> {
        let mut shape = input.dims();
        let columns = shape[D - 1];
        let rows = shape[..D - 1].iter().product();
        let input: Tensor<2> = input.reshape([rows, columns]);
        let trains = input.is_tracked() && layer.weight.val().is_require_grad();
        let output = match self.when {
            When::Later if trains => self.split_linear(layer, input),
            _ => layer.forward(input),
        };
        shape[D - 1] = output.dims()[1];
        output.reshape(shape)
    }

    /// The output of a layer, whose weight and bias get their gradients later: as Burn computes them, so that the
    /// bits are the same.
    fn split_linear(&self, layer: &Linear, input: Tensor<2>) -> Tensor<2> {
        let bias = layer.bias.as_ref();
        let trained = bias.filter(|bias| bias.val().is_require_grad());
        let ids = (layer.weight.id, trained.map(|bias| bias.id));
        let kept = input.clone().without_autodiff();
        let constant = bias.map(|bias| bias.val().detach());
        let output = linear(input, layer.weight.val().detach(), constant);
        let weights = self.clone();
        let keep = move |gradient: Tensor<2>| {
            if let Some(bias) = ids.1 {
                let [_, outputs] = gradient.dims();
                let gradient = gradient.clone();
                weights.leave(bias, move || gradient.sum_dim(0).reshape([outputs]));
            }
            let passed = gradient.clone();
            weights.leave(ids.0, move || kept.transpose().matmul(gradient));
            passed
        };
        custom_gradient(output, |output| output, keep)
    }

    pub(super) fn compute(self, all: &mut GradientsParams) {
        let left = std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner));
        left.into_iter().for_each(|add| add(all));
    }
}

impl fmt::Debug for WeightGradients {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tuple = &mut formatter.debug_tuple("WeightGradients");
        tuple.field(&self.when).finish()
    }
}
