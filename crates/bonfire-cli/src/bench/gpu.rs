//! The same measurement on GPUs: buffers in device memory, times by the device's own clock.
//!
//! A sample is a batch of operations between two events of a stream, behind one operation that brings the
//! ranks together and is not timed. Every operation has a buffer of its own and is verified from the host.

mod fleet;

use std::time::Duration;

use bonfire_collective::{DType, Rank};
use bonfire_gpu::{CudaAlgorithm, CudaGroup, CudaPath, Elements, Event, NcclGroup};

use super::data::{Data, Value};
use super::layout::{Blocks, Form, Parameters, Place};
use super::measure::{Measurement, Samples, Timing, agree, batch_of, by_type};
use crate::gpu::collectives::{Collectives, Task};
use crate::operation::Operation;

pub(super) use fleet::{Fleet, Gpus};

/// A sample is at least this long, so that the clock of a device, which counts half microseconds, is a
/// small part of it.
const SAMPLE_MIN: Duration = Duration::from_micros(200);

/// Buffers start where a device reads at once.
const LINE_BYTES: usize = 256;

#[derive(Debug)]
pub(super) enum Member {
    Own(CudaGroup),
    OverNccl(NcclGroup),
}

struct Run<'g, G: Collectives> {
    group: &'g G,
    measurement: Measurement,
    /// The elements of one block.
    count: usize,
    /// The elements of one operation.
    len: usize,
    /// Elements from the start of one operation's buffer to the next.
    stride: usize,
    slots: usize,
    buffer: G::Buffer,
    /// Where results are, if not in the same.
    output: Option<G::Buffer>,
    begun: Event,
    done: Event,
    operations: usize,
    wrong: u64,
}

/// How an operation exists on GPUs: in place, but where what comes would overwrite what goes.
pub(super) fn forms(operation: Operation) -> &'static [Form] {
    match operation {
        Operation::AllToAll | Operation::SendRecv => &[Form::OutOfPlace],
        Operation::AllReduce
        | Operation::ReduceScatter
        | Operation::AllGather
        | Operation::Broadcast
        | Operation::Reduce
        | Operation::Gather
        | Operation::Scatter
        | Operation::Barrier => &[Form::InPlace],
    }
}

/// Blocks of the elements that an operation is about, the same on every rank: a pair brings one each.
fn blocks(operation: Operation, ranks: usize) -> usize {
    match operation {
        Operation::SendRecv => 2,
        other => other.blocks_per_message(ranks),
    }
}

fn starts(operation: Operation, place: Place) -> Blocks {
    match operation {
        // The lower rank of a pair brings the first one.
        Operation::SendRecv => Blocks { input: place.me % 2, output: 1 - place.me % 2 },
        other => other.starts(place),
    }
}

pub(super) fn transport(member: &Member) -> &'static str {
    match member {
        Member::OverNccl(_) => "NCCL",
        Member::Own(group) => match group.path() {
            CudaPath::Peer => "GPU memory",
            CudaPath::Host => "host memory",
        },
    }
}

fn algorithm(group: &CudaGroup, operation: Operation, bytes: usize) -> &'static str {
    if group.path() == CudaPath::Host {
        return "host";
    }
    match (operation, group.algorithm_for(bytes)) {
        (Operation::AllReduce, CudaAlgorithm::OneShot) => "one_shot",
        (Operation::AllReduce, CudaAlgorithm::TwoShot) => "two_shot",
        (Operation::AllReduce, CudaAlgorithm::Ring) => "ring",
        (Operation::AllReduce, CudaAlgorithm::Chain) => "chain",
        _ => "direct",
    }
}

impl Measurement {
    pub(super) fn time_on_gpu(self, member: &Member, bytes: usize) -> anyhow::Result<Timing> {
        match member {
            Member::Own(group) => {
                let algorithm = algorithm(group, self.operation, bytes);
                self.time_in(group, algorithm, bytes)
            }
            Member::OverNccl(group) => self.time_in(group, "nccl", bytes),
        }
    }

    fn time_in<G: Collectives>(
        self,
        group: &G,
        algorithm: &'static str,
        bytes: usize,
    ) -> anyhow::Result<Timing> {
        by_type!(self.dtype, T => self.time_as::<T, G>(group, algorithm, bytes))
    }

    fn time_as<T: Value, G: Collectives>(
        self,
        group: &G,
        algorithm: &'static str,
        bytes: usize,
    ) -> anyhow::Result<Timing> {
        let mut run = Run::new::<T>(self, group, bytes)?;
        let process = group.process_group();
        let root = self.parameters.root;
        let mut times = Vec::new();
        run.round::<T>(1, self.warmup.clamp(1, run.slots - 1), &mut times)?;
        let fastest = times.iter().min().copied().unwrap_or_default();
        let batch = batch_of(fastest, SAMPLE_MIN, run.slots - 1).max(1);
        let batch = agree(process, root, batch)?;
        let most = run.slots / (batch + 1);
        let times = self
            .sample(process, batch, most, |samples, times| run.round::<T>(samples, batch, times))?;
        let samples = Samples { times, batch, algorithm: Some(algorithm), wrong: run.wrong };
        group.release(run.buffer)?;
        if let Some(output) = run.output {
            group.release(output)?;
        }
        Ok(Timing::of_all_ranks(process, samples)?)
    }
}

impl<'g, G: Collectives> Run<'g, G> {
    fn new<T: Value>(measurement: Measurement, group: &'g G, bytes: usize) -> anyhow::Result<Self> {
        let operation = measurement.operation;
        let place = measurement.place(group.process_group());
        let message_blocks = operation.blocks_per_message(place.ranks).max(1);
        let count = bytes / message_blocks / size_of::<T>();
        // By the size of the message, so that the buffers of all ranks are equally long.
        let len = count * blocks(operation, place.ranks);
        let line = LINE_BYTES / size_of::<T>();
        let stride = len.next_multiple_of(line).max(line);
        // Every sample has one operation that is not timed.
        let slots = measurement.slots(bytes);
        let context = group.context();
        let bytes = slots * stride * size_of::<T>();
        let apart = operation == Operation::AllToAll;
        Ok(Self {
            group,
            measurement,
            count,
            len,
            stride,
            slots,
            buffer: group.allocate(bytes)?,
            output: apart.then(|| group.allocate(bytes)).transpose()?,
            begun: Event::timed(context)?,
            done: Event::timed(context)?,
            operations: 0,
            wrong: 0,
        })
    }

    /// `samples` samples of one operation that is not timed and `batch` that are, each in a buffer of its own.
    fn round<T: Value>(
        &mut self,
        samples: usize,
        batch: usize,
        times: &mut Vec<Duration>,
    ) -> anyhow::Result<()> {
        let used = samples * (batch + 1);
        let slots = self.slots;
        assert!(used <= slots, "{used} operations in {slots} buffers");
        let operation = self.measurement.operation;
        let place = self.measurement.place(self.group.process_group());
        let (blocks, starts) = (operation.blocks(place), starts(operation, place));
        let mut brought = vec![T::from_number(0); blocks.input * self.count];
        for slot in 0..used {
            self.data(slot).fill(&mut brought);
            let start = slot * self.stride + starts.input * self.count;
            self.group.write(&self.buffer, start, &brought)?;
        }
        self.group.process_group().barrier()?;
        let stream = self.group.stream();
        for sample in 0..samples {
            let first = sample * (batch + 1);
            self.perform::<T>(first)?;
            stream.record(&self.begun)?;
            for slot in first + 1..=first + batch {
                self.perform::<T>(slot)?;
            }
            stream.record(&self.done)?;
            self.group.synchronize()?;
            times.push(self.done.since(&self.begun)? / batch as u32);
        }
        // What a rank reads below, no other still writes.
        self.group.process_group().barrier()?;
        let output = self.output.as_ref().unwrap_or(&self.buffer);
        let mut result = vec![T::from_number(0); blocks.output * self.count];
        for slot in 0..used {
            let start = slot * self.stride + starts.output * self.count;
            self.group.read(output, start, &mut result)?;
            self.wrong += self.data(slot).count_wrong(&result);
        }
        self.operations += used;
        // Nor does any write the next round's data before all have read this one's.
        self.group.process_group().barrier()?;
        Ok(())
    }

    fn perform<T: Value>(&self, slot: usize) -> anyhow::Result<()> {
        let Measurement { operation, parameters: Parameters { redop, root }, .. } =
            self.measurement;
        let (group, buffer) = (self.group, &self.buffer);
        let start = slot * self.stride;
        let elements = Elements::at::<T>(start, self.len);
        let task = match operation {
            Operation::AllReduce => Task::AllReduce(redop),
            Operation::ReduceScatter => Task::ReduceScatter(redop),
            Operation::AllGather => Task::AllGather,
            Operation::Broadcast => Task::Broadcast(root),
            Operation::Reduce => Task::Reduce(redop, root),
            Operation::Gather => Task::Gather(root),
            Operation::Scatter => Task::Scatter(root),
            Operation::AllToAll => Task::AllToAll,
            Operation::SendRecv => {
                let place = self.measurement.place(group.process_group());
                let Some(peer) = place.peer() else {
                    return Ok(());
                };
                Task::Exchange(Rank::new(peer as u32))
            }
            Operation::Barrier => return Ok(group.barrier()?),
        };
        let output = self.output.as_ref().unwrap_or(buffer);
        Ok(group.perform(task, [buffer, output], &elements)?)
    }

    fn data(&self, slot: usize) -> Data {
        let process = self.group.process_group();
        self.measurement.data(process, self.count, self.operations + slot)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn what_gpus_do_is_done_in_buffers_of_one_length() {
        for &operation in Operation::value_variants() {
            for me in 0..3 {
                let place = Place { me, ranks: 3, root: 1 };
                let (brings, starts) = (operation.blocks(place), starts(operation, place));
                let (name, all) = (operation.name(), blocks(operation, 3));
                assert!(starts.input + brings.input <= all, "{name}");
                assert!(starts.output + brings.output <= all, "{name}");
                // What comes to a pair lies beside what goes.
                let apart = starts.input != starts.output;
                assert!(operation != Operation::SendRecv || apart);
            }
        }
    }

    #[test]
    fn every_operation_is_measured_in_one_form() {
        for &operation in Operation::value_variants() {
            let forms = forms(operation);
            assert_eq!(forms.len(), 1, "{}", operation.name());
            let on_cpu = operation.forms();
            let same = forms.iter().all(|form| on_cpu.contains(form));
            // The group on the CPU has these two from one buffer to another only.
            let other = matches!(operation, Operation::Gather | Operation::Scatter);
            assert!(same || other, "{}", operation.name());
        }
    }
}
