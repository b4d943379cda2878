//! The reduction as CUDA C++.
//!
//! Arguments: one address per [`Role`](super::Role), in that order, each aligned to
//! [`Width::align_bytes`](super::Width::align_bytes); then the scalars `vectors`, `tail`, `skip` and `head`, each a
//! `u32`, and the divisor, which is of the type that the mean is divided in and 1 where nothing is divided.
//!
//! Buffers that all begin at the same distance behind a multiple of 16 bytes are given with their
//! addresses rounded down to it, and a launch that skips the elements in between: it does those
//! that are left of the first vector one by one, as it does those behind the last whole one.

use cubecl::prelude::*;

use super::Reduce;
use super::kernel::{Shape, reduce_floats, reduce_integers};
use crate::source::{
    ELEMS_MAX, Grid, KernelSource, Launch, Scalar, SourceError, Spread, Target, UNITS, compile,
};
use crate::types::{self, Tail};

impl Reduce {
    /// The kernel as CUDA C++.
    ///
    /// # Errors
    /// Only through a defect of this crate or of CubeCL: every variant is compiled in its tests.
    pub fn cuda_source(&self) -> Result<KernelSource, SourceError> {
        let Target { settings, device, target } = Target::cuda(UNITS);
        let buffer = BufferCompilationArg { inplace: None };
        let buffers = std::iter::repeat_n(buffer, self.roles.len());
        let stored = types::stored(self.element);
        let partial = types::partial(self.element, self.fold);
        let divided = types::divided(self.element);
        let divisor = InputScalarCompilationArg::new(divided);
        let width = self.width.elems(self.element);
        let shape = Shape::new(self, Tail::of_width(width));
        if self.element.is_float() {
            let elements = [stored, partial];
            let kernel = reduce_floats::ReduceFloats::new(
                settings,
                device,
                target,
                buffers.collect(),
                (),
                (),
                (),
                (),
                divisor,
                width,
                shape,
                elements,
            );
            compile(&kernel, self.roles.len(), UNITS)
        } else {
            let elements = [stored, partial, divided];
            let kernel = reduce_integers::ReduceIntegers::new(
                settings,
                device,
                target,
                buffers.collect(),
                (),
                (),
                (),
                (),
                divisor,
                width,
                shape,
                elements,
            );
            compile(&kernel, self.roles.len(), UNITS)
        }
    }

    /// A launch of [`cuda_source`](Self::cuda_source). The first `skip` elements of the first vector are left alone,
    /// and so not even read: fewer than a vector has, none where the addresses are those of the buffers. `divisor` is
    /// what [`Fold::Mean`](crate::Fold::Mean) divides by, the world size; others ignore it.
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    ///
    /// # Panics
    /// If a whole vector or more is skipped.
    pub fn cuda_launch(
        &self,
        spread: Spread,
        skip: usize,
        divisor: u32,
    ) -> Result<Launch, SourceError> {
        let width = self.width.elems(self.element);
        assert!(skip < width, "{skip} elements skipped in a vector of {width}");
        let Spread { elems, cubes_max } = spread;
        if elems > ELEMS_MAX - skip {
            return Err(SourceError::TooMany { elems });
        }
        let parts = Parts::new(width, skip, elems);
        let (divided, divisor) = types::divisor(self.element, divisor);
        let scalars = [
            Scalar::u32(parts.vectors as u32),
            Scalar::u32(parts.tail as u32),
            Scalar::u32(skip as u32),
            Scalar::u32(parts.head as u32),
            Scalar::of(divided, divisor),
        ];
        let lengths = vec![(skip + elems).div_ceil(width); self.roles.len()];
        let grid = Grid::over(parts.steps(), UNITS, cubes_max);
        Ok(Launch::new(grid, &scalars, &lengths))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    head: usize,
    /// One past the last whole vector, counted from the one that the range begins in.
    vectors: usize,
    tail: usize,
    whole: usize,
}

impl Parts {
    fn new(width: usize, skip: usize, elems: usize) -> Self {
        let head = if skip == 0 { 0 } else { elems.min(width - skip) };
        let whole = (elems - head) / width;
        Self { head, vectors: whole + usize::from(skip > 0), tail: (elems - head) % width, whole }
    }

    fn steps(self) -> usize {
        self.whole.max(self.head + self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_done_once() {
        for width in [1, 2, 4, 8, 16] {
            for skip in 0..width {
                for elems in 0..5 * width {
                    let parts = Parts::new(width, skip, elems);
                    let Parts { head, vectors, tail, whole } = parts;
                    let mut done = vec![0; skip + elems];
                    let first = usize::from(skip > 0);
                    let of_head = skip..skip + head;
                    let of_vectors = first * width..(first + whole) * width;
                    let of_tail = vectors * width..vectors * width + tail;
                    of_head.chain(of_vectors).for_each(|index| done[index] += 1);
                    of_tail.for_each(|index| done[index] += 1);
                    let (before, range) = done.split_at(skip);
                    assert!(before.iter().all(|times| *times == 0), "{width} {skip}");
                    assert!(range.iter().all(|times| *times == 1), "{width} {skip} {elems}");
                }
            }
        }
    }
}
