//! Multiplication of a buffer by a number, in place.
//!
//! The product is taken in the wide type (f32 for the 16-bit floats) and rounded once to the
//! element. Bytes moved per element: twice its size; memory is the bound.

use crate::element::FloatElement;
use crate::reduce::Width;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
pub(crate) mod kernel;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scale {
    pub element: FloatElement,
    pub width: Width,
}
