//! Gradient clipping by the norm of the whole gradient, as nanoGPT does it.
//!
//! Burn's own clipping bounds each parameter's gradient by itself. This one is applied after the
//! ranks have averaged their gradients, so every rank sees the same norm and scales alike.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Keeps a vanishing gradient from being divided by zero.
const EPSILON: f32 = 1e-6;

/// Scales the gradients of `module` so that their joint norm is at most `norm_max`.
///
/// Everything stays on the device: nothing here waits for a value.
pub fn clip_by_global_norm<M: Module>(
    module: &M,
    gradients: GradientsParams,
    norm_max: f32,
) -> GradientsParams {
    let mut squares = SquaredNorm {
        gradients: &gradients,
        sum: None,
    };
    module.visit(&mut squares);
    let Some(sum) = squares.sum else {
        return gradients;
    };
    let factor = sum
        .sqrt()
        .add_scalar(EPSILON)
        .recip()
        .mul_scalar(norm_max)
        .clamp_max(1.0);
    let mut scale = Scale { gradients, factor };
    module.visit(&mut scale);
    scale.gradients
}

/// Adds up the squares of all gradients.
struct SquaredNorm<'a> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<1>>,
}

/// Multiplies all gradients by one factor.
struct Scale {
    gradients: GradientsParams,
    factor: Tensor<1>,
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

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let id: ParamId = param.id;
        let Some(gradient) = self.gradients.remove::<D>(id) else {
            return;
        };
        let factor = self.factor.clone().reshape([1; D]);
        self.gradients.register::<D>(id, gradient * factor);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Pair {
        matrix: Param<Tensor<2>>,
        vector: Param<Tensor<1>>,
        unused: Param<Tensor<1>>,
    }

    /// Gradients of norm 3, 4 and none, clipped: joint norm 5.
    fn clipped(norm_max: f32) -> (f32, f32, usize) {
        let device = Device::flex();
        let vector = || Param::from_tensor(Tensor::<1>::zeros([1], &device));
        let pair = Pair {
            matrix: Param::from_tensor(Tensor::<2>::zeros([1, 2], &device)),
            vector: vector(),
            unused: vector(),
        };
        let mut gradients = GradientsParams::new();
        gradients.register(
            pair.matrix.id,
            Tensor::<2>::from_data([[3.0, 0.0]], &device),
        );
        gradients.register(pair.vector.id, Tensor::<1>::from_data([-4.0], &device));
        let gradients = clip_by_global_norm(&pair, gradients, norm_max);
        let matrix = gradients
            .get::<2>(pair.matrix.id)
            .unwrap()
            .sum()
            .into_scalar();
        let vector = gradients
            .get::<1>(pair.vector.id)
            .unwrap()
            .sum()
            .into_scalar();
        (matrix, vector, gradients.len())
    }

    #[test]
    fn a_large_gradient_keeps_its_direction() {
        let (matrix, vector, len) = clipped(1.0);
        // One rounding in each of a handful of operations on numbers below 1.
        let tolerance = 8.0 * f32::EPSILON + EPSILON;
        assert!((matrix - 0.6).abs() < tolerance && (vector + 0.8).abs() < tolerance);
        assert_eq!(len, 2);
    }

    #[test]
    fn a_small_gradient_is_left_alone() {
        assert_eq!(clipped(6.0), (3.0, -4.0, 2));
    }
}
