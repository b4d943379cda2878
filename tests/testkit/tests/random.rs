//! Random reductions against an oracle in f64: any reduction, type, world, length, algorithm and chunk.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use bonfire_collective::{Algorithm, FoldOrder, GroupOptions, ReduceOp};
use bonfire_testkit::local;
use bonfire_testkit::oracle::Sample;
use half::{bf16, f16};
use proptest::prelude::*;

/// One all-reduce.
#[derive(Clone, Copy, Debug)]
struct Case {
    world_size: u32,
    len: usize,
    reduce: ReduceOp,
    algorithm: Option<Algorithm>,
    order: FoldOrder,
    chunk_bytes: usize,
    seed: u64,
}

impl Case {
    fn inputs<T: Sample>(&self) -> Vec<Vec<T>> {
        let input = |rank: u64| {
            let at = |index: usize| T::sample(self.seed ^ (rank << 40) ^ index as u64);
            (0..self.len).map(at).collect()
        };
        (0..u64::from(self.world_size)).map(input).collect()
    }

    /// The result, which must be the same on all ranks.
    fn run<T: Sample>(&self) -> Vec<T> {
        let case = *self;
        let options = GroupOptions::default()
            .with_algorithm(case.algorithm)
            .with_order(case.order)
            .with_chunk_bytes(case.chunk_bytes);
        let mut results = local(case.world_size, options, move |group| {
            let mut data = case.inputs::<T>().swap_remove(group.rank().index());
            group.all_reduce(&mut data, case.reduce).unwrap();
            data
        });
        let first = results.swap_remove(0);
        assert!(results.iter().all(|result| *result == first), "{case:?}: ranks differ");
        first
    }
}

/// A float, and how much of it an addition may lose.
trait Float: Sample {
    /// Half the distance from 1 to the next number, of the type that partial results have.
    const PARTIAL_ROUNDING: f64;
    /// The same, of the type itself.
    const ROUNDING: f64;
    /// The smallest positive number.
    const TINY: f64;

    fn to_f64(self) -> f64;
}

macro_rules! float {
    ($type:ty, $to:expr, $partial_bits:literal, $bits:literal, $tiny:expr) => {
        impl Float for $type {
            const PARTIAL_ROUNDING: f64 = 1.0 / (1_u64 << $partial_bits) as f64;
            const ROUNDING: f64 = 1.0 / (1_u64 << $bits) as f64;
            const TINY: f64 = $tiny;

            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    };
}
float!(f32, f64::from, 24, 24, 1e-45);
float!(f64, f64::from, 53, 53, 5e-324);
float!(f16, f64::from, 24, 11, 6e-8);
float!(bf16, f64::from, 24, 8, 1e-40);

/// What the fold gives in f64, and the most that it may be missed by: a rounding for every operand in
/// the type of partial results, whatever their order, and one of every hop in the type itself, because
/// a ring stores its partial results.
fn expected<T: Float>(values: &[T], reduce: ReduceOp) -> (f64, f64) {
    let wide = || values.iter().map(|value| value.to_f64());
    let ranks = values.len() as f64;
    let (result, size) = match reduce {
        ReduceOp::Sum => (wide().sum(), wide().map(f64::abs).sum()),
        ReduceOp::Mean => {
            let sum: f64 = wide().sum();
            (sum / ranks, wide().map(f64::abs).sum::<f64>() / ranks)
        }
        ReduceOp::Product => (wide().product(), wide().product::<f64>().abs()),
        ReduceOp::Min => (wide().fold(f64::INFINITY, f64::min), 0.0),
        ReduceOp::Max => (wide().fold(f64::NEG_INFINITY, f64::max), 0.0),
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => unreachable!("not for floats"),
    };
    let roundings = ranks * (T::PARTIAL_ROUNDING + T::ROUNDING);
    let underflow = if size > 0.0 { ranks * T::TINY } else { 0.0 };
    // The oracle itself rounds too.
    (result, 1.01 * size * (roundings + ranks * f64::EPSILON) + underflow)
}

fn check_float<T: Float>(case: &Case) {
    let inputs = case.inputs::<T>();
    for (index, found) in case.run::<T>().into_iter().enumerate() {
        let values: Vec<T> = inputs.iter().map(|input| input[index]).collect();
        let (expected, tolerance) = expected(&values, case.reduce);
        let error = (found.to_f64() - expected).abs();
        assert!(
            error <= tolerance,
            "{case:?}: element {index} is {found:?}, {expected} expected, {error} > {tolerance}"
        );
    }
}

/// Integers and bool have one right result.
fn check_exact<T: Sample>(case: &Case) {
    let inputs = case.inputs::<T>();
    let expected: Vec<T> = (0..case.len)
        .map(|index| {
            let values: Vec<T> = inputs.iter().map(|input| input[index]).collect();
            T::reduce(&values, case.reduce)
        })
        .collect();
    assert_eq!(case.run::<T>(), expected, "{case:?}");
}

fn check<T: Sample>(case: &Case, with: fn(&Case)) {
    if case.reduce.supports(T::DTYPE) {
        with(case);
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let forced = Algorithm::ALL.iter().copied().map(Some);
    let algorithms: Vec<_> = std::iter::once(None).chain(forced).collect();
    let orders = [FoldOrder::Canonical, FoldOrder::Any];
    let lengths = prop_oneof![0..40_usize, 0..3000_usize, 20_000..30_000_usize];
    (
        1..=6_u32,
        lengths,
        proptest::sample::select(ReduceOp::ALL),
        proptest::sample::select(algorithms),
        proptest::sample::select(orders.to_vec()),
        64..70_000_usize,
        any::<u64>(),
    )
        .prop_map(|(world_size, len, reduce, algorithm, order, chunk_bytes, seed)| Case {
            world_size,
            len,
            reduce,
            algorithm,
            order,
            chunk_bytes,
            seed,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn floats_are_as_close_as_their_type_allows(case in cases()) {
        check::<f32>(&case, check_float::<f32>);
        check::<f64>(&case, check_float::<f64>);
        check::<f16>(&case, check_float::<f16>);
        check::<bf16>(&case, check_float::<bf16>);
    }

    #[test]
    fn integers_and_bool_are_exact(case in cases()) {
        check::<i8>(&case, check_exact::<i8>);
        check::<i16>(&case, check_exact::<i16>);
        check::<i32>(&case, check_exact::<i32>);
        check::<i64>(&case, check_exact::<i64>);
        check::<u8>(&case, check_exact::<u8>);
        check::<u16>(&case, check_exact::<u16>);
        check::<u32>(&case, check_exact::<u32>);
        check::<u64>(&case, check_exact::<u64>);
        check::<bool>(&case, check_exact::<bool>);
    }
}
