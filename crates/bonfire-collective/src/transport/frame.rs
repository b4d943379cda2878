//! A frame that has arrived, wherever its parts lie.

use super::wire::{self, AGREED_BYTES, HEADER_BYTES, WireError};
use bonfire_plan::Operation;

/// A view of a frame in the memory of its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// The header in two parts, of which the first holds what ranks agree on.
    header: [&'a [u8]; 2],
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Panics if the first part of the header is shorter than what ranks agree on.
    pub(super) fn new(header: [&'a [u8]; 2], payload: &'a [u8]) -> Self {
        assert!(header[0].len() >= AGREED_BYTES, "the header begins whole");
        Self { header, payload }
    }

    pub(crate) fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether this header and the frame's say the same of the operation.
    #[inline]
    pub(crate) fn agrees_with(&self, header: &[u8; HEADER_BYTES]) -> bool {
        self.header[0][..AGREED_BYTES] == header[..AGREED_BYTES]
    }

    /// Whether the frame is of another operation of all ranks, in the place of the one with this header.
    /// How the two are run does not matter: not all ranks end a measurement of their links at once.
    pub(crate) fn contradicts(&self, header: &[u8; HEADER_BYTES]) -> bool {
        wire::contradict(self.header[0], header)
    }

    pub(crate) fn operation(&self) -> Result<Operation, WireError> {
        wire::decode_header(&self.header.concat()).map(|(operation, _)| operation)
    }
}
