//! The search in CubeCL.

use cubecl::prelude::*;

use crate::types::Tail;

/// Sets `flag[0]` if an element is infinite or NaN.
#[cube(launch_unchecked)]
pub(crate) fn non_finite<T: Float, A: Float, N: Size>(
    source: &[Vector<T, N>],
    flag: &mut [u32],
    vectors: u32,
    tail: u32,
    #[comptime] tail_by: Tail,
    #[define(T, A)] _elements: [ElemType; 2],
) {
    let mut found = Vector::<u32, N>::new(0u32);
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut index = ABSOLUTE_POS;
    while index < vectors as usize {
        found |= faults::<A, N>(Vector::cast_from(source[index]));
        index += stride;
    }
    let mut any = 0u32;
    #[unroll]
    for lane in 0..N::value() {
        any |= found.extract(lane);
    }
    if comptime!(tail_by == Tail::Scalars) {
        let source = source.with_vector_size::<Const<1>>();
        if ABSOLUTE_POS < tail as usize {
            let index = vectors as usize * N::value() + ABSOLUTE_POS;
            any |= faults::<A, Const<1>>(Vector::cast_from(source[index])).extract(0usize);
        }
    }
    // Every unit that writes writes the same.
    if any != 0u32 {
        flag[0] = 1u32;
    }
}

/// 1 for each lane that is not finite.
#[cube]
fn faults<A: Float, N: Size>(vector: Vector<A, N>) -> Vector<u32, N> {
    let fault = vector.is_nan().or(vector.is_inf());
    select_many(fault, Vector::new(1u32), Vector::new(0u32))
}
