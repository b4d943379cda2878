//! The search as CUDA C++.
//!
//! Arguments: the buffer, the word (a `u32`); then the scalars `vectors: u32` and `tail: u32`.

use cubecl::prelude::*;

use super::NonFinite;
use super::kernel::non_finite;
use crate::element::Element;
use crate::source::{KernelSource, Launch, Scalar, SourceError, Spread, Target, UNITS, compile};
use crate::types::{self, Tail};

impl NonFinite {
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
        let buffer = || BufferCompilationArg { inplace: None };
        let element = Element::from(self.element);
        let width = self.width.elems(element);
        let kernel = non_finite::NonFinite::new(
            settings,
            device,
            target,
            buffer(),
            buffer(),
            (),
            (),
            width,
            Tail::of_width(width),
            [types::stored(element), types::wide(self.element)],
        );
        compile(&kernel, 2, UNITS)
    }

    /// A launch over `spread.elems` elements.
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    pub fn cuda_launch(&self, spread: Spread) -> Result<Launch, SourceError> {
        let steps = spread.steps(self.width.elems(Element::from(self.element)))?;
        let scalars = [Scalar::u32(steps.vectors), Scalar::u32(steps.tail)];
        Ok(Launch::new(steps.grid, &scalars, &[steps.length, 1]))
    }
}
