//! Work that a backend queues later, ordered on the device behind a group's stream.
//!
//! CubeCL does not show its streams. An event for which the whole context waits would also hold back the stream that
//! frees waiting ranks, so a kernel on CubeCL's stream of this thread waits for a word that the group's stream writes.

use bonfire_gpu::{Context, CudaError, Span, Stream, StreamOps};
use burn::backend::CubeDevice;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::ops::numeric::zeros;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Flight, on_device};

/// The order of CubeCL's work behind a stream's: the word, and its last value.
#[derive(Debug)]
pub(crate) struct Order {
    tensor: CubeTensor,
    word: Span,
    ops: StreamOps,
    number: u32,
}

impl Order {
    /// Makes the word in memory of CubeCL, which `flight` keeps.
    pub(crate) fn new(
        context: &Context,
        device: &CubeDevice,
        flight: &mut Flight,
    ) -> Result<Self, String> {
        let tensor = zeros(device.clone(), [1].into(), DType::F32);
        let word = flight.board(context, &on_device(tensor.clone())?);
        Ok(Self { tensor, word, ops: StreamOps::new(), number: 0 })
    }

    /// Lets what this thread queues at CubeCL from now on wait, on the device, for what `stream` has been given.
    pub(super) fn hold_back(&mut self, stream: &Stream) -> Result<(), CudaError> {
        self.number = self.number.wrapping_add(1);
        self.ops.clear();
        self.ops.write(&self.word, self.number).queue(stream)?;
        let (one, word) = (CubeCount::Static(1, 1, 1), self.tensor.clone().into_tensor_arg());
        wait_for::launch(&self.tensor.client, one, CubeDim::new_single(), word, self.number);
        Ok(())
    }
}

/// Ends once the word has reached a number, counted round its 32 bits.
#[cube(launch)]
fn wait_for(word: &Tensor<Atomic<u32>>, number: u32) {
    while number - word[0].load() - 1 < i32::MAX as u32 {}
}
