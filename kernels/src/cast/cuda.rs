//! The conversions as CUDA C++.
//!
//! Arguments: the source, the target; then the scalars `vectors: u32`, `tail: u32` and, for
//! stochastic rounding, the lower and the upper half of the seed and of the number of the first
//! element, four times `u32`. Addresses are multiples of [`Cast::elems`] elements of their type.

use cubecl::prelude::*;

use super::kernel::{cast_nearest, cast_stochastic};
use super::{Cast, Conversion, Random};
use crate::element::Element;
use crate::source::{KernelSource, Launch, Scalar, SourceError, Spread, Target, UNITS, compile};
use crate::types::{self, Tail};

impl Cast {
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
        let width = self.elems();
        let tail = Tail::of_width(width);
        let stored = |float| types::stored(Element::from(float));
        let (from, to) = (self.conversion.source(), self.conversion.target());
        match self.conversion {
            Conversion::Narrow(_) | Conversion::Widen(_) => {
                let kernel = cast_nearest::CastNearest::new(
                    settings,
                    device,
                    target,
                    buffer(),
                    buffer(),
                    (),
                    (),
                    width,
                    tail,
                    [stored(from), stored(to)],
                );
                compile(&kernel, 2, UNITS)
            }
            Conversion::Stochastic(half) => {
                let kernel = cast_stochastic::CastStochastic::new(
                    settings,
                    device,
                    target,
                    buffer(),
                    buffer(),
                    (),
                    (),
                    (),
                    (),
                    (),
                    (),
                    width,
                    half,
                    tail,
                    stored(to),
                );
                compile(&kernel, 2, UNITS)
            }
        }
    }

    /// A launch over `spread.elems` elements. Only stochastic rounding uses `random`.
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    pub fn cuda_launch(&self, spread: Spread, random: Random) -> Result<Launch, SourceError> {
        let steps = spread.steps(self.elems())?;
        let mut scalars = vec![Scalar::u32(steps.vectors), Scalar::u32(steps.tail)];
        if matches!(self.conversion, Conversion::Stochastic(_)) {
            for number in [random.seed, random.first] {
                scalars.push(Scalar::u32(number as u32));
                scalars.push(Scalar::u32((number >> 32) as u32));
            }
        }
        Ok(Launch::new(steps.grid, &scalars, &[steps.length; 2]))
    }
}
