//! The form in which a bucket's values are sent.

use std::ops::Range;

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use bonfire_plan::DType;

use super::matrix::Dims;
use super::power_sgd::{PowerSgd, Presence};
use super::{Compressor, cast};
use crate::values::{BucketBuffer, BufferWork, CollectiveOp};

/// The form of one bucket's values, with memory for messages that is used in every step.
#[derive(Debug)]
pub(crate) enum Codec {
    /// Values are sent as they are.
    None,
    /// Values are rounded to 16 bits.
    Half(Memory),
    /// Thin factors of the matrices, and everything else as it is.
    PowerSgd(Box<LowRank>),
}

#[derive(Debug)]
pub(crate) enum Message {
    Half(BufferWork),
    /// The left factors, and the values that are not compressed.
    Left(BufferWork),
    /// The right factors, behind the received left ones.
    Right {
        left: BucketBuffer,
        right: BufferWork,
    },
}

pub(crate) type Place = (usize, Range<usize>);

impl Codec {
    /// The codec of a bucket whose parameters have these places.
    pub(crate) fn new(
        compressor: &Compressor,
        dtype: DType,
        places: &[Place],
        group: &ProcessGroup,
    ) -> Self {
        let elems = places.last().map_or(0, |(_, range)| range.end);
        if let Some(narrow) = compressor.compression.sixteen_bits(dtype) {
            return Self::Half(Memory::new(group, narrow, elems));
        }
        match &compressor.power_sgd {
            Some(power_sgd) if places.iter().any(|(p, _)| power_sgd.dims(*p).is_some()) => {
                Self::PowerSgd(Box::new(LowRank::new(power_sgd, places, group)))
            }
            _ => Self::None,
        }
    }

    /// Sends the message for `values`, which are this rank's share of the mean; `None` if they are to be sent as they
    /// are.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        values: &mut BucketBuffer,
        group: &ProcessGroup,
        compressor: &mut Compressor,
    ) -> Option<Message> {
        match (self, &mut compressor.power_sgd) {
            (Self::Half(memory), _) => {
                // Divided first: no sum of the ranks then overflows where their mean does not.
                values.scale(1.0 / f64::from(group.world_size().get()));
                let mut narrow = memory.take(group);
                cast(values, &mut narrow);
                Some(Message::Half(started(narrow, group, ReduceOp::Sum)))
            }
            (Self::PowerSgd(low_rank), Some(power_sgd)) if power_sgd.is_on() => {
                Some(low_rank.send_left(values.as_f32_mut(), group, power_sgd))
            }
            _ => None,
        }
    }

    /// Sends the second half of the message for `values`, if there is one, when the first has arrived. Every rank must
    /// call it, for all buckets in one order.
    #[track_caller]
    pub(crate) fn advance(
        &mut self,
        message: Message,
        values: &mut BucketBuffer,
        group: &ProcessGroup,
        compressor: &mut Compressor,
    ) -> Result<Message, CollectiveError> {
        match (self, message, &mut compressor.power_sgd) {
            (Self::PowerSgd(low_rank), Message::Left(left), Some(power_sgd)) => {
                let left = left.wait()?;
                Ok(low_rank.send_right(left, values.as_f32_mut(), group, power_sgd))
            }
            (_, message, _) => Ok(message),
        }
    }

    /// Waits, and replaces `values` by the result.
    pub(crate) fn receive(
        &mut self,
        message: Message,
        values: &mut BucketBuffer,
        compressor: &mut Compressor,
        presence: impl Fn(usize) -> Presence,
    ) -> Result<(), CollectiveError> {
        match (self, message, &mut compressor.power_sgd) {
            (Self::Half(memory), Message::Half(work), _) => {
                cast(memory.keep(work.wait()?), values);
            }
            (Self::PowerSgd(low_rank), Message::Right { left, right }, Some(power_sgd)) => {
                let right = right.wait()?;
                low_rank.finish(left, right, values.as_f32_mut(), power_sgd, presence);
            }
            (_, message, _) => unreachable!("a codec receives what it has sent: {message:?}"),
        }
        Ok(())
    }
}

#[track_caller]
fn started(message: BucketBuffer, group: &ProcessGroup, reduce: ReduceOp) -> BufferWork {
    let len = message.len();
    message.start(group, len, CollectiveOp::AllReduce(reduce))
}

/// Memory for a message, which an operation takes along.
#[derive(Debug)]
pub(crate) struct Memory {
    dtype: DType,
    elems: usize,
    buffer: Option<BucketBuffer>,
}

impl Memory {
    fn new(group: &ProcessGroup, dtype: DType, elems: usize) -> Self {
        Self { dtype, elems, buffer: Some(BucketBuffer::shared(group, dtype, elems)) }
    }

    fn take(&mut self, group: &ProcessGroup) -> BucketBuffer {
        let buffer = self.buffer.take();
        buffer.unwrap_or_else(|| BucketBuffer::shared(group, self.dtype, self.elems))
    }

    fn keep(&mut self, buffer: BucketBuffer) -> &mut BucketBuffer {
        self.buffer.insert(buffer)
    }
}

/// A bucket with matrices: the left factors and all uncompressed values are sent first, then the right factors.
#[derive(Debug)]
pub(crate) struct LowRank {
    pieces: Vec<Piece>,
    left: Memory,
    right: Memory,
}

/// A parameter, with its places in the bucket and in the messages.
#[derive(Clone, Debug)]
enum Piece {
    Matrix { parameter: usize, values: Range<usize>, left: Range<usize>, right: Range<usize> },
    Plain { values: Range<usize>, first: Range<usize> },
}

fn next(end: &mut usize, len: usize) -> Range<usize> {
    let start = std::mem::replace(end, *end + len);
    start..*end
}

impl LowRank {
    fn new(power_sgd: &PowerSgd, places: &[Place], group: &ProcessGroup) -> Self {
        let (mut first, mut second) = (0, 0);
        let piece = |(parameter, values): &Place| -> Piece {
            let values = values.clone();
            match power_sgd.dims(*parameter) {
                Some(dims) => {
                    assert_eq!(dims.elems(), values.len(), "a matrix fills its place");
                    Piece::Matrix {
                        parameter: *parameter,
                        values,
                        left: next(&mut first, Dims::left_elems(dims)),
                        right: next(&mut second, Dims::right_elems(dims)),
                    }
                }
                None => Piece::Plain { first: next(&mut first, values.len()), values },
            }
        };
        Self {
            pieces: places.iter().map(piece).collect(),
            left: Memory::new(group, DType::F32, first),
            right: Memory::new(group, DType::F32, second),
        }
    }

    #[track_caller]
    fn send_left(
        &mut self,
        bucket: &mut [f32],
        group: &ProcessGroup,
        power_sgd: &mut PowerSgd,
    ) -> Message {
        let mut message = self.left.take(group);
        let memory = message.as_f32_mut();
        for piece in &self.pieces {
            match piece.clone() {
                Piece::Matrix { parameter, values, left, .. } => {
                    power_sgd.project(parameter, &mut bucket[values], &mut memory[left])
                }
                Piece::Plain { values, first } => {
                    memory[first].copy_from_slice(&bucket[values]);
                }
            }
        }
        Message::Left(started(message, group, ReduceOp::Mean))
    }

    /// Sends the right factors that follow from the received left ones.
    #[track_caller]
    fn send_right(
        &mut self,
        mut received: BucketBuffer,
        bucket: &mut [f32],
        group: &ProcessGroup,
        power_sgd: &mut PowerSgd,
    ) -> Message {
        let first = received.as_f32_mut();
        let mut message = self.right.take(group);
        let second = message.as_f32_mut();
        for piece in &self.pieces {
            match piece.clone() {
                Piece::Matrix { parameter, values, left, right } => {
                    let (left, right) = (&mut first[left], &mut second[right]);
                    power_sgd.reflect(parameter, &bucket[values], left, right);
                }
                Piece::Plain { values, first: at } => bucket[values].copy_from_slice(&first[at]),
            }
        }
        Message::Right { left: received, right: started(message, group, ReduceOp::Mean) }
    }

    /// Replaces the values by the product of received factors.
    fn finish(
        &mut self,
        left: BucketBuffer,
        right: BucketBuffer,
        bucket: &mut [f32],
        power_sgd: &mut PowerSgd,
        presence: impl Fn(usize) -> Presence,
    ) {
        let first = self.left.keep(left).as_f32_mut();
        let second = self.right.keep(right).as_f32_mut();
        for piece in &self.pieces {
            if let Piece::Matrix { parameter, values, left, right } = piece.clone() {
                power_sgd.finish(
                    parameter,
                    &mut bucket[values],
                    &first[left],
                    &second[right],
                    presence(parameter),
                );
            }
        }
    }
}
