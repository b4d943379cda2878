//! The reduction as CUDA C++.
//!
//! Arguments: one address per [`Role`](super::Role), in that order, each aligned to
//! [`Width::align_bytes`](super::Width::align_bytes); then the scalars `vectors: u32`,
//! `tail: u32` and the divisor, which is of the type that the mean is divided in and 1 where
//! nothing is divided.

use cubecl::prelude::*;

use super::Reduce;
use super::kernel::{Shape, reduce_floats, reduce_integers};
use crate::source::{KernelSource, Launch, Scalar, SourceError, Spread, Target, UNITS, compile};
use crate::types::{self, Tail};

impl Reduce {
    /// The kernel as CUDA C++.
    ///
    /// # Errors
    /// Only through a defect of this crate or of CubeCL: every variant is compiled in its tests.
    pub fn cuda_source(&self) -> Result<KernelSource, SourceError> {
        let Target {
            settings,
            device,
            target,
        } = Target::cuda(UNITS);
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
                divisor,
                width,
                shape,
                elements,
            );
            compile(&kernel, self.roles.len(), UNITS)
        }
    }

    /// A launch of [`cuda_source`](Self::cuda_source). `divisor` is what
    /// [`Fold::Mean`](crate::Fold::Mean) divides by, the world size; others ignore it.
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    pub fn cuda_launch(&self, spread: Spread, divisor: u32) -> Result<Launch, SourceError> {
        let steps = spread.steps(self.width.elems(self.element))?;
        let scalars = [
            Scalar::u32(steps.vectors),
            Scalar::u32(steps.tail),
            Scalar::of(types::divisor(self.element, divisor)),
        ];
        let lengths = vec![steps.length; self.roles.len()];
        Ok(Launch::new(steps.grid, &scalars, &lengths))
    }
}
