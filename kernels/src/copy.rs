//! Copy of one buffer into others.
//!
//! It is a [`Reduce`] with one source, of unsigned integers so that no bit changes. Its reference
//! is that of the reduction. Bytes moved per element: its size, times one more than the targets.

use crate::element::Element;
use crate::reduce::{Reduce, ReduceError, Role, Width};

/// A kernel whose first buffer is read and whose other `targets` buffers are written.
///
/// # Errors
/// If there is no target, or more than a kernel takes.
pub fn copy(element: Element, targets: usize, width: Width) -> Result<Reduce, ReduceError> {
    use crate::element::Fold::Or;
    let bits = match element.bytes() {
        1 => Element::U8,
        2 => Element::U16,
        4 => Element::U32,
        _ => Element::U64,
    };
    let mut roles = vec![Role::Target; targets + 1];
    roles[0] = Role::Source;
    Reduce::new(bits, Or, &roles, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::reference;

    #[test]
    fn a_copy_keeps_the_bits_of_nan() {
        let copy = copy(Element::Bf16, 2, Width::Vector).expect("two targets are few");
        let (mut source, mut first, mut second) = ([0xff81_u16, 3], [0; 2], [0; 2]);
        reference(&copy, &mut [&mut source, &mut first, &mut second], 1);
        assert_eq!((first, second), (source, source));
    }

    #[test]
    fn a_copy_into_nothing_is_refused() {
        let fault = copy(Element::F32, 0, Width::Vector);
        assert_eq!(fault, Err(ReduceError::Roles));
    }
}
