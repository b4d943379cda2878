//! Sums of squares and products of gradients, compared with arithmetic in 64 bits.

#![cfg(feature = "flex")]
#![allow(clippy::unwrap_used)] // helpers of tests

use bonfire_optim::Factors;
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

fn tensor(values: &[f32], shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn row_squares(gradient: &Tensor<2>, rows: usize) -> Option<Tensor<1>> {
    Factors::default().row_squares(gradient, rows)
}

/// Elements of so many rows of 301, which several threads share.
const SHARED_ROWS: usize = 4000;

/// What several threads compute, which one alone does, too.
fn on_threads<T: PartialEq + Send>(compute: impl Fn() -> T + Sync) -> T {
    let [one, three] = [1, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap().install(&compute)
    });
    assert!(one == three);
    three
}

#[test]
fn sums_of_squares_are_those_of_64_bits() {
    for (rows, row_elems) in
        [(1, 1), (1, 15), (3, 16), (7, 17), (5, 1000), (1, 300_000), (9000, 20)]
    {
        let values = numbers(1, rows * row_elems);
        let found = row_squares(&tensor(&values, [rows, row_elems]), rows).unwrap();
        // Each of sixteen sums is of so many, and then there are four more additions and the square.
        let allowed = (row_elems.div_ceil(16) + 5) as f64 * f64::from(f32::EPSILON);
        for (row, found) in values.chunks(row_elems).zip(floats(found)) {
            let exact: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
            let apart = (f64::from(found) - exact).abs();
            assert!(apart <= allowed * exact, "{rows} x {row_elems}: {apart}");
        }
    }
}

#[test]
fn the_bits_of_a_row_are_its_own() {
    let (rows, row_elems) = (SHARED_ROWS, 301);
    let values = numbers(2, rows * row_elems);
    let all =
        on_threads(|| floats(row_squares(&tensor(&values, [rows, row_elems]), rows).unwrap()));
    for (row, found) in values.chunks(row_elems).zip(&all) {
        let alone = row_squares(&tensor(row, [1, row_elems]), 1).unwrap();
        assert_eq!(floats(alone), [*found]);
    }
}

#[test]
fn a_transposed_matrix_has_the_squares_of_its_own_rows() {
    let values = numbers(3, 6 * 40);
    let turned = tensor(&values, [40, 6]).transpose();
    let copied = tensor(&floats(turned.clone()), [6, 40]);
    assert_eq!(floats(row_squares(&turned, 6).unwrap()), floats(row_squares(&copied, 6).unwrap()));
    assert_eq!(floats(Factors::from(0.5).multiply(turned)), floats(copied * 0.5));
}

#[test]
fn squares_are_of_what_is_multiplied_one_factor_after_the_other() {
    let values = numbers(5, 7 * 301);
    let gradient = tensor(&values, [7, 301]);
    let mut factors = Factors::from(0.3);
    factors.push(Tensor::<1>::from_floats([0.7], &Device::flex()));
    let product: Vec<f32> = values.iter().map(|value| value * 0.3 * 0.7).collect();
    assert!(product != values.iter().map(|value| value * (0.3 * 0.7)).collect::<Vec<_>>());
    let squares = factors.row_squares(&gradient, 7).unwrap();
    let expected = row_squares(&tensor(&product, [7, 301]), 7).unwrap();
    assert_eq!(floats(squares), floats(expected));
    assert!(floats(factors.multiply(gradient)) == product);
}

#[test]
fn products_leave_what_others_see() {
    let shape = [SHARED_ROWS, 301];
    let values = numbers(4, SHARED_ROWS * 301);
    let expected: Vec<f32> = values.iter().map(|value| value * 0.3).collect();
    let own = || tensor(&values, shape);
    let multiplied = |gradient| floats(Factors::from(0.3).multiply(gradient));
    assert!(on_threads(|| multiplied(own())) == expected);
    let kept = own();
    assert!(on_threads(|| multiplied(kept.clone())) == expected);
    assert!(floats(kept) == values);
    // Memory of another owner.
    let bytes: Vec<u8> = bytemuck::cast_slice(&values).to_vec();
    let bucket = bytes::Bytes::from(bytes);
    let view = Bytes::from_shared(bucket.clone(), AllocationProperty::Other);
    let view = TensorData::from_bytes(view, shape, DType::F32);
    let view = Tensor::<2>::from_data(view, &Device::flex());
    assert!(multiplied(view) == expected);
    assert_eq!(bytemuck::cast_slice::<u8, f32>(&bucket), values);
}

#[test]
fn other_types_are_left_to_burn() {
    let wide = tensor(&[3.0, 4.0], [1, 2]).cast(DType::F64);
    assert!(row_squares(&wide, 1).is_none());
    let found = Factors::from(0.1).multiply(wide);
    let found: Vec<f64> = found.into_data().iter::<f64>().collect();
    assert_eq!(found, [3.0 * 0.1, 4.0 * 0.1]);
}
