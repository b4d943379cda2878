use burn::tensor::{DType, Device, Tensor, TensorData, activation};

use super::gelu;

/// From -13 to 13, more than one thread's piece and no multiple of a vector.
const STEPS: i32 = 20_003;

fn inputs() -> Vec<f32> {
    let grid = (0..STEPS).map(|i| 26.0 * i as f32 / (STEPS - 1) as f32 - 13.0);
    let ends = [0.0, -0.0, 1e-30, -1e-30, f32::MIN_POSITIVE, 40.0, -40.0, 1e30, -1e30];
    grid.chain(ends).collect()
}

/// The values of GELU, and its derivatives.
fn found(x: &[f32], dtype: DType, of: impl Fn(Tensor<1>) -> Tensor<1>) -> (Vec<f64>, Vec<f64>) {
    let device = Device::flex().autodiff();
    let x = Tensor::<1>::from_data(TensorData::new(x.to_vec(), [x.len()]), &device);
    let x = x.cast(dtype).detach().require_grad();
    let y = of(x.clone());
    let gradients = y.clone().sum().backward();
    let values = |tensor: Tensor<1>| tensor.to_data().iter::<f64>().collect();
    (values(y), values(x.grad(&gradients).unwrap()))
}

#[test]
fn values_and_derivatives_are_those_of_64_bits() {
    let inputs = inputs();
    let (values, derivatives) = found(&inputs, DType::F32, gelu);
    let (exact, slopes) = found(&inputs, DType::F64, activation::gelu);
    for (i, &x) in inputs.iter().enumerate() {
        let scale = f64::from(x.abs().max(1.0));
        let error = (values[i] - exact[i]).abs() / scale;
        assert!(error < 2e-7, "gelu({x}): {} for {}", values[i], exact[i]);
        let error = (derivatives[i] - slopes[i]).abs();
        assert!(error < 4e-7, "slope at {x}: {} for {}", derivatives[i], slopes[i]);
        // The tail keeps its relative precision, too, which the sum 1 + erf(x) has not.
        if (-5.0..0.0).contains(&x) {
            let error = ((values[i] - exact[i]) / exact[i]).abs();
            assert!(error < 2e-6, "gelu({x}): {} for {}", values[i], exact[i]);
        }
    }
}

#[test]
fn a_number_that_is_none_stays_so() {
    let inputs = [f32::NAN, f32::INFINITY];
    let (values, derivatives) = found(&inputs, DType::F32, gelu);
    assert!(values[0].is_nan() && derivatives[0].is_nan());
    assert_eq!(values[1], f64::INFINITY);
}

#[test]
fn bits_depend_neither_on_neighbours_nor_on_threads() {
    let inputs = inputs();
    let all = found(&inputs, DType::F32, gelu);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
    let alone = pool.build().unwrap();
    assert_eq!(alone.install(|| found(&inputs, DType::F32, gelu)), all);
    for i in (0..inputs.len()).step_by(97) {
        let (value, derivative) = found(&inputs[i..=i], DType::F32, gelu);
        assert_eq!((value[0], derivative[0]), (all.0[i], all.1[i]), "gelu({})", inputs[i]);
    }
}

#[test]
fn a_view_of_other_memory_is_read_and_left_alone() {
    let device = Device::flex();
    let whole = Tensor::<2>::from_data([[-1.0, 2.0, -3.0], [0.5, -0.25, 4.0]], &device);
    let view = whole.clone().transpose().slice(1..3);
    let expected = activation::gelu(view.clone().cast(DType::F64));
    let found = gelu(view);
    assert_eq!(found.dims(), [2, 2]);
    found
        .cast(DType::F64)
        .into_data()
        .assert_approx_eq::<f64>(&expected.into_data(), burn::tensor::Tolerance::absolute(1e-6));
    let expected = TensorData::from([[-1.0f32, 2.0, -3.0], [0.5, -0.25, 4.0]]);
    whole.into_data().assert_eq(&expected, true);
}
