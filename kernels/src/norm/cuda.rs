//! The sum of squares as CUDA C++: two kernels, launched one after the other on one stream.
//!
//! Arguments of the first: the buffer and [`CUBES`](super::CUBES) partial results; then the scalars
//! `vectors: u32` and `tail: u32`. Arguments of the second: the partial results and the total. The
//! grids are fixed, because they decide about the order of additions.

use cubecl::prelude::*;

use super::kernel::{square_sums, square_total};
use super::{CUBES, SquaredNorm, UNITS};
use crate::element::Element;
use crate::source::{Grid, KernelSource, Launch, Scalar, SourceError, Spread, Target, compile};
use crate::types::{self, Tail};

impl SquaredNorm {
    /// The first kernel as CUDA C++.
    ///
    /// # Errors
    /// Only through a defect of this crate or of CubeCL: every variant is compiled in its tests.
    pub fn cuda_sums_source(&self) -> Result<KernelSource, SourceError> {
        let Target {
            settings,
            device,
            target,
        } = Target::cuda(UNITS as u32);
        let buffer = || BufferCompilationArg { inplace: None };
        let kernel = square_sums::SquareSums::new(
            settings,
            device,
            target,
            buffer(),
            buffer(),
            (),
            (),
            self.elems(),
            Tail::of_width(self.elems()),
            [
                types::stored(Element::from(self.element)),
                types::wide(self.element),
            ],
        );
        compile(&kernel, 2, UNITS as u32)
    }

    /// The second kernel as CUDA C++.
    ///
    /// # Errors
    /// Only through a defect of this crate or of CubeCL: every variant is compiled in its tests.
    pub fn cuda_total_source(&self) -> Result<KernelSource, SourceError> {
        let Target {
            settings,
            device,
            target,
        } = Target::cuda(UNITS as u32);
        let buffer = || BufferCompilationArg { inplace: None };
        let kernel = square_total::SquareTotal::new(
            settings,
            device,
            target,
            buffer(),
            buffer(),
            types::wide(self.element),
        );
        compile(&kernel, 2, UNITS as u32)
    }

    /// A launch of the first kernel over `elems` elements; `shared_bytes` is that of its source.
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    pub fn cuda_sums_launch(&self, elems: usize) -> Result<Launch, SourceError> {
        let cubes_max = CUBES as u32;
        let steps = Spread { elems, cubes_max }.steps(self.elems())?;
        let scalars = [Scalar::u32(steps.vectors), Scalar::u32(steps.tail)];
        let grid = self.grid(CUBES as u32);
        Ok(Launch::new(grid, &scalars, &[steps.length, CUBES]))
    }

    /// A launch of the second kernel.
    #[must_use]
    pub fn cuda_total_launch(&self) -> Launch {
        Launch::new(self.grid(1), &[], &[CUBES, 1])
    }

    fn grid(self, cubes: u32) -> Grid {
        Grid {
            cubes,
            units: UNITS as u32,
            shared_bytes: (UNITS * self.partial_bytes()) as u32,
        }
    }
}
