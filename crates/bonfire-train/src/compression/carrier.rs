//! The message that is sent for a bucket in place of its values.

use std::ops::Range;

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use bonfire_plan::DType;

use super::matrix::Dims;
use super::power_sgd::{PowerSgd, Presence};
use super::{Compressor, cast};
use crate::values::{BucketBuffer, BufferWork, CollectiveOp};

/// The memory that is sent for one bucket. It is made with the bucket and used in every step.
#[derive(Debug)]
pub(crate) struct Carrier(Kind);

#[derive(Debug)]
enum Kind {
    Direct,
    SixteenBits(Payload),
    /// Thin factors of the matrices, and everything else as it is.
    LowRank(Box<LowRank>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Nothing,
    Instead,
}

pub(crate) type Place = (usize, Range<usize>);

impl Carrier {
    /// The carrier of a bucket whose parameters have these places.
    pub(crate) fn new(
        compressor: &Compressor,
        dtype: DType,
        places: &[Place],
        group: &ProcessGroup,
    ) -> Self {
        let elems = places.last().map_or(0, |(_, range)| range.end);
        if let Some(narrow) = compressor.compression.sixteen_bits(dtype) {
            return Self(Kind::SixteenBits(Payload::new(group, narrow, elems)));
        }
        Self(match &compressor.power_sgd {
            Some(power_sgd) if places.iter().any(|(p, _)| power_sgd.dims(*p).is_some()) => {
                Kind::LowRank(Box::new(LowRank::new(power_sgd, places, group)))
            }
            _ => Kind::Direct,
        })
    }

    /// Sends the message for `values`, which are this rank's share of the mean.
    #[track_caller]
    pub(crate) fn send(
        &mut self,
        values: &mut BucketBuffer,
        group: &ProcessGroup,
        compressor: &mut Compressor,
    ) -> Sent {
        match (&mut self.0, &mut compressor.power_sgd) {
            (Kind::SixteenBits(parcel), _) => {
                // Divided first: no sum of the ranks then overflows where their mean does not.
                values.scale(1.0 / f64::from(group.world_size().get()));
                parcel.fill(|narrow| cast(values, narrow));
                parcel.send(group, ReduceOp::Sum);
                Sent::Instead
            }
            (Kind::LowRank(low_rank), Some(power_sgd)) if power_sgd.is_on() => {
                low_rank.send_left(values.as_f32_mut(), group, power_sgd);
                Sent::Instead
            }
            _ => Sent::Nothing,
        }
    }

    /// Sends the second half of the message for `values`, if there is one, when the first has arrived. Every rank must
    /// call it, for all buckets in one order.
    #[track_caller]
    pub(crate) fn advance(
        &mut self,
        values: &mut BucketBuffer,
        group: &ProcessGroup,
        compressor: &mut Compressor,
    ) -> Result<(), CollectiveError> {
        match (&mut self.0, &mut compressor.power_sgd) {
            (Kind::LowRank(low_rank), Some(power_sgd)) => {
                low_rank.send_right(values.as_f32_mut(), group, power_sgd)
            }
            _ => Ok(()),
        }
    }

    /// Waits, and replaces `values` by the result.
    pub(crate) fn receive(
        &mut self,
        values: &mut BucketBuffer,
        compressor: &mut Compressor,
        presence: impl Fn(usize) -> Presence,
    ) -> Result<(), CollectiveError> {
        match (&mut self.0, &mut compressor.power_sgd) {
            (Kind::SixteenBits(parcel), _) => {
                cast(parcel.receive()?, values);
                Ok(())
            }
            (Kind::LowRank(low_rank), Some(power_sgd)) => {
                low_rank.receive(values.as_f32_mut(), power_sgd, presence)
            }
            _ => panic!("what was not sent does not come back"),
        }
    }
}

/// Memory that is here or in an operation.
#[derive(Debug)]
enum Payload {
    Here(BucketBuffer),
    Away(BufferWork),
    Lost,
}

impl Payload {
    fn new(group: &ProcessGroup, dtype: DType, elems: usize) -> Self {
        Self::Here(BucketBuffer::shared(group, dtype, elems))
    }

    fn here(&mut self) -> &mut BucketBuffer {
        match self {
            Self::Here(values) => values,
            Self::Away(_) | Self::Lost => panic!("a parcel that is away is not touched"),
        }
    }

    fn fill(&mut self, fill: impl FnOnce(&mut BucketBuffer)) {
        fill(self.here());
    }

    #[track_caller]
    fn send(&mut self, group: &ProcessGroup, reduce: ReduceOp) {
        let Self::Here(values) = std::mem::replace(self, Self::Lost) else {
            panic!("a payload is sent once at a time");
        };
        let len = values.len();
        *self = Self::Away(values.start(group, len, CollectiveOp::AllReduce(reduce)));
    }

    fn receive(&mut self) -> Result<&mut BucketBuffer, CollectiveError> {
        let Self::Away(work) = std::mem::replace(self, Self::Lost) else {
            panic!("only a parcel that is away comes back");
        };
        *self = Self::Here(work.wait()?);
        Ok(self.here())
    }
}

/// A bucket with matrices: the left factors and all uncompressed values are sent first, then the right factors.
#[derive(Debug)]
struct LowRank {
    pieces: Vec<Piece>,
    first: Payload,
    second: Payload,
}

/// A parameter, with its places in the bucket and in the message.
#[derive(Clone, Debug)]
enum Piece {
    Matrix {
        parameter: usize,
        values: Range<usize>,
        left: Range<usize>,
        right: Range<usize>,
    },
    Plain {
        values: Range<usize>,
        first: Range<usize>,
    },
}

/// The next `len` elements behind `end`.
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
                None => Piece::Plain {
                    first: next(&mut first, values.len()),
                    values,
                },
            }
        };
        Self {
            pieces: places.iter().map(piece).collect(),
            first: Payload::new(group, DType::F32, first),
            second: Payload::new(group, DType::F32, second),
        }
    }

    #[track_caller]
    fn send_left(&mut self, bucket: &mut [f32], group: &ProcessGroup, power_sgd: &mut PowerSgd) {
        let memory = self.first.here().as_f32_mut();
        for piece in &self.pieces {
            match piece.clone() {
                Piece::Matrix {
                    parameter,
                    values,
                    left,
                    ..
                } => power_sgd.project(parameter, &mut bucket[values], &mut memory[left]),
                Piece::Plain { values, first } => {
                    memory[first].copy_from_slice(&bucket[values]);
                }
            }
        }
        self.first.send(group, ReduceOp::Mean);
    }

    #[track_caller]
    fn send_right(
        &mut self,
        bucket: &mut [f32],
        group: &ProcessGroup,
        power_sgd: &mut PowerSgd,
    ) -> Result<(), CollectiveError> {
        let first = self.first.receive()?.as_f32_mut();
        let second = self.second.here().as_f32_mut();
        for piece in &self.pieces {
            match piece.clone() {
                Piece::Matrix {
                    parameter,
                    values,
                    left,
                    right,
                } => {
                    let (left, right) = (&mut first[left], &mut second[right]);
                    power_sgd.reflect(parameter, &bucket[values], left, right);
                }
                Piece::Plain { values, first: at } => bucket[values].copy_from_slice(&first[at]),
            }
        }
        self.second.send(group, ReduceOp::Mean);
        Ok(())
    }

    fn receive(
        &mut self,
        bucket: &mut [f32],
        power_sgd: &mut PowerSgd,
        presence: impl Fn(usize) -> Presence,
    ) -> Result<(), CollectiveError> {
        let second = self.second.receive()?.as_f32_mut();
        let first = self.first.here().as_f32_mut();
        for piece in &self.pieces {
            if let Piece::Matrix {
                parameter,
                values,
                left,
                right,
            } = piece.clone()
            {
                power_sgd.finish(
                    parameter,
                    &mut bucket[values],
                    &first[left],
                    &second[right],
                    presence(parameter),
                );
            }
        }
        Ok(())
    }
}
