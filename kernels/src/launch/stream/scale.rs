//! The multiplication of a buffer by a number.

use bonfire_cuda::{Context, CudaError, Function, Nvrtc, Span, Stream};

use super::{CodeError, load, queue_scale};
use crate::element::{Element, FloatElement};
use crate::reduce::{VECTOR_BYTES, Width};
use crate::scale::Scale;
use crate::source::{ELEMS_MAX, Spread};

#[derive(Debug)]
pub struct ScaleKernel {
    scale: Scale,
    pub(super) function: Function,
}

impl ScaleKernel {
    /// Compiles and loads it, as [`PackKernel::load`](super::PackKernel::load) does.
    ///
    /// # Errors
    /// As there.
    pub fn load(context: &Context, nvrtc: Nvrtc, element: FloatElement) -> Result<Self, CodeError> {
        let scale = Scale { element, width: Width::Vector };
        let function = load(&scale.cuda_source()?, context, nvrtc)?;
        Ok(Self { scale, function })
    }

    /// Queues the multiplication of all elements of a buffer, which begins at a multiple of 16 bytes. The
    /// factor is rounded to the type of the product: f64 for f64, f32 for all others.
    ///
    /// # Panics
    /// If the buffer does not begin there, or is not a whole number of elements.
    pub fn launch(
        &self,
        stream: &Stream,
        buffer: &Span,
        factor: f64,
        cubes_max: u32,
    ) -> Result<(), CudaError> {
        let size = Element::from(self.scale.element).bytes();
        assert!(
            buffer.address().is_multiple_of(VECTOR_BYTES as u64)
                && buffer.len().is_multiple_of(size),
            "{} bytes at {:#x}: whole elements of {size} bytes from a multiple of {VECTOR_BYTES} on",
            buffer.len(),
            buffer.address()
        );
        let piece_bytes = ELEMS_MAX * size;
        for start in (0..buffer.len()).step_by(piece_bytes) {
            let piece = buffer.part(start..buffer.len().min(start + piece_bytes))?;
            let spread = Spread { elems: piece.len() / size, cubes_max };
            let launch = self
                .scale
                .cuda_launch(spread, factor)
                .expect("a piece has no more elements than a launch");
            queue_scale(self, stream, &piece, &launch)?;
        }
        Ok(())
    }
}
