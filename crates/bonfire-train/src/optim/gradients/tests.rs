//! Gradients of known size, clipped and inspected.

use burn::tensor::Device;

use super::*;

#[derive(Module, Debug)]
struct Three {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
    unused: Param<Tensor<1>>,
}

/// Gradients of norm 3, 4 and none: joint norm 5.
fn three_and_four() -> (Three, GradientsParams) {
    let device = Device::flex();
    let vector = || Param::from_tensor(Tensor::<1>::zeros([1], &device));
    let module = Three {
        matrix: Param::from_tensor(Tensor::<2>::zeros([1, 2], &device)),
        vector: vector(),
        unused: vector(),
    };
    let mut gradients = GradientsParams::new();
    let matrix = Tensor::<2>::from_data([[3.0, 0.0]], &device);
    gradients.register(module.matrix.id, matrix);
    gradients.register(module.vector.id, Tensor::<1>::from_data([-4.0], &device));
    (module, gradients)
}

fn values(module: &Three, gradients: &GradientsParams) -> (f32, f32, usize) {
    let matrix = gradients.get::<2>(module.matrix.id).unwrap();
    let vector = gradients.get::<1>(module.vector.id).unwrap();
    let (matrix, vector) = (matrix.sum().into_scalar(), vector.sum().into_scalar());
    (matrix, vector, gradients.len())
}

fn clipped(how: Clip) -> (f32, f32, usize) {
    let (module, gradients) = three_and_four();
    values(&module, &clip(&module, gradients, how))
}

#[test]
fn the_norm_is_of_all_parameters_together() {
    let (module, gradients) = three_and_four();
    let norm: f32 = global_norm(&module, &gradients).unwrap().into_scalar();
    assert_eq!(norm, 5.0);
    assert!(global_norm(&module, &GradientsParams::new()).is_none());
}

#[test]
fn a_large_gradient_keeps_its_direction() {
    let (matrix, vector, len) = clipped(Clip::Norm(1.0));
    // One rounding in each of a handful of operations on numbers below 1.
    let tolerance = 8.0 * f32::EPSILON + EPSILON;
    assert!((matrix - 0.6).abs() < tolerance && (vector + 0.8).abs() < tolerance);
    assert_eq!(len, 2);
}

#[test]
fn a_small_gradient_is_left_alone() {
    assert_eq!(clipped(Clip::Norm(6.0)), (3.0, -4.0, 2));
    assert_eq!(clipped(Clip::Value(4.0)), (3.0, -4.0, 2));
}

#[test]
fn values_are_clipped_one_by_one() {
    assert_eq!(clipped(Clip::Value(3.5)), (3.0, -3.5, 2));
}

#[test]
fn gradients_are_scaled_all_alike() {
    let (module, gradients) = three_and_four();
    let halves = scaled(&module, gradients, 0.5);
    assert_eq!(values(&module, &halves), (1.5, -2.0, 2));
}

#[test]
fn parameters_with_numbers_that_are_not_finite_are_named() {
    let (module, mut gradients) = three_and_four();
    assert_eq!(
        non_finite(&module, &gradients).unwrap(),
        Vec::<String>::new()
    );
    let device = Device::flex();
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        gradients.register(
            module.matrix.id,
            Tensor::<2>::from_data([[1.0, broken]], &device),
        );
        assert_eq!(non_finite(&module, &gradients).unwrap(), ["matrix"]);
    }
    gradients.register(
        module.vector.id,
        Tensor::<1>::from_data([f32::NAN], &device),
    );
    assert_eq!(
        non_finite(&module, &gradients).unwrap(),
        ["matrix", "vector"]
    );
}
