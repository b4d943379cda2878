//! The sum of squares in CubeCL.

use cubecl::prelude::*;

use super::{CUBES, UNITS};
use crate::types::Tail;

/// Leaves the sum of each cube in `partials`.
#[cube(launch_unchecked)]
pub(crate) fn square_sums<T: Float, A: Float, N: Size>(
    source: &[Vector<T, N>],
    partials: &mut [A],
    vectors: u32,
    tail: u32,
    #[comptime] tail_by: Tail,
    #[define(T, A)] _elements: [ElemType; 2],
) {
    let mut lanes = Vector::<A, N>::new(A::new(0.0f32));
    let mut index = ABSOLUTE_POS;
    while index < vectors as usize {
        let vector = Vector::<A, N>::cast_from(source[index]);
        lanes = fma(vector, vector, lanes);
        index += comptime!(CUBES * UNITS);
    }
    let mut sum = A::new(0.0f32);
    #[unroll]
    for lane in 0..N::value() {
        sum += lanes.extract(lane);
    }
    if comptime!(tail_by == Tail::Scalars) {
        let source = source.with_vector_size::<Const<1>>();
        if ABSOLUTE_POS < tail as usize {
            let index = vectors as usize * N::value() + ABSOLUTE_POS;
            let element = A::cast_from(source[index]);
            sum = fma(element, element, sum);
        }
    }
    let total = add_in_a_tree::<A>(sum);
    if UNIT_POS == 0 {
        partials[CUBE_POS] = total;
    }
}

/// Adds up what the cubes left; one cube.
#[cube(launch_unchecked)]
pub(crate) fn square_total<A: Float>(
    partials: &[A],
    total: &mut [A],
    #[define(A)] _element: ElemType,
) {
    let mut sum = A::new(0.0f32);
    #[unroll]
    for part in 0..comptime!(CUBES / UNITS) {
        sum += partials[part * UNITS + UNIT_POS as usize];
    }
    let sum = add_in_a_tree::<A>(sum);
    if UNIT_POS == 0 {
        total[0] = sum;
    }
}

/// The sum over the units of the cube, for its first unit.
#[cube]
fn add_in_a_tree<A: Float>(sum: A) -> A {
    let mut sums = Shared::<[A]>::new_slice(UNITS);
    let unit = UNIT_POS as usize;
    sums[unit] = sum;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(UNITS.ilog2()) {
        let half = comptime!(UNITS >> (level + 1));
        if unit < half {
            sums[unit] = sums[unit] + sums[unit + half];
        }
        sync_cube();
    }
    sums[0]
}
