//! A backend's work on the device, ordered behind a group's stream, and before it.
//!
//! CubeCL does not show its streams, and events of a whole context, which CUDA has since 12.5, cover those of other groups
//! and the one that frees waiting ranks. So a kernel on CubeCL's stream of this thread waits for a word that the group's
//! stream writes, and the other way round.

use bonfire_gpu::{Context, Span, Stream, StreamOps};
use burn::backend::CubeDevice;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::ops::numeric::zeros;
use burn_cubecl::tensor::CubeTensor;
use cubecl::future;
use cubecl::prelude::*;

use super::{Flight, on_device};

/// The order of CubeCL's work and a stream's: a word for each to wait for.
#[derive(Debug)]
pub(crate) struct Order {
    /// Written by the stream.
    done: Word,
    /// Written by CubeCL's kernel.
    ready: Word,
    ops: StreamOps,
}

/// A word in memory of CubeCL, and the number that was written last, or is going to be.
#[derive(Debug)]
struct Word {
    tensor: CubeTensor,
    span: Span,
    number: u32,
}

impl Order {
    /// Makes the words in memory of CubeCL, which `flight` keeps.
    pub(crate) fn new(
        context: &Context,
        device: &CubeDevice,
        flight: &mut Flight,
    ) -> Result<Self, String> {
        let mut word = || {
            let tensor = zeros(device.clone(), [1].into(), DType::F32);
            let span = flight.board(context, &on_device(tensor.clone())?);
            Ok::<_, String>(Word { tensor, span, number: 0 })
        };
        let order = Self { done: word()?, ready: word()?, ops: StreamOps::new() };
        // Compiles and loads the kernels, which end at once, while no rank waits for another.
        order.done.launch(Kernel::Wait)?;
        order.ready.launch(Kernel::Write)?;
        let done = future::block_on(order.done.tensor.client.sync());
        done.map_err(|error| format!("{error:?}"))?;
        Ok(order)
    }

    /// Lets what this thread queues at CubeCL from now on wait, on the device, for what `stream` has been given.
    pub(crate) fn hold_back(&mut self, stream: &Stream) -> Result<(), String> {
        let number = self.done.next();
        self.ops.clear();
        let written = self.ops.write(&self.done.span, number).queue(stream);
        written.map_err(|error| error.to_string())?;
        self.done.launch(Kernel::Wait)
    }

    /// Lets what `stream` is given from now on wait, on the device, for what this thread has queued at CubeCL.
    pub(crate) fn hold_up(&mut self, stream: &Stream) -> Result<(), String> {
        let number = self.ready.next();
        self.ready.launch(Kernel::Write)?;
        self.ops.clear();
        let waits = self.ops.wait(&self.ready.span, number).queue(stream);
        waits.map_err(|error| error.to_string())
    }
}

#[derive(Clone, Copy)]
enum Kernel {
    Wait,
    Write,
}

impl Word {
    fn next(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.number
    }

    /// Returns once CubeCL has queued the kernel, and with it all memory that the launch takes.
    fn launch(&self, kernel: Kernel) -> Result<(), String> {
        let client = &self.tensor.client;
        let (one, word) = (CubeCount::Static(1, 1, 1), self.tensor.clone().into_tensor_arg());
        let single = CubeDim::new_single();
        match kernel {
            Kernel::Wait => wait_for::launch(client, one, single, word, self.number),
            Kernel::Write => write::launch(client, one, single, word, self.number),
        }
        client.check([&self.tensor.handle]).map_err(|error| format!("{error:?}"))
    }
}

/// Writes a number, once all that was queued before on the stream is done.
#[cube(launch)]
fn write(word: &Tensor<Atomic<u32>>, number: u32) {
    word[0].store(number);
}

/// Ends once the word has reached a number, counted round its 32 bits.
#[cube(launch)]
fn wait_for(word: &Tensor<Atomic<u32>>, number: u32) {
    while number - word[0].load() - 1 < i32::MAX as u32 {}
}
