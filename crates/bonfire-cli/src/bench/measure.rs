//! Times one message size: rotating buffers, every result verified off the clock.

use std::ops::Range;
use std::time::{Duration, Instant};

use bonfire_collective::{Algorithm, CollectiveError, DType, ProcessGroup, Rank, ReduceOp};

use super::buffers::{Buffers, Home};
use super::data::{Data, Value};
use super::layout::{Blocks, Form, Parameters, Place};
use crate::operation::Operation;

/// Buffers rotate through no more than this many, which small messages would reach.
const SLOTS_MAX: usize = 512;

/// A sample is at least this long, so that reading the clock is a small part of it. Short operations
/// are timed in batches.
const SAMPLE_MIN: Duration = Duration::from_micros(20);

/// A measurement ends early when it has taken this many times its least time, untimed work
/// included: in a group of one rank, the operations take next to no time.
const SPENT_PER_TIMED_MAX: u32 = 10;

/// A call in which a name stands for the Rust type of an element type.
macro_rules! by_type {
    ($dtype:expr, $name:ident => $call:expr) => {
        by_type!($dtype, $name => $call; F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, I8 i8,
            I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
    ($dtype:expr, $name:ident => $call:expr; $($known:ident $type:ty),+) => {
        match $dtype {
            $(DType::$known => {
                type $name = $type;
                $call
            })+
            DType::Bool => unreachable!("the command line refuses truth values"),
        }
    };
}

#[cfg(feature = "cuda")]
pub(super) use by_type;

/// The sizes in bytes, each rounded up to whole blocks of whole elements.
pub(super) fn whole_blocks(mut sizes: Vec<usize>, block_bytes: usize) -> Vec<usize> {
    if block_bytes == 0 {
        return vec![0];
    }
    sizes.iter_mut().for_each(|bytes| *bytes = bytes.next_multiple_of(block_bytes));
    sizes.dedup();
    sizes
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
        by_type!(self.dtype, T => self.run::<T>(group, bytes))
    }

    fn run<T: Value>(self, group: &ProcessGroup, bytes: usize) -> anyhow::Result<Timing> {
        let mut run = Run::<T>::new(self, group, bytes)?;
        let batch = run.warm_up()?;
        let most = run.slots / batch;
        let round = |samples, times: &mut _| Ok(run.round(samples, batch, times)?);
        let times = self.sample(group, batch, most, round)?;
        let algorithm = run.algorithm.map(Algorithm::name);
        let samples = Samples { times, batch, algorithm, wrong: run.wrong };
        Ok(Timing::of_all_ranks(group, samples)?)
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

    /// The data of an operation of the run, of blocks of `count` elements.
    pub(super) fn data(self, group: &ProcessGroup, count: usize, slot: usize) -> Data {
        let Self { operation, parameters: Parameters { redop, .. }, .. } = self;
        Data { operation, place: self.place(group), redop, count, slot }
    }

    /// How many buffers messages of this many bytes rotate through: by their size, so that all ranks have equally many.
    pub(super) fn slots(self, bytes: usize) -> usize {
        self.rotate_bytes.div_ceil(bytes.max(1)).clamp(2, SLOTS_MAX)
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
        let slots = measurement.slots(bytes);
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
            let data = self.measurement.data(self.group, self.count, self.operations + index);
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
            let data = self.measurement.data(self.group, self.count, self.operations + index);
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
        let part = self.part(|blocks| blocks.input);
        &mut self.inputs.get_mut(slot)[part]
    }

    fn result(&mut self, slot: usize) -> &[T] {
        let part = self.part(|blocks| blocks.output);
        match self.measurement.form {
            Form::OutOfPlace => &self.outputs.get_mut(slot)[part],
            Form::InPlace => &self.inputs.get_mut(slot)[part],
        }
    }

    /// Where the input or the output is in its buffer.
    fn part(&self, which: fn(Blocks) -> usize) -> Range<usize> {
        let (place, operation) = (self.measurement.place(self.group), self.measurement.operation);
        let start = match self.measurement.form {
            Form::OutOfPlace => 0,
            Form::InPlace => which(operation.starts(place)) * self.count,
        };
        start..start + which(operation.blocks(place)) * self.count
    }
}

#[cfg(test)]
mod tests;
