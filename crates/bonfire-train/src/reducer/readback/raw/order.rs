//! Work that a backend queues later, ordered on the device behind a group's stream.
//!
//! CubeCL does not show its streams. An event for which the whole context waits would also hold back the stream that
//! frees waiting ranks, so a kernel on CubeCL's stream of this thread waits for a word that the group's stream writes.

use bonfire_gpu::{Context, Span, Stream, StreamOps};
use burn::backend::CubeDevice;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::ops::numeric::zeros;
use burn_cubecl::tensor::CubeTensor;
use cubecl::future;
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
        let order = Self { tensor, word, ops: StreamOps::new(), number: 0 };
        // Compiles and loads the kernel, which ends at once, while no rank waits for another.
        order.launch()?;
        future::block_on(order.tensor.client.sync()).map_err(|error| format!("{error:?}"))?;
        Ok(order)
    }

    /// Lets what this thread queues at CubeCL from now on wait, on the device, for what `stream` has been given.
    pub(crate) fn hold_back(&mut self, stream: &Stream) -> Result<(), String> {
        self.number = self.number.wrapping_add(1);
        self.ops.clear();
        let written = self.ops.write(&self.word, self.number).queue(stream);
        written.map_err(|error| error.to_string())?;
        self.launch()
    }

    /// Returns once CubeCL has queued the kernel, and with it all memory that the launch takes.
    fn launch(&self) -> Result<(), String> {
        let client = &self.tensor.client;
        let (one, word) = (CubeCount::Static(1, 1, 1), self.tensor.clone().into_tensor_arg());
        wait_for::launch(client, one, CubeDim::new_single(), word, self.number);
        client.check([&self.tensor.handle]).map_err(|error| format!("{error:?}"))
    }
}

/// Ends once the word has reached a number, counted round its 32 bits.
#[cube(launch)]
fn wait_for(word: &Tensor<Atomic<u32>>, number: u32) {
    while number - word[0].load() - 1 < i32::MAX as u32 {}
}
