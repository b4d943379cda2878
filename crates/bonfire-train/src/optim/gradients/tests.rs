//! Gradients of known size, clipped and inspected.

use bonfire_plan::Cut;
use burn::module::Module;
use burn::tensor::DType;
use burn::tensor::Device;

use super::*;
use crate::World;
use crate::world::tests::on_ranks;

#[derive(Module, Debug)]
struct Three {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
    unused: Param<Tensor<1>>,
}

impl Three {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        let vector = || Param::from_tensor(Tensor::<1>::zeros([1], &device));
        Self {
            matrix: Param::from_tensor(Tensor::<2>::zeros([1, 2], &device)),
            vector: vector(),
            unused: vector(),
        }
    }

    /// Gradients of two of its parameters, in types of their own.
    fn gradients(&self, matrix: ([f64; 2], DType), vector: (f64, DType)) -> Gradients {
        let device = Device::flex();
        let table = Arc::new(ParameterTable::of(self).unwrap());
        let mut gradients = Gradients::new(table);
        let values = Tensor::<2>::from_data([matrix.0], (&device, matrix.1));
        gradients.push(0, self.matrix.id, values);
        let values = Tensor::<1>::from_data([vector.0], (&device, vector.1));
        gradients.push(1, self.vector.id, values);
        gradients
    }
}

/// Gradients of norm 3, 4 and none: joint norm 5.
fn three_and_four(dtypes: [DType; 2]) -> (Three, Gradients) {
    let module = Three::new();
    let gradients = module.gradients(([3.0, 0.0], dtypes[0]), (-4.0, dtypes[1]));
    (module, gradients)
}

const SINGLE: [DType; 2] = [DType::F32; 2];

/// The sums of the first two gradients.
fn values(module: &Three, gradients: &Gradients) -> (f32, f32) {
    let matrix = gradients.get(&module.matrix).unwrap();
    let vector = gradients.get(&module.vector).unwrap();
    assert!(gradients.get(&module.unused).is_none());
    (matrix.sum().into_scalar(), vector.sum().into_scalar())
}

fn clipped(how: Clip) -> (f32, f32) {
    let (module, gradients) = three_and_four(SINGLE);
    values(&module, &gradients.clip(how).unwrap())
}

#[test]
fn the_norm_is_of_all_parameters_together() {
    let (_, gradients) = three_and_four(SINGLE);
    assert_eq!(gradients.norm().unwrap().unwrap().into_scalar::<f32>(), 5.0);
    let table = Arc::clone(&gradients.table);
    assert!(Gradients::new(table).norm().unwrap().is_none());
}

#[test]
fn a_large_gradient_keeps_its_direction() {
    let (matrix, vector) = clipped(Clip::Norm(1.0));
    // One rounding in each of a handful of operations on numbers below 1.
    let tolerance = 8.0 * f32::EPSILON + EPSILON;
    assert!((matrix - 0.6).abs() < tolerance && (vector + 0.8).abs() < tolerance);
}

#[test]
fn a_small_gradient_is_left_alone_and_values_are_clipped_one_by_one() {
    assert_eq!(clipped(Clip::Norm(6.0)), (3.0, -4.0));
    assert_eq!(clipped(Clip::Value(4.0)), (3.0, -4.0));
    assert_eq!(clipped(Clip::Value(3.5)), (3.0, -3.5));
}

#[test]
fn gradients_are_scaled_all_alike() {
    let (module, gradients) = three_and_four(SINGLE);
    assert_eq!(values(&module, &gradients.scaled(0.5)), (1.5, -2.0));
}

#[test]
fn gradients_of_other_types_together_are_clipped_in_their_own() {
    for dtypes in [[DType::F16, DType::F32], [DType::F64, DType::BF16], [DType::F32, DType::F64]] {
        let (module, gradients) = three_and_four(dtypes);
        assert_eq!(gradients.norm().unwrap().unwrap().into_scalar::<f32>(), 5.0);
        let clipped = gradients.clip(Clip::Norm(2.5)).unwrap();
        assert_eq!(clipped.get(&module.matrix).unwrap().dtype(), dtypes[0]);
        assert_eq!(clipped.get(&module.vector).unwrap().dtype(), dtypes[1]);
        let (matrix, vector) = values(&module, &clipped);
        // EPSILON is below half of the last of the 8 bits of a bf16.
        let tolerance = 4.0 * 2.0_f32.powi(-8);
        assert!((matrix - 1.5).abs() < tolerance && (vector + 2.0).abs() < tolerance);
    }
}

/// The square of 300 is not a number in f16, and its norm was an infinity that clipped all to zero.
#[test]
fn gradients_of_16_bits_may_have_a_norm_over_256() {
    let module = Three::new();
    let half = DType::F16;
    let gradients = module.gradients(([300.0, 0.0], half), (-400.0, half));
    assert_eq!(gradients.norm().unwrap().unwrap().into_scalar::<f32>(), 500.0);
    assert_eq!(values(&module, &gradients.clip(Clip::Norm(250.0)).unwrap()), (150.0, -200.0));
    // A factor that is nothing in f16.
    let gradients = module.gradients(([60000.0, 0.0], half), (-30000.0, half));
    let scaled = gradients.scaled(2.0_f64.powi(-26));
    assert!(values(&module, &scaled).0 > 0.0);
}

#[test]
fn gradients_become_those_of_burn() {
    let (module, gradients) = three_and_four(SINGLE);
    let gradients = GradientsParams::from(gradients);
    assert_eq!(gradients.len(), 2);
    let vector = gradients.get::<1>(module.vector.id).unwrap();
    assert_eq!(vector.into_scalar::<f32>(), -4.0);
}

#[test]
fn numbers_that_are_none_are_found_by_the_names_of_their_parameters() {
    let single = DType::F32;
    let broken = |matrix: f64, vector: f64| {
        let gradients = Three::new().gradients(([1.0, matrix], single), (vector, single));
        gradients.non_finite().unwrap()
    };
    assert!(broken(1.0, -4.0).is_empty());
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(broken(wrong, -4.0), ["matrix"]);
    }
    assert_eq!(broken(f64::NAN, f64::NAN), ["matrix", "vector"]);
}

/// Gradients where the ranks of `world` have parts of the matrix, and the same vector.
fn divided(gradients: Gradients, module: &Three, world: &World) -> Gradients {
    let (dim, sections) = (1, 1);
    world.note_cut(module.matrix.id, Cut { dim, sections });
    let (group, cuts) = (world.group().clone(), world.cuts().clone());
    gradients.divided(Some(&Divided { group, cuts }))
}

#[test]
fn parts_on_other_ranks_count_and_what_is_the_same_counts_once() {
    on_ranks(2, |world| {
        let module = Three::new();
        let is_first = world.is_main();
        let part = if is_first { [3.0, 0.0] } else { [0.0, 4.0] };
        let divided = |matrix: [f64; 2]| {
            let gradients = module.gradients((matrix, DType::F32), (12.0, DType::F32));
            divided(gradients, &module, &world)
        };
        let norm = divided(part).norm().unwrap().unwrap();
        assert_eq!(norm.into_scalar::<f32>(), 13.0);
        let clipped = divided(part).clip(Clip::Norm(6.5)).unwrap();
        let (matrix, vector) = values(&module, &clipped);
        let expected = if is_first { 1.5 } else { 2.0 };
        let tolerance = 16.0 * f32::EPSILON + EPSILON;
        assert!((matrix - expected).abs() < tolerance && (vector - 6.0).abs() < 6.0 * tolerance);
        // What is wrong on one of them is known to both.
        let broken = if is_first { part } else { [0.0, f64::NAN] };
        assert_eq!(divided(broken).non_finite().unwrap(), ["matrix"]);
    });
}

#[test]
fn a_rank_without_gradients_looks_for_infinite_ones_with_the_others() {
    on_ranks(2, |world| {
        let module = Three::new();
        let gradients = if world.is_main() {
            Gradients::new(Arc::new(ParameterTable::of(&module).unwrap()))
        } else {
            module.gradients(([f64::NAN, 0.0], DType::F32), (12.0, DType::F32))
        };
        let gradients = divided(gradients, &module, &world);
        assert_eq!(gradients.non_finite().unwrap(), ["matrix"]);
    });
}
