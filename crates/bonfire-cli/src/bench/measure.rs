//! Times one message size: rotating buffers, every result verified off the clock.

use std::time::{Duration, Instant};

use bonfire_collective::{CollectiveError, DType, ProcessGroup, ReduceOp};
use half::{bf16, f16};

use super::value::{Value, limit, number};

/// Buffers rotate through at least this much memory per rank, beyond common last-level caches.
const ROTATE_BYTES: usize = 192 << 20;

/// But through no more buffers than this, which small messages would reach.
const BUFFERS_MAX: usize = 64;

/// The message sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) min_bytes: usize,
    pub(super) max_bytes: usize,
    pub(super) step_factor: usize,
}

impl Sizes {
    /// The sizes in bytes, each rounded up to whole elements.
    pub(super) fn list(self, dtype: DType) -> Vec<usize> {
        let mut sizes = Vec::new();
        let mut bytes = self.min_bytes;
        while bytes <= self.max_bytes {
            sizes.push(bytes.next_multiple_of(dtype.size_bytes()));
            let Some(next) = bytes.checked_mul(self.step_factor) else {
                break;
            };
            bytes = next;
        }
        sizes.dedup();
        sizes
    }
}

/// How each size is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    pub(super) redop: ReduceOp,
    pub(super) iters: u32,
    pub(super) warmup: u32,
}

/// The result for one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) dtype: DType,
    pub(super) redop: ReduceOp,
    /// Mean time of one operation on the slowest rank.
    pub(super) time: Duration,
    /// Wrong elements over all iterations and ranks.
    pub(super) wrong: u64,
}

impl Measurement {
    pub(super) fn all_reduce(
        self,
        group: &ProcessGroup,
        dtype: DType,
        bytes: usize,
    ) -> Result<Row, CollectiveError> {
        let run = match dtype {
            DType::F32 => Self::run::<f32>,
            DType::F64 => Self::run::<f64>,
            DType::F16 => Self::run::<f16>,
            DType::BF16 => Self::run::<bf16>,
            DType::I32 => Self::run::<i32>,
            DType::I64 => Self::run::<i64>,
            DType::U8 => Self::run::<u8>,
            DType::U32 => Self::run::<u32>,
        };
        let count = bytes / dtype.size_bytes();
        let (time, wrong) = run(self, group, count)?;
        Ok(Row {
            bytes,
            count,
            dtype,
            redop: self.redop,
            time,
            wrong,
        })
    }

    fn run<T: Value>(
        self,
        group: &ProcessGroup,
        count: usize,
    ) -> Result<(Duration, u64), CollectiveError> {
        let bytes = (count * size_of::<T>()).max(1);
        let wanted = ROTATE_BYTES.div_ceil(bytes).clamp(2, BUFFERS_MAX);
        let mut buffers: Vec<Vec<T>> = vec![vec![T::zeroed(); count]; wanted];
        let mut elapsed = Duration::ZERO;
        let mut wrong = 0;
        self.fill(group, &mut buffers);
        for index in 0..self.warmup as usize {
            let warm = index % buffers.len();
            group.all_reduce(&mut buffers[warm], self.redop)?;
        }
        let mut left = self.iters as usize;
        while left > 0 {
            let round = left.min(buffers.len());
            self.fill(group, &mut buffers[..round]);
            group.barrier()?;
            let started = Instant::now();
            for buffer in &mut buffers[..round] {
                group.all_reduce(buffer, self.redop)?;
            }
            elapsed += started.elapsed();
            wrong += self.count_wrong(group, &buffers[..round]);
            left -= round;
        }
        let mut slowest = [elapsed.as_secs_f64() / f64::from(self.iters)];
        group.all_reduce(&mut slowest, ReduceOp::Max)?;
        let mut total_wrong = [wrong];
        group.all_reduce(&mut total_wrong, ReduceOp::Sum)?;
        Ok((Duration::from_secs_f64(slowest[0]), total_wrong[0] as u64))
    }

    fn fill<T: Value>(self, group: &ProcessGroup, buffers: &mut [Vec<T>]) {
        let limit = limit(group.world_size().len());
        let me = group.rank().index();
        for (buffer, elements) in buffers.iter_mut().enumerate() {
            for (index, element) in elements.iter_mut().enumerate() {
                *element = T::from_number(f64::from(number(me, index, buffer, limit)));
            }
        }
    }

    fn count_wrong<T: Value>(self, group: &ProcessGroup, buffers: &[Vec<T>]) -> i64 {
        let ranks = group.world_size().len();
        let limit = limit(ranks);
        let mut wrong = 0;
        for (buffer, elements) in buffers.iter().enumerate() {
            // The numbers repeat every `limit` indices.
            let expected: Vec<T> = (0..limit as usize)
                .map(|index| {
                    let numbers: Vec<u32> = (0..ranks)
                        .map(|rank| number(rank, index, buffer, limit))
                        .collect();
                    T::expected(&numbers, self.redop)
                })
                .collect();
            for (element, expected) in elements.iter().zip(expected.iter().cycle()) {
                wrong += i64::from(element != expected);
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_collective::{GroupOptions, WorldSize};

    #[test]
    fn sizes_step_up_to_the_largest() {
        let sizes = Sizes {
            min_bytes: 2,
            max_bytes: 64,
            step_factor: 2,
        };
        assert_eq!(sizes.list(DType::F32), [4, 8, 16, 32, 64]);
        assert_eq!(sizes.list(DType::U8), [2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn every_type_and_reduction_is_right_and_a_wrong_element_is_counted() {
        let types = [
            DType::F32,
            DType::F64,
            DType::F16,
            DType::BF16,
            DType::I32,
            DType::I64,
            DType::U8,
            DType::U32,
        ];
        let one = ProcessGroup::local(WorldSize::new(1).unwrap(), GroupOptions::default());
        let group = one.unwrap().remove(0);
        for dtype in types {
            for redop in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max] {
                let measurement = Measurement {
                    redop,
                    iters: 2,
                    warmup: 1,
                };
                let row = measurement.all_reduce(&group, dtype, 1024).unwrap();
                assert_eq!(row.wrong, 0, "{redop} of {dtype}");
            }
        }
        let measurement = Measurement {
            redop: ReduceOp::Sum,
            iters: 1,
            warmup: 0,
        };
        let mut buffers = vec![vec![0.0_f32; 100]];
        measurement.fill(&group, &mut buffers);
        assert_eq!(measurement.count_wrong(&group, &buffers), 0);
        buffers[0][42] += 1.0;
        assert_eq!(measurement.count_wrong(&group, &buffers), 1);
    }
}
