//! The copy of segments in CubeCL: one tile per cube.

use cubecl::prelude::*;

use crate::types::Tail;

/// Numbers of the table for each tile.
const NUMBERS: usize = 3;

/// `E` is the unsigned integer of the elements' size, `N` how many of them are 16 bytes, `I` the integer of the table.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn pack<E: Int, I: Int, N: Size>(
    source: &[Vector<E, N>],
    target: &mut [Vector<E, N>],
    table: &[I],
    #[comptime] tail_by: Tail,
    #[define(E, I)] _elements: [ElemType; 2],
) {
    let entry = CUBE_POS * NUMBERS;
    let source_first = usize::cast_from(table[entry]);
    let target_first = usize::cast_from(table[entry + 1]);
    let elems = usize::cast_from(table[entry + 2]);
    let stride = CUBE_DIM as usize;
    let mut done = 0usize;
    if comptime!(tail_by == Tail::Scalars) {
        done = whole_vectors::<E, N>(source, target, source_first, target_first, elems);
    }
    let source = source.with_vector_size::<Const<1>>();
    let target = target.with_vector_size_mut::<Const<1>>();
    let mut element = done + UNIT_POS as usize;
    while element < elems {
        target[target_first + element] = source[source_first + element];
        element += stride;
    }
}

/// Copies what can be copied 16 bytes at a time, and says how many elements that were.
#[cube]
fn whole_vectors<E: Int, N: Size>(
    source: &[Vector<E, N>],
    target: &mut [Vector<E, N>],
    source_first: usize,
    target_first: usize,
    elems: usize,
) -> usize {
    let width = N::value().runtime();
    let mut done = 0usize;
    // The width is a power of two.
    if (source_first | target_first) & (width - 1) == 0 {
        let vectors = elems / width;
        let source_first = source_first / width;
        let target_first = target_first / width;
        let mut vector = UNIT_POS as usize;
        while vector < vectors {
            target[target_first + vector] = source[source_first + vector];
            vector += CUBE_DIM as usize;
        }
        done = vectors * width;
    }
    done
}
