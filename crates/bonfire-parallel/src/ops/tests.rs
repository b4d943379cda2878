//! Every operation beside its transpose, and what happens if one fails.

use bonfire_collective::{CollectiveError, GroupOptions, Rank};
use bonfire_testkit::{assert_each_says, local};
use bonfire_train::{DeviceKind, LocalRank, TrainError};
use burn::tensor::{DType, Device, TensorData};

use super::*;

type Op = fn(Tensor<3>, &World) -> Result<Tensor<3>, ParallelError>;

/// A state of a tensor along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// One tensor, which all ranks have.
    Same,
    /// A tensor of each rank.
    Each,
}

/// Name, what goes in, what comes out.
const OPERATIONS: [(&str, State, State, Op); 8] = {
    use State::{Each, Same};
    [
        ("copy", Same, Each, |x, tp| copy(x, tp)),
        ("reduce", Each, Same, |x, tp| reduce(x, tp)),
        ("scatter 0", Same, Each, |x, tp| scatter(x, 0, tp)),
        ("scatter 2", Same, Each, |x, tp| scatter(x, 2, tp)),
        ("gather 1", Each, Each, |x, tp| gather(x, 1, tp)),
        ("reduce_scatter 2", Each, Each, |x, tp| reduce_scatter(x, 2, tp)),
        ("all_to_all 0 2", Each, Each, |x, tp| all_to_all(x, Dims { from: 0, to: 2 }, tp)),
        ("all_to_all 1 0", Each, Each, |x, tp| all_to_all(x, Dims { from: 1, to: 0 }, tp)),
    ]
};

/// Divided by 1 to 4 ranks in every dimension.
const SHAPE: [usize; 3] = [12, 24, 36];

pub(crate) fn on_ranks<R: Send>(ranks: u32, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    local(ranks, GroupOptions::default(), |group| body(world(group)))
}

pub(crate) fn world(group: bonfire_collective::ProcessGroup) -> World {
    let local =
        LocalRank { local_rank: group.rank().get(), local_world_size: group.world_size().get() };
    World::new(group, local, DeviceKind::Cpu).unwrap()
}

/// Values from -1 to 1 that depend on a seed.
pub(crate) fn values<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let value = |index| ((index as f64 + 1000.0 * f64::from(seed)) * 0.7).sin() as f32;
    let values: Vec<f32> = (0..count).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

pub(crate) fn autodiff() -> Device {
    Device::flex().autodiff()
}

fn seed_of(state: State, tp: &World) -> u32 {
    match state {
        State::Same => 0,
        State::Each => tp.rank().get(),
    }
}

/// This rank's share of an inner product, with the magnitude of what it adds.
fn inner(left: Tensor<3>, right: Tensor<3>, (state, tp): (State, &World)) -> [f64; 2] {
    let left = left.into_data().try_to_vec::<f32>().unwrap();
    let right = right.into_data().try_to_vec::<f32>().unwrap();
    assert_eq!(left.len(), right.len());
    let products = left.iter().zip(&right);
    let products: Vec<f64> = products.map(|(x, y)| f64::from(*x) * f64::from(*y)).collect();
    // What all ranks have counts once.
    let counts = state == State::Each || tp.is_main();
    let [sum, magnitude] =
        [products.iter().sum::<f64>(), products.iter().map(|product| product.abs()).sum()];
    let count = f64::from(u8::from(counts));
    [sum * count, magnitude * count]
}

/// `<f(x), y> = <x, f^T(y)>` over all ranks.
#[test]
fn every_backward_pass_is_the_transpose_of_the_forward_pass() {
    for ranks in 1..=4 {
        for (name, from, to, operation) in OPERATIONS {
            let products = on_ranks(ranks, |tp| {
                let x = values(SHAPE, seed_of(from, &tp), &autodiff()).require_grad();
                let output = operation(x.clone(), &tp).unwrap();
                let y = values(output.dims(), 100 + seed_of(to, &tp), &Device::flex());
                let gradients = bonfire_train::backward_from(output.clone(), y.clone());
                let gradient = x.grad(&gradients).unwrap();
                let constant = Tensor::without_autodiff;
                [inner(constant(output), y, (to, &tp)), inner(constant(x), gradient, (from, &tp))]
            });
            let sum = |side: usize, which: usize| -> f64 {
                products.iter().map(|product| product[side][which]).sum()
            };
            // Each element is a sum of as many values as there are ranks, rounded after each.
            let rounded = f64::from(ranks - 1) * f64::from(f32::EPSILON) / 2.0;
            let tolerance = rounded * (sum(0, 1) + sum(1, 1)) * f64::from(ranks) + 1e-12;
            let (left, right) = (sum(0, 0), sum(1, 0));
            assert!(sum(0, 1) > 10.0, "{name}");
            assert!(
                (left - right).abs() <= tolerance,
                "{name} on {ranks} ranks: {left} and {right}, tolerance {tolerance}"
            );
        }
    }
}

#[test]
fn parts_are_one_behind_the_other_along_their_dimension() {
    on_ranks(3, |tp| {
        let device = Device::flex();
        for (dim, entries) in SHAPE.into_iter().enumerate() {
            let whole = values(SHAPE, 0, &device);
            let part = scatter(whole.clone(), dim, &tp).unwrap();
            let size = entries / 3;
            let own = whole.clone().narrow(dim, tp.rank().index() * size, size);
            same(part.clone(), own);
            same(gather(part.clone(), dim, &tp).unwrap(), whole.clone());
            for to in (0..3).filter(|to| *to != dim) {
                let other = all_to_all(part.clone(), Dims { from: dim, to }, &tp).unwrap();
                same(other, scatter(whole.clone(), to, &tp).unwrap());
            }
            let summand = values(SHAPE, tp.rank().get(), &device);
            let sum = reduce(summand.clone(), &tp).unwrap();
            let part = reduce_scatter(summand, dim, &tp).unwrap();
            same(part, scatter(sum, dim, &tp).unwrap());
        }
    });
}

fn same(left: Tensor<3>, right: Tensor<3>) {
    left.into_data().assert_eq(&right.into_data(), true);
}

#[test]
fn what_cannot_be_divided_is_refused_on_all_ranks_and_ends_nothing() {
    on_ranks(4, |tp| {
        let x = values([4, 6, 4], 0, &autodiff());
        let refused = [
            scatter(x.clone(), 1, &tp),
            reduce_scatter(x.clone(), 1, &tp),
            all_to_all(x, Dims { from: 0, to: 1 }, &tp),
        ];
        let words = "dimension 1 of a tensor has 6 entries, which 4 ranks cannot divide";
        assert_each_says(refused.map(Result::unwrap_err), &[words]);
        tp.group().barrier().unwrap();
    });
}

#[test]
fn tensors_of_other_shapes_are_a_mismatch_on_all_ranks() {
    on_ranks(3, |tp| {
        let rows = if tp.is_main() { 3 } else { 6 };
        let error = gather(values([rows, 2, 2], 0, &autodiff()), 0, &tp).unwrap_err();
        let ParallelError::Collective(CollectiveError::Mismatch(_)) = error else {
            panic!("{error}");
        };
    });
}

/// The pass goes on to its end, and the failure is there afterwards.
#[test]
fn a_failure_in_the_backward_pass_is_kept_on_all_ranks() {
    let errors = on_ranks(3, |tp| {
        let x = values([3, 2, 2], 0, &autodiff()).require_grad();
        let output = copy(x.clone(), &tp).unwrap();
        if tp.rank() == Rank::new(1) {
            tp.fail(TrainError::NoSamples);
        }
        let gradients = output.sum().backward();
        let gradient = x.grad(&gradients).unwrap().into_data();
        gradient.assert_eq(&TensorData::zeros::<f32, _>([3, 2, 2]), true);
        tp.take_failure().unwrap()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let error = error.to_string();
        assert!(error.contains("no rank had a sample"), "{error}");
        assert!(rank == 1 || error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_dead_rank_is_named() {
    let errors = on_ranks(3, |tp| {
        if tp.rank() == Rank::new(2) {
            tp.group().abort("its power supply");
            return None;
        }
        let x = values([3, 2, 2], 0, &autodiff());
        reduce(x, &tp).err()
    });
    assert!(errors[..2].iter().all(Option::is_some));
    assert_each_says(errors.into_iter().flatten(), &["rank 2", "power"]);
}

#[test]
fn values_keep_their_type() {
    on_ranks(2, |tp| {
        for dtype in [DType::F64, DType::F16, DType::BF16] {
            let x = values([2, 2, 2], 0, &autodiff()).cast(dtype);
            assert_eq!(reduce(x, &tp).unwrap().dtype(), dtype);
        }
    });
}
