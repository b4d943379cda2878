//! The reduction in CubeCL.
//!
//! Elements of type `T` are folded in type `A` and divided in type `D`. For floats `D` is `A`. For
//! integers `A` is the unsigned type of the same size where a result may wrap around, because C++
//! defines that for unsigned types alone, and `D` has at least 32 bits, so that every divisor fits.

use cubecl::prelude::*;

use super::{Reduce, Role};
use crate::element::{Element, Fold};
use crate::types::Tail;

/// The part of a [`Reduce`](super::Reduce) that shapes the code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    element: Element,
    fold: Fold,
    roles: Vec<Role>,
    tail: Tail,
}

impl Shape {
    pub(crate) fn new(reduce: &Reduce, tail: Tail) -> Self {
        Self { element: reduce.element, fold: reduce.fold, roles: reduce.roles.clone(), tail }
    }

    fn is_source(&self, buffer: usize) -> bool {
        self.roles[buffer].is_source()
    }

    fn is_target(&self, buffer: usize) -> bool {
        self.roles[buffer].is_target()
    }

    fn first_source(&self) -> usize {
        let first = self.roles.iter().position(|role| role.is_source());
        first.expect("a reduction has a source")
    }
}

/// How two values of type `A` become one.
#[cube]
trait Combine<A: Numeric>: Send + Sync + 'static {
    fn combine<N: Size>(
        partial: Vector<A, N>,
        next: Vector<A, N>,
        #[comptime] fold: Fold,
        #[comptime] element: Element,
    ) -> Vector<A, N>;
}

struct Floats;
struct Integers;

#[cube]
impl<A: Float> Combine<A> for Floats {
    fn combine<N: Size>(
        partial: Vector<A, N>,
        next: Vector<A, N>,
        #[comptime] fold: Fold,
        #[comptime] element: Element,
    ) -> Vector<A, N> {
        match comptime!(fold) {
            Fold::Sum | Fold::Mean => partial + next,
            Fold::Product => partial * next,
            Fold::Min => {
                let better = select_many(partial.less_than(&next), partial, next);
                pick::<A, N>(partial, next, better, fold, element)
            }
            Fold::Max => {
                let better = select_many(partial.greater_than(&next), partial, next);
                pick::<A, N>(partial, next, better, fold, element)
            }
            Fold::And | Fold::Or | Fold::Xor => panic!("floats are not combined bit by bit"),
        }
    }
}

/// The better of two numbers, unless one is NaN or both are zeros: there is one NaN, and -0 is below +0.
/// Numbers that are equal have equal bits, but for zeros, whose bits differ in the sign.
#[cube]
fn pick<A: Float, N: Size>(
    left: Vector<A, N>,
    right: Vector<A, N>,
    better: Vector<A, N>,
    #[comptime] fold: Fold,
    #[comptime] element: Element,
) -> Vector<A, N> {
    let wide = comptime!(element == Element::F64);
    if wide {
        pick_by_bits::<A, u64, N>(left, right, better, 0x7ff8_0000_0000_0000_u64, fold)
    } else {
        pick_by_bits::<A, u32, N>(left, right, better, 0x7fc0_0000_u32, fold)
    }
}

/// [`pick`] by bits of type `B`, those of `one_nan` among them.
#[cube]
fn pick_by_bits<A: Float, B: Int, N: Size>(
    left: Vector<A, N>,
    right: Vector<A, N>,
    better: Vector<A, N>,
    one_nan: B,
    #[comptime] fold: Fold,
) -> Vector<A, N> {
    let equal = left.equal(&right);
    let nan = left.is_nan().or(right.is_nan());
    let (a, b) = (Vector::<B, N>::reinterpret(left), Vector::<B, N>::reinterpret(right));
    let bits = if comptime!(fold == Fold::Min) { a | b } else { a & b };
    let number = select_many(equal, Vector::<A, N>::reinterpret(bits), better);
    let one_nan = Vector::<B, N>::new(one_nan);
    select_many(nan, Vector::<A, N>::reinterpret(one_nan), number)
}

#[cube]
impl<A: Int> Combine<A> for Integers {
    fn combine<N: Size>(
        partial: Vector<A, N>,
        next: Vector<A, N>,
        #[comptime] fold: Fold,
        #[comptime] _element: Element,
    ) -> Vector<A, N> {
        match comptime!(fold) {
            Fold::Sum | Fold::Mean => partial + next,
            Fold::Product => partial * next,
            Fold::Min => select_many(partial.less_than(&next), partial, next),
            Fold::Max => select_many(partial.greater_than(&next), partial, next),
            Fold::And => partial & next,
            Fold::Or => partial | next,
            Fold::Xor => partial ^ next,
        }
    }
}

/// Folds the sources at `index` and writes the result to the targets. Buffers of vectors of `N` are
/// seen as vectors of `M`.
#[cube]
fn reduce_at<T: Numeric, A: Numeric, D: Numeric, C: Combine<A>, N: Size, M: Size>(
    buffers: &mut Sequence<Box<[Vector<T, N>]>>,
    index: usize,
    divisor: D,
    #[comptime] shape: Shape,
) {
    let first = comptime!(shape.first_source());
    let source = buffers.index(first).with_vector_size::<M>();
    let mut partial = Vector::<A, M>::cast_from(source[index]);
    #[unroll]
    for buffer in comptime!(first + 1)..comptime!(shape.roles.len()) {
        if comptime!(shape.is_source(buffer)) {
            let source = buffers.index(buffer).with_vector_size::<M>();
            let next = Vector::<A, M>::cast_from(source[index]);
            partial = C::combine::<M>(partial, next, shape.fold, shape.element);
        }
    }
    let result = if comptime!(shape.fold != Fold::Mean) {
        Vector::<T, M>::cast_from(partial)
    } else if comptime!(shape.element.is_float()) {
        let mean = Vector::<D, M>::cast_from(partial) / Vector::new(divisor);
        Vector::<T, M>::cast_from(mean)
    } else {
        // Through `T`, which may have a sign that `A` has not.
        let sum = Vector::<T, M>::cast_from(partial);
        let mean = Vector::<D, M>::cast_from(sum) / Vector::new(divisor);
        Vector::<T, M>::cast_from(mean)
    };
    #[unroll]
    for buffer in 0..comptime!(shape.roles.len()) {
        if comptime!(shape.is_target(buffer)) {
            let target = buffers.index_mut(buffer).with_vector_size_mut::<M>();
            target[index] = result;
        }
    }
}

/// Where the elements lie in the vectors of the buffers. All of it is 0 but for the vectors where
/// the elements fill them.
#[derive(CubeType, Clone, Copy)]
struct Bounds {
    /// One past the last vector that is whole.
    vectors: u32,
    tail: u32,
    /// Elements of the first vector that are none of ours.
    skip: u32,
    /// Those behind them in the first vector.
    head: u32,
}

/// All whole vectors, in steps of the grid; then the elements before and behind them.
#[cube]
#[allow(
    clippy::collapsible_if,
    reason = "one condition is decided when the kernel is made, the other when it runs"
)]
fn reduce_all<T: Numeric, A: Numeric, D: Numeric, C: Combine<A>, N: Size>(
    buffers: &mut Sequence<Box<[Vector<T, N>]>>,
    bounds: Bounds,
    divisor: D,
    #[comptime] shape: Shape,
) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut index = ABSOLUTE_POS;
    if comptime!(shape.tail == Tail::Scalars) {
        if bounds.skip > 0 {
            index += 1;
        }
    }
    while index < bounds.vectors as usize {
        reduce_at::<T, A, D, C, N, N>(buffers, index, divisor, shape.clone());
        index += stride;
    }
    if comptime!(shape.tail == Tail::Scalars) {
        reduce_edges::<T, A, D, C, N>(buffers, bounds, divisor, shape);
    }
}

/// The elements before the first whole vector and behind the last, one per unit.
#[cube]
fn reduce_edges<T: Numeric, A: Numeric, D: Numeric, C: Combine<A>, N: Size>(
    buffers: &mut Sequence<Box<[Vector<T, N>]>>,
    bounds: Bounds,
    divisor: D,
    #[comptime] shape: Shape,
) {
    let head = bounds.head as usize;
    if ABSOLUTE_POS < head + bounds.tail as usize {
        let mut index = bounds.skip as usize + ABSOLUTE_POS;
        if ABSOLUTE_POS >= head {
            index = bounds.vectors as usize * N::value() + ABSOLUTE_POS - head;
        }
        reduce_at::<T, A, D, C, N, Const<1>>(buffers, index, divisor, shape);
    }
}

#[cube(launch_unchecked)]
pub(crate) fn reduce_floats<T: Float, A: Float, N: Size>(
    mut buffers: Sequence<Box<[Vector<T, N>]>>,
    vectors: u32,
    tail: u32,
    skip: u32,
    head: u32,
    divisor: InputScalar,
    #[comptime] shape: Shape,
    #[define(T, A)] _elements: [ElemType; 2],
) {
    let divisor = divisor.get::<A>();
    let bounds = Bounds { vectors, tail, skip, head };
    reduce_all::<T, A, A, Floats, N>(&mut buffers, bounds, divisor, shape);
}

#[cube(launch_unchecked)]
pub(crate) fn reduce_integers<T: Int, A: Int, D: Int, N: Size>(
    mut buffers: Sequence<Box<[Vector<T, N>]>>,
    vectors: u32,
    tail: u32,
    skip: u32,
    head: u32,
    divisor: InputScalar,
    #[comptime] shape: Shape,
    #[define(T, A, D)] _elements: [ElemType; 3],
) {
    let divisor = divisor.get::<D>();
    let bounds = Bounds { vectors, tail, skip, head };
    reduce_all::<T, A, D, Integers, N>(&mut buffers, bounds, divisor, shape);
}
