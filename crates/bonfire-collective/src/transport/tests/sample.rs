//! Frames to try the parser on, and sources that give them a little at a time. The fuzz target includes
//! this file, too.

use std::io::{self, IoSliceMut, Read};

use super::wire::{self, HEADER_BYTES};
use bonfire_plan::{Algorithm, Collective, DType};
use bonfire_plan::{CallSite, Operation};

use super::stripes::Stripes;

/// A stream of which each read gives as many bytes as `steps` says next, or all if it says nothing.
pub(crate) struct Trickle<'a, S> {
    pub(crate) bytes: &'a [u8],
    pub(crate) steps: S,
}

impl<S: Iterator<Item = usize>> Read for Trickle<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let step = self.steps.next().unwrap_or(usize::MAX);
        let mut left = step.min(self.bytes.len());
        let mut read = 0;
        for buffer in buffers {
            let len = left.min(buffer.len());
            buffer[..len].copy_from_slice(&self.bytes[..len]);
            self.bytes = &self.bytes[len..];
            left -= len;
            read += len;
        }
        Ok(read)
    }
}

/// The header of a frame of some operation.
pub(crate) fn header(payload_bytes: u32) -> [u8; HEADER_BYTES] {
    let operation = Operation {
        group: 1,
        seq: 2,
        step: None,
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring,
        dtype: DType::F32,
        reduce: None,
        count: 3,
        layout: 0,
        call_site: CallSite::default(),
    };
    wire::encode_header(&operation, payload_bytes)
}

/// Writes a frame to the streams of a link as a rank does.
pub(crate) fn put(streams: &mut [Vec<u8>], payload: &[u8]) {
    put_behind(&header(payload.len() as u32), streams, payload);
}

/// Writes a frame with this header.
pub(crate) fn put_behind(header: &[u8; HEADER_BYTES], streams: &mut [Vec<u8>], payload: &[u8]) {
    let stripes = Stripes::of(payload.len(), streams.len());
    streams[0].extend_from_slice(header);
    for (stream, bytes) in streams.iter_mut().enumerate() {
        bytes.extend_from_slice(&payload[stripes.piece(stream)]);
    }
}
