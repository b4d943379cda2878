//! The reduction as CUDA C++.
//!
//! Arguments: one address per [`Role`](super::Role), in that order, each aligned to
//! [`Width::align_bytes`](super::Width::align_bytes); then the scalars `vectors: u32`,
//! `tail: u32` and the divisor, which is of the type that the mean is divided in and 1 where
//! nothing is divided.

use cubecl::ir::{ElemType, FloatKind, IntKind, UIntKind};
use cubecl::prelude::*;

use super::Reduce;
use super::kernel::{Shape, Tail, reduce_floats, reduce_integers};
use crate::element::Element;
use crate::source::{ELEMS_MAX, Grid, KernelSource, Launch, Scalar, SourceError, Target, compile};
use crate::types;

/// Threads per block: with one vector of each buffer in flight per thread, the size that reached
/// the copy bandwidth of an H200 (2026-11-20), together with two blocks per multiprocessor.
const UNITS: u32 = 512;

/// How much one launch reduces, and on how much of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceSize {
    /// Elements of each buffer; at most [`ELEMS_MAX`].
    pub elems: usize,
    /// What [`Fold::Mean`](crate::Fold::Mean) divides by: the world size. Others ignore it.
    pub divisor: u32,
    /// Blocks at most. Two per multiprocessor fill a device; fewer leave room for computation.
    pub cubes_max: u32,
}

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
        let shape = Shape {
            element: self.element,
            fold: self.fold,
            roles: self.roles.clone(),
            tail: if width > 1 {
                Tail::Scalars
            } else {
                Tail::Absent
            },
        };
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

    /// A launch of [`cuda_source`](Self::cuda_source).
    ///
    /// # Errors
    /// If there are more elements than one launch can index.
    pub fn cuda_launch(&self, size: ReduceSize) -> Result<Launch, SourceError> {
        let ReduceSize {
            elems,
            divisor,
            cubes_max,
        } = size;
        if elems > ELEMS_MAX {
            return Err(SourceError::TooMany { elems });
        }
        let width = self.width.elems(self.element);
        let (vectors, tail) = (elems / width, elems % width);
        let scalars = [
            Scalar::u32(vectors as u32),
            Scalar::u32(tail as u32),
            self.divisor(divisor),
        ];
        let lengths = std::iter::repeat_n(elems.div_ceil(width), self.roles.len());
        let grid = Grid::over(vectors.max(tail), UNITS, cubes_max);
        Ok(Launch::new(grid, &scalars, lengths))
    }

    /// The divisor in the type that it is divided in. What the elements cannot hold gives a mean of
    /// zero on the CPU: so does the largest number of a wider type.
    fn divisor(&self, divisor: u32) -> Scalar {
        let divided = types::divided(self.element);
        let elements_max = match self.element {
            Element::I8 => i8::MAX as u32,
            Element::I16 => i16::MAX as u32,
            Element::I32 => i32::MAX as u32,
            Element::U8 => u32::from(u8::MAX),
            Element::U16 => u32::from(u16::MAX),
            _ => u32::MAX,
        };
        let fits = divisor <= elements_max;
        match divided {
            ElemType::Float(FloatKind::F64) => {
                Scalar::new(divided, &f64::from(divisor).to_le_bytes())
            }
            ElemType::Float(_) => Scalar::new(divided, &(divisor as f32).to_le_bytes()),
            ElemType::Int(IntKind::I64) => Scalar::new(divided, &i64::from(divisor).to_le_bytes()),
            ElemType::UInt(UIntKind::U64) => {
                Scalar::new(divided, &u64::from(divisor).to_le_bytes())
            }
            ElemType::Int(_) => {
                let divisor = if fits { divisor as i32 } else { i32::MAX };
                Scalar::new(divided, &divisor.to_le_bytes())
            }
            _ => Scalar::u32(if fits { divisor } else { u32::MAX }),
        }
    }
}
