//! Times one message size: rotating buffers, every result verified off the clock.

use std::time::{Duration, Instant};

use bonfire_collective::{Algorithm, CollectiveError, DType, ProcessGroup, Rank, ReduceOp};
use half::{bf16, f16};

use super::buffers::{Buffers, Home};
use super::data::{Data, Value};
use super::layout::{Form, Parameters, Place};
use crate::operation::Operation;

/// Buffers rotate through no more than this many, which small messages would reach.
pub(super) const SLOTS_MAX: usize = 512;

/// A sample is at least this long, so that reading the clock is a small part of it. Short operations
/// are timed in batches.
const SAMPLE_MIN: Duration = Duration::from_micros(20);

/// A measurement ends early when it has taken this many times its least time, untimed work
/// included: in a group of one rank, the operations take next to no time.
const SPENT_PER_TIMED_MAX: u32 = 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) min_bytes: usize,
    pub(super) max_bytes: usize,
    pub(super) step_factor: usize,
}

impl Sizes {
    /// The sizes in bytes, each rounded up to whole blocks of whole elements.
    pub(super) fn list(self, block_bytes: usize) -> Vec<usize> {
        if block_bytes == 0 {
            return vec![0];
        }
        let next = |bytes: &usize| bytes.checked_mul(self.step_factor);
        let sizes = std::iter::successors(Some(self.min_bytes), next);
        let sizes = sizes.take_while(|bytes| *bytes <= self.max_bytes);
        let mut sizes: Vec<usize> = sizes.map(|b| b.next_multiple_of(block_bytes)).collect();
        sizes.dedup();
        sizes
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    pub(super) operation: Operation,
    pub(super) form: Form,
    pub(super) dtype: DType,
    pub(super) parameters: Parameters,
    pub(super) buffers: Home,
    /// The least number of timed samples.
    pub(super) iters: usize,
    /// How long the timed samples last together, at least.
    pub(super) time_min: Duration,
    pub(super) warmup: usize,
    /// Buffers rotate through this much memory per rank.
    pub(super) rotate_bytes: usize,
}

/// The result for one size. Each time is that of one operation, on the rank where it is largest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) min: Duration,
    pub(super) median: Duration,
    pub(super) mean: Duration,
    pub(super) samples: usize,
    /// The operations timed as one sample.
    pub(super) batch: usize,
    /// What this rank ran; none where it had nothing to do.
    pub(super) algorithm: Option<&'static str>,
    /// Wrong elements over all operations and ranks.
    pub(super) wrong: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) samples: usize,
    pub(super) timed: Duration,
    /// As `timed`, with what is done off the clock.
    pub(super) spent: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Samples {
    /// One per sample, of one operation.
    pub(super) times: Vec<Duration>,
    /// The operations timed as one sample.
    pub(super) batch: usize,
    pub(super) algorithm: Option<&'static str>,
    pub(super) wrong: u64,
}

struct Run<'g, T> {
    group: &'g ProcessGroup,
    measurement: Measurement,
    /// The elements of one block.
    count: usize,
    /// Operations that a round can have.
    slots: usize,
    inputs: Buffers<T>,
    outputs: Buffers<T>,
    /// Operations so far; each has data of its own.
    operations: usize,
    /// Of the operations of the last round.
    algorithm: Option<Algorithm>,
    wrong: u64,
}

impl Measurement {
    /// Measures messages of this many bytes, which are whole blocks of whole elements.
    pub(super) fn time(self, group: &ProcessGroup, bytes: usize) -> anyhow::Result<Timing> {
        let run = match self.dtype {
            DType::F32 => Self::run::<f32>,
            DType::F64 => Self::run::<f64>,
            DType::F16 => Self::run::<f16>,
            DType::BF16 => Self::run::<bf16>,
            DType::I32 => Self::run::<i32>,
            DType::I64 => Self::run::<i64>,
            DType::U8 => Self::run::<u8>,
            DType::U32 => Self::run::<u32>,
            DType::I8 => Self::run::<i8>,
            DType::I16 => Self::run::<i16>,
            DType::U16 => Self::run::<u16>,
            DType::U64 => Self::run::<u64>,
            DType::Bool => unreachable!("the command line refuses truth values"),
        };
        run(self, group, bytes)
    }

    fn run<T: Value>(self, group: &ProcessGroup, bytes: usize) -> anyhow::Result<Timing> {
        let mut run = Run::<T>::new(self, group, bytes)?;
        let batch = run.warm_up()?;
        let most = run.slots / batch;
        let round = |samples, times: &mut _| Ok(run.round(samples, batch, times)?);
        let times = self.sample(group, batch, most, round)?;
        Ok(run.report(times, batch)?)
    }

    /// Repeats a round of at most `most` samples of `batch` operations until the root says that it is enough.
    pub(super) fn sample(
        self,
        group: &ProcessGroup,
        batch: usize,
        most: usize,
        mut round: impl FnMut(usize, &mut Vec<Duration>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Duration>> {
        let started = Instant::now();
        let mut times = Vec::with_capacity(self.iters);
        loop {
            let left = self.iters.saturating_sub(times.len());
            round(if left == 0 { most } else { most.min(left) }, &mut times)?;
            let progress = Progress {
                samples: times.len(),
                timed: times.iter().sum::<Duration>() * batch as u32,
                spent: started.elapsed(),
            };
            let enough = usize::from(self.is_enough(progress));
            if agree(group, self.parameters.root, enough)? != 0 {
                return Ok(times);
            }
        }
    }

    pub(super) fn is_enough(self, progress: Progress) -> bool {
        let lasted = progress.timed >= self.time_min
            || progress.spent >= self.time_min * SPENT_PER_TIMED_MAX;
        progress.samples >= self.iters && lasted
    }

    pub(super) fn place(self, group: &ProcessGroup) -> Place {
        Place {
            me: group.rank().index(),
            ranks: group.world_size().len(),
            root: self.parameters.root.index(),
        }
    }
}

/// How many operations make a sample, if one takes so long; at most `most`.
pub(super) fn batch_of(fastest: Duration, sample_min: Duration, most: usize) -> usize {
    let batch = sample_min.as_nanos().div_ceil(fastest.as_nanos().max(1));
    batch.min(most as u128) as usize
}

pub(super) fn agree(
    group: &ProcessGroup,
    root: Rank,
    own: usize,
) -> Result<usize, CollectiveError> {
    let mut agreed = [own as u64];
    group.broadcast(&mut agreed, root)?;
    Ok(agreed[0] as usize)
}

impl Timing {
    /// Of the slowest rank each.
    pub(super) fn of_all_ranks(
        group: &ProcessGroup,
        samples: Samples,
    ) -> Result<Self, CollectiveError> {
        let count = samples.times.len();
        let mean = samples.times.iter().sum::<Duration>() / count as u32;
        let least = samples.times.iter().min().copied().unwrap_or_default();
        let own = [least, median(samples.times), mean];
        let mut times = own.map(|time| time.as_secs_f64());
        group.all_reduce(&mut times, ReduceOp::Max)?;
        let mut wrong = [samples.wrong as i64];
        group.all_reduce(&mut wrong, ReduceOp::Sum)?;
        let [min, median, mean] = times.map(Duration::from_secs_f64);
        Ok(Self {
            min,
            median,
            mean,
            samples: count,
            batch: samples.batch,
            algorithm: samples.algorithm,
            wrong: wrong[0] as u64,
        })
    }

    /// Of several measurements of one size: what is typical of them.
    pub(super) fn typical(repeats: &[Self]) -> Self {
        let first = repeats.first().expect("a size is measured at least once");
        let mut all = *first;
        for timing in &repeats[1..] {
            all.min = all.min.min(timing.min);
            all.samples += timing.samples;
            all.wrong += timing.wrong;
        }
        all.median = median(repeats.iter().map(|timing| timing.median).collect());
        all.mean = median(repeats.iter().map(|timing| timing.mean).collect());
        all
    }
}

/// The time in the middle, or between the two that are.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] } else { (times[middle - 1] + times[middle]) / 2 }
}

impl<'g, T: Value> Run<'g, T> {
    fn new(
        measurement: Measurement,
        group: &'g ProcessGroup,
        bytes: usize,
    ) -> Result<Self, CollectiveError> {
        let (place, buffers) = (measurement.place(group), measurement.buffers);
        let message_blocks = measurement.operation.blocks_per_message(place.ranks);
        let count = bytes / message_blocks.max(1) / size_of::<T>();
        let blocks = measurement.operation.blocks(place);
        let (input, output) = match measurement.form {
            Form::OutOfPlace => (blocks.input * count, blocks.output * count),
            Form::InPlace => (blocks.input.max(blocks.output) * count, 0),
        };
        // By the size of the message, so that all ranks have equally many.
        let slots = measurement.rotate_bytes.div_ceil(bytes.max(1));
        let slots = slots.clamp(2, SLOTS_MAX);
        Ok(Self {
            group,
            measurement,
            count,
            slots,
            inputs: Buffers::new(group, slots, buffers, input)?,
            outputs: Buffers::new(group, slots, buffers, output)?,
            operations: 0,
            algorithm: None,
            wrong: 0,
        })
    }

    /// Operations off the record; how many of them make a sample, agreed from the root.
    fn warm_up(&mut self) -> Result<usize, CollectiveError> {
        let mut times = Vec::new();
        let mut left = self.measurement.warmup.max(1);
        while left > 0 {
            let round = left.min(self.slots);
            self.round(round, 1, &mut times)?;
            left -= round;
        }
        let fastest = times.iter().min().copied().unwrap_or_default();
        let batch = batch_of(fastest, SAMPLE_MIN, self.slots);
        agree(self.group, self.measurement.parameters.root, batch)
    }

    /// `samples` samples of `batch` operations, each operation in buffers of its own.
    fn round(
        &mut self,
        samples: usize,
        batch: usize,
        times: &mut Vec<Duration>,
    ) -> Result<(), CollectiveError> {
        let used = samples * batch;
        let slots = self.slots;
        assert!(used <= slots, "{used} operations in {slots} buffers");
        for index in 0..used {
            let data = self.data(index);
            data.fill(self.input(index));
        }
        self.group.barrier()?;
        for sample in 0..samples {
            let started = Instant::now();
            for index in sample * batch..(sample + 1) * batch {
                self.perform(index)?;
            }
            times.push(started.elapsed() / batch as u32);
        }
        let place = self.measurement.place(self.group);
        let took_part = self.measurement.operation.takes_part(place);
        self.algorithm = self.group.last_algorithm().filter(|_| took_part);
        // Whoever is done must not take a core to verify while others are timed on it.
        self.group.barrier()?;
        for index in 0..used {
            let data = self.data(index);
            self.wrong += data.count_wrong(self.result(index));
        }
        self.operations += used;
        Ok(())
    }

    #[inline]
    fn perform(&mut self, slot: usize) -> Result<(), CollectiveError> {
        let (operation, parameters) = (self.measurement.operation, self.measurement.parameters);
        let input = self.inputs.get_mut(slot);
        match self.measurement.form {
            Form::OutOfPlace => {
                operation.perform(self.group, parameters, input, self.outputs.get_mut(slot))
            }
            Form::InPlace => operation.perform_in_place(self.group, parameters, input),
        }
    }

    fn input(&mut self, slot: usize) -> &mut [T] {
        let buffer = self.inputs.get_mut(slot);
        match self.measurement.form {
            Form::OutOfPlace => buffer,
            Form::InPlace => {
                let place = self.measurement.place(self.group);
                let start = self.measurement.operation.starts(place).input * self.count;
                let len = self.measurement.operation.blocks(place).input * self.count;
                &mut buffer[start..start + len]
            }
        }
    }

    fn result(&mut self, slot: usize) -> &[T] {
        match self.measurement.form {
            Form::OutOfPlace => self.outputs.get_mut(slot),
            Form::InPlace => {
                let place = self.measurement.place(self.group);
                let start = self.measurement.operation.starts(place).output * self.count;
                let len = self.measurement.operation.blocks(place).output * self.count;
                &self.inputs.get_mut(slot)[start..start + len]
            }
        }
    }

    fn data(&self, slot: usize) -> Data {
        Data {
            operation: self.measurement.operation,
            place: self.measurement.place(self.group),
            redop: self.measurement.parameters.redop,
            count: self.count,
            slot: self.operations + slot,
        }
    }

    fn report(self, times: Vec<Duration>, batch: usize) -> Result<Timing, CollectiveError> {
        let samples = Samples {
            times,
            batch,
            algorithm: self.algorithm.map(Algorithm::name),
            wrong: self.wrong,
        };
        Timing::of_all_ranks(self.group, samples)
    }
}

#[cfg(test)]
mod tests;
