//! Custom operations beside Burn's own.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{Device, TensorData};

use super::*;

/// On both strategies.
fn devices() -> [Device; 2] {
    let device = Device::flex().autodiff();
    [device.clone(), device.gradient_checkpointing()]
}

fn values<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|index| (index as f32 * 0.7).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The sum of rows, an operation that changes the number of dimensions.
fn row_sums(x: Tensor<2>) -> Tensor<1> {
    let [rows, columns] = x.dims();
    custom_gradient(
        x,
        move |x| x.sum_dim(1).reshape([rows]),
        move |gradient| gradient.reshape([rows, 1]).expand([rows, columns]),
    )
}

fn burns_row_sums(x: Tensor<2>) -> Tensor<1> {
    let [rows, _] = x.dims();
    x.sum_dim(1).reshape([rows])
}

fn cube(x: Tensor<2>) -> Tensor<2> {
    let kept = x.clone().without_autodiff();
    custom_gradient(
        x,
        |x| x.clone() * x.clone() * x,
        move |gradient| gradient * kept.clone() * kept * 3.0,
    )
}

#[test]
fn gradients_are_those_of_burns_operations() {
    for device in devices() {
        // The input is used three times, and operations of Burn come before, between and behind.
        let gradient = |sums: fn(Tensor<2>) -> Tensor<1>, cube: fn(Tensor<2>) -> Tensor<2>| {
            let leaf = values([3, 4], &device).require_grad();
            let x = leaf.clone().sin();
            let both = sums(cube(x.clone()).exp() + x.clone()) * sums(x);
            let loss = (both.powi_scalar(2) + sums(leaf.clone())).sum();
            let gradients = loss.backward();
            leaf.grad(&gradients).unwrap().into_data()
        };
        let burns = gradient(burns_row_sums, |x| x.clone() * x.clone() * x);
        let own = gradient(row_sums, cube);
        // Sums over uses are added in another order: some units in the last place of values near 20.
        own.assert_approx_eq::<f32>(&burns, burn::tensor::Tolerance::relative(1e-5));
    }
}

#[test]
fn the_output_has_the_strategy_of_the_input() {
    for device in devices() {
        let x = values([2, 2], &device);
        let strategy = x.gradient_checkpointing_strategy();
        for x in [x.clone(), x.require_grad()] {
            let output = cube(x.clone());
            assert_eq!(output.is_tracked(), x.is_tracked());
            assert_eq!(output.gradient_checkpointing_strategy(), strategy);
        }
    }
}

#[test]
fn without_a_graph_only_forward_runs() {
    let backward = |_: Tensor<2>| panic!("nobody asked for a gradient");
    for device in [Device::flex(), Device::flex().autodiff()] {
        let x = values([2, 2], &device);
        let output = custom_gradient(x, |x| x.mul_scalar(2.0), backward);
        assert_eq!(output.device(), device);
        assert!(!output.is_tracked());
    }
}

#[test]
fn backward_runs_once_for_an_output_with_many_uses_and_never_for_one_without() {
    let device = Device::flex().autodiff();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = |x: Tensor<2>| {
        let runs = Arc::clone(&runs);
        custom_gradient(
            x,
            |x| x.mul_scalar(2.0),
            move |gradient| {
                assert!(!gradient.is_autodiff());
                runs.fetch_add(1, Ordering::Relaxed);
                gradient.mul_scalar(2.0)
            },
        )
    };
    let leaf = values([2, 3], &device).require_grad();
    let (used, unused) = (counted(leaf.clone()), counted(leaf.clone()));
    let gradients = (used.clone() + used).sum().backward();
    drop(unused);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    let gradient = leaf.grad(&gradients).unwrap();
    gradient.into_data().assert_eq(&TensorData::full([2, 3], 4.0_f32), true);
}

/// A step that waits for other ranks must wait in the same order on all of them: that of Burn, outputs first.
#[test]
fn steps_run_from_the_loss_to_the_leaves() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = |x: Tensor<2>, name: &'static str| {
        let order = Arc::clone(&order);
        custom_gradient(
            x,
            |x| x,
            move |gradient| {
                order.lock().push(name);
                gradient
            },
        )
    };
    let leaf = values([2, 3], &Device::flex().autodiff()).require_grad();
    let first = noted(leaf, "first").exp();
    noted(noted(first, "second").sin(), "third").sum().backward();
    assert_eq!(*order.lock(), ["third", "second", "first"]);
}

#[test]
#[should_panic(expected = "shape and type of a gradient and of its input")]
fn a_gradient_of_another_shape_is_refused() {
    let leaf = values([2, 3], &Device::flex().autodiff()).require_grad();
    let _ = custom_gradient(leaf, |x| x.sum(), |gradient| gradient.reshape([1, 1])).backward();
}

#[test]
fn a_backward_pass_begins_where_it_is_asked_to() {
    for device in devices() {
        let leaf = values([2, 3], &device).require_grad();
        let seed = values([2, 3], &Device::flex()).cos();
        let gradients = backward_from(leaf.clone().exp(), seed.clone());
        let expected = leaf.clone().without_autodiff().exp() * seed;
        let found = leaf.grad(&gradients).unwrap();
        found.into_data().assert_eq(&expected.into_data(), true);
    }
}
