//! The sum of the squares of a buffer, for the norm of a gradient.
//!
//! Its order of additions depends on the number of elements and on the width alone, not on the
//! device, so that the same buffer gives the same bits everywhere. A first kernel has [`CUBES`]
//! cubes of [`UNITS`] units: each unit adds up the squares of its vectors lane by lane, then its
//! lanes in order, then the element of the tail that it has, if any; a cube adds its units up in a
//! tree and leaves one number. A second kernel of one cube adds those up in the same way. Each
//! square and its addition are one operation with one rounding, except on an adapter of wgpu that
//! has no such operation: there it may be two.
//!
//! Bytes moved per element: its size, once; memory is the bound. Partial results are f32, and f64
//! for f64: with 2^18 sums side by side, the error grows with the elements per unit.

use crate::element::{Element, FloatArithmetic, FloatElement, Fold};
use crate::reduce::Width;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod kernel;
#[cfg(test)]
mod tests;

/// Cubes of the first kernel, and numbers that it leaves for the second.
pub const CUBES: usize = 1024;

/// Units of each cube, in both kernels.
pub const UNITS: usize = 256;

/// One variant of the two kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SquaredNorm {
    /// What the buffer holds.
    pub element: FloatElement,
    /// How much is read at once. It decides about the order of additions.
    pub width: Width,
}

impl SquaredNorm {
    /// Elements read at once.
    #[must_use]
    pub fn elems(self) -> usize {
        self.width.elems(Element::from(self.element))
    }

    /// Bytes of one partial result, and of the total.
    #[must_use]
    pub fn partial_bytes(self) -> usize {
        match self.element {
            FloatElement::F64 => 8,
            FloatElement::F32 | FloatElement::F16 | FloatElement::Bf16 => 4,
        }
    }
}

/// What the two kernels do, on the CPU.
///
/// # Panics
/// If the buffer has other elements than `norm`.
pub fn reference<T: FloatArithmetic>(norm: SquaredNorm, buffer: &[T]) -> T::Partial {
    assert_eq!(norm.element, T::FLOAT, "the norm is of other elements");
    let mut units: Vec<T::Partial> = (0..CUBES * UNITS)
        .map(|unit| unit_sum(norm, buffer, unit))
        .collect();
    let cubes: Vec<T::Partial> = units.chunks_mut(UNITS).map(add_in_a_tree::<T>).collect();
    let mut totals: Vec<T::Partial> = (0..UNITS)
        .map(|unit| {
            let partials = cubes.iter().skip(unit).step_by(UNITS);
            partials.fold(T::zero(), |sum, &partial| add::<T>(sum, partial))
        })
        .collect();
    add_in_a_tree::<T>(&mut totals)
}

/// The squares of one unit of the first kernel.
fn unit_sum<T: FloatArithmetic>(norm: SquaredNorm, buffer: &[T], unit: usize) -> T::Partial {
    let vectors = buffer.chunks_exact(norm.elems());
    let tail = vectors.remainder();
    let mut lanes = vec![T::zero(); norm.elems()];
    for vector in vectors.skip(unit).step_by(CUBES * UNITS) {
        for (lane, element) in lanes.iter_mut().zip(vector) {
            *lane = T::square_add(element.widen(), *lane);
        }
    }
    let sum = lanes
        .into_iter()
        .fold(T::zero(), |sum, lane| add::<T>(sum, lane));
    match tail.get(unit) {
        Some(element) => T::square_add(element.widen(), sum),
        None => sum,
    }
}

/// The upper half is added to the lower until one number is left.
fn add_in_a_tree<T: FloatArithmetic>(sums: &mut [T::Partial]) -> T::Partial {
    let mut half = sums.len() / 2;
    while half > 0 {
        for index in 0..half {
            sums[index] = add::<T>(sums[index], sums[index + half]);
        }
        half /= 2;
    }
    sums[0]
}

fn add<T: FloatArithmetic>(left: T::Partial, right: T::Partial) -> T::Partial {
    T::combine(Fold::Sum, left, right)
}
