//! The multiplication, written in CubeCL.

use cubecl::prelude::*;

use crate::types::Tail;

#[cube]
fn scale_at<T: Float, A: Float, N: Size, M: Size>(
    buffer: &mut [Vector<T, N>],
    index: usize,
    factor: A,
) {
    let buffer = buffer.with_vector_size_mut::<M>();
    let product = Vector::<A, M>::cast_from(buffer[index]) * Vector::new(factor);
    buffer[index] = Vector::cast_from(product);
}

/// Whole vectors in steps of the grid, then the tail, one element per unit.
#[cube(launch_unchecked)]
pub(crate) fn scale<T: Float, A: Float, N: Size>(
    buffer: &mut [Vector<T, N>],
    vectors: u32,
    tail: u32,
    factor: InputScalar,
    #[comptime] tail_by: Tail,
    #[define(T, A)] _elements: [ElemType; 2],
) {
    let factor = factor.get::<A>();
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut index = ABSOLUTE_POS;
    while index < vectors as usize {
        scale_at::<T, A, N, N>(buffer, index, factor);
        index += stride;
    }
    if comptime!(tail_by == Tail::Scalars) {
        scale_tail::<T, A, N>(buffer, vectors, tail, factor);
    }
}

#[cube]
fn scale_tail<T: Float, A: Float, N: Size>(
    buffer: &mut [Vector<T, N>],
    vectors: u32,
    tail: u32,
    factor: A,
) {
    if ABSOLUTE_POS < tail as usize {
        let index = vectors as usize * N::value() + ABSOLUTE_POS;
        scale_at::<T, A, N, Const<1>>(buffer, index, factor);
    }
}
