//! The multiplication as CUDA C++.
//!
//! Arguments: the buffer; then the scalars `vectors: u32`, `tail: u32` and the factor, an `f64` for
//! f64 and an `f32` otherwise.

use cubecl::prelude::*;

use super::Scale;
use super::kernel::scale;
use crate::element::Element;
use crate::source::{KernelSource, Launch, Scalar, SourceError, Spread, Target, UNITS, compile};
use crate::types::{self, Tail};

impl Scale {
    /// The kernel as CUDA C++.
    ///
    /// # Errors
    /// Only through a defect of this crate or of CubeCL: every variant is compiled in its tests.
    pub fn cuda_source(&self) -> Result<KernelSource, SourceError> {
        let Target { settings, device, target } = Target::cuda(UNITS);
        let element = Element::from(self.element);
        let width = self.width.elems(element);
        let elements = [types::stored(element), types::wide(self.element)];
        let kernel = scale::Scale::new(
            settings,
            device,
            target,
            BufferCompilationArg { inplace: None },
            (),
            (),
            InputScalarCompilationArg::new(types::wide(self.element)),
            width,
            Tail::of_width(width),
            elements,
        );
        compile(&kernel, 1, UNITS)
    }

    /// A launch over `spread.elems` elements. The factor is rounded to the type of the scalar.
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    pub fn cuda_launch(&self, spread: Spread, factor: f64) -> Result<Launch, SourceError> {
        let element = Element::from(self.element);
        let steps = spread.steps(self.width.elems(element))?;
        let wide = types::wide(self.element);
        let scalars = [
            Scalar::u32(steps.vectors),
            Scalar::u32(steps.tail),
            Scalar::of(wide, InputScalar::new(factor, wide)),
        ];
        Ok(Launch::new(steps.grid, &scalars, &[steps.length]))
    }
}
