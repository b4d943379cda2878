//! Values of gradients and parameters in host memory: what all backends have in common.
//!
//! [`HostSlice`] borrows a tensor's values, [`BucketBuffer`] is the memory of a bucket, which the ranks reduce or gather
//! together by a [`CollectiveOp`]. A [`DeviceTensor`] is a device's memory.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bonfire_collective::{
    CollectiveError, Element, GroupBuffer, ProcessGroup, Rank, ReduceOp, Work,
};
use bonfire_plan::DType;
use burn::tensor::{AllocationProperty, Bytes, DType as TensorDType, TensorData};
use half::{bf16, f16};

/// The element type of a tensor, if gradients of it can be reduced.
pub(crate) fn reducible(dtype: TensorDType) -> Option<DType> {
    match dtype {
        // Flex32 is f32 in memory.
        TensorDType::F32 | TensorDType::Flex32 => Some(DType::F32),
        TensorDType::F64 => Some(DType::F64),
        TensorDType::F16 => Some(DType::F16),
        TensorDType::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// A value for one of the element types of gradients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyFloat<A, B, C, D> {
    F32(A),
    F64(B),
    F16(C),
    BF16(D),
}

impl<A, B, C, D> AnyFloat<A, B, C, D> {
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
        }
    }
}

/// Borrowed values of a tensor or a bucket.
pub(crate) type HostSlice<'a> = AnyFloat<&'a [f32], &'a [f64], &'a [f16], &'a [bf16]>;

/// Values that are reduced: the memory of a bucket.
pub(crate) type BucketBuffer =
    AnyFloat<GroupBuffer<f32>, GroupBuffer<f64>, GroupBuffer<f16>, GroupBuffer<bf16>>;

pub(crate) type BufferWork = AnyFloat<
    Work<GroupBuffer<f32>>,
    Work<GroupBuffer<f64>>,
    Work<GroupBuffer<f16>>,
    Work<GroupBuffer<bf16>>,
>;

/// Evaluates `$body` with `$value` bound to the value of any type.
macro_rules! each {
    ($any:expr, $value:ident => $body:expr) => {
        match $any {
            AnyFloat::F32($value) => $body,
            AnyFloat::F64($value) => $body,
            AnyFloat::F16($value) => $body,
            AnyFloat::BF16($value) => $body,
        }
    };
}

/// Evaluates `$body` as [`each`], and returns it for the same type.
macro_rules! map {
    ($any:expr, $value:ident => $body:expr) => {
        match $any {
            AnyFloat::F32($value) => AnyFloat::F32($body),
            AnyFloat::F64($value) => AnyFloat::F64($body),
            AnyFloat::F16($value) => AnyFloat::F16($body),
            AnyFloat::BF16($value) => AnyFloat::BF16($body),
        }
    };
}

/// Evaluates `$body` with `$element` as the element type that `$dtype` names.
macro_rules! typed {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $element = f32;
                AnyFloat::F32($body)
            }
            DType::F64 => {
                type $element = f64;
                AnyFloat::F64($body)
            }
            DType::F16 => {
                type $element = f16;
                AnyFloat::F16($body)
            }
            DType::BF16 => {
                type $element = bf16;
                AnyFloat::BF16($body)
            }
            other => panic!("gradients are never of type {other}"),
        }
    };
}

/// Evaluates `$body` with a buffer and a source of the same type.
macro_rules! each_pair {
    ($values:expr, $source:expr, ($to:ident, $from:ident) => $body:expr) => {
        match ($values, $source) {
            (AnyFloat::F32($to), AnyFloat::F32($from)) => $body,
            (AnyFloat::F64($to), AnyFloat::F64($from)) => $body,
            (AnyFloat::F16($to), AnyFloat::F16($from)) => $body,
            (AnyFloat::BF16($to), AnyFloat::BF16($from)) => $body,
            (_, other) => panic!("a bucket takes no values of type {}", other.dtype()),
        }
    };
}

impl<'a> HostSlice<'a> {
    /// The values of a tensor; `None` if gradients cannot have their type.
    pub(crate) fn of(data: &'a TensorData) -> Option<Self> {
        Some(typed!(reducible(data.dtype())?, T => data.as_slice::<T>().ok()?))
    }

    pub(crate) fn len(self) -> usize {
        each!(self, values => values.len())
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        map!(self, values => &values[range])
    }

    pub(crate) fn to_tensor_data(self, shape: &[usize]) -> TensorData {
        each!(self, values => TensorData::new(values.to_vec(), shape))
    }
}

/// An operation of all ranks on their values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CollectiveOp {
    /// Every rank ends with the reduction.
    AllReduce(ReduceOp),
    /// Every rank ends with its own block of the reduction, of as many equal blocks as there are ranks.
    ReduceScatter(ReduceOp),
    /// Every rank has its own block, and ends with all.
    AllGather,
    /// One rank ends with the mean, and the others with undefined values.
    MeanTo(Rank),
    /// Every rank ends with the values of one rank.
    From(Rank),
}

impl CollectiveOp {
    fn run<T: Element>(self, group: &ProcessGroup, data: &mut [T]) -> Result<(), CollectiveError> {
        match self {
            Self::AllReduce(reduce) => group.all_reduce(data, reduce),
            Self::ReduceScatter(reduce) => group.reduce_scatter_in_place(data, reduce),
            Self::AllGather => group.all_gather_in_place(data),
            Self::MeanTo(owner) => group.reduce(data, owner, ReduceOp::Mean),
            Self::From(owner) => group.broadcast(data, owner),
        }
    }
}

/// Element-wise arithmetic, so that results do not depend on the assignment of parameters to buckets. In f64 for f64
/// and in f32 for all others, factors too, as in the kernels for devices; rounded once to the element.
trait Scalar: Copy {
    fn scaled(self, factor: f64) -> Self;
    fn plus(self, other: Self) -> Self;
    fn is_set(self) -> bool;
}

macro_rules! scalar {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Scalar for $type {
            fn scaled(self, factor: f64) -> Self {
                $narrow($widen(self) * factor as $wide)
            }
            fn plus(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }
            fn is_set(self) -> bool {
                $widen(self) != 0.0
            }
        }
    };
}
scalar!(f32, f32, |x| x, |x| x);
scalar!(f64, f64, |x| x, |x| x);
scalar!(f16, f32, f16::to_f32, f16::from_f32);
scalar!(bf16, f32, bf16::to_f32, bf16::from_f32);

/// The factor of a gradient that enters a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    One,
    /// Not one, because the micro-batches of the step have different weights.
    By(f64),
}

impl BucketBuffer {
    /// `len` zeros, in memory of this rank alone.
    ///
    /// # Panics
    /// If the type is not one of those that gradients have.
    pub(crate) fn zeros(dtype: DType, len: usize) -> Self {
        typed!(dtype, T => vec![T::default(); len].into())
    }

    /// [`zeros`](Self::zeros) in memory that the other ranks can reach, if there is any: they are then
    /// averaged in place.
    ///
    /// # Panics
    /// If the type is not one of those that gradients have.
    pub(crate) fn shared(group: &ProcessGroup, dtype: DType, len: usize) -> Self {
        let shared =
            || -> Result<Self, CollectiveError> { Ok(typed!(dtype, T => group.buffer::<T>(len)?)) };
        shared().unwrap_or_else(|error| {
            tracing::debug!(target: "bonfire", "a bucket in ordinary memory: {error}");
            Self::zeros(dtype, len)
        })
    }

    pub(crate) fn len(&self) -> usize {
        each!(self, values => values.len())
    }

    /// Overwrites `target` with `source`, times `scale`.
    ///
    /// # Panics
    /// If the lengths or the types differ.
    pub(crate) fn set(&mut self, target: Range<usize>, source: HostSlice<'_>, scale: Scale) {
        each_pair!(self, source, (to, from) => set(&mut to[target], from, scale));
    }

    /// Adds `source` to `target`, times `scale`.
    ///
    /// # Panics
    /// If the lengths or the types differ.
    pub(crate) fn add(&mut self, target: Range<usize>, source: HostSlice<'_>, scale: Scale) {
        each_pair!(self, source, (to, from) => add(&mut to[target], from, scale));
    }

    pub(crate) fn clear(&mut self, target: Range<usize>) {
        each!(self, values => values[target].fill(Default::default()));
    }

    /// Sets the elements from `start` on to ones and zeros.
    ///
    /// # Panics
    /// If there are fewer elements than flags.
    pub(crate) fn set_flags(&mut self, start: usize, flags: &[bool]) {
        each!(self, values => {
            let values = &mut values[start..start + flags.len()];
            let pairs = values.iter_mut().zip(flags);
            pairs.for_each(|(value, &flag)| *value = u8::from(flag).into());
        });
    }

    /// For each element of a range, true if it is not zero: in the mean of flags, those that any rank has set.
    pub(crate) fn flags(&self, range: Range<usize>) -> Vec<bool> {
        each!(self, values => {
            values[range].iter().map(|value| value.is_set()).collect()
        })
    }

    pub(crate) fn scale(&mut self, factor: f64) {
        each!(self, values => {
            values.iter_mut().for_each(|value| *value = value.scaled(factor));
        });
    }

    pub(crate) fn slice(&self, range: Range<usize>) -> HostSlice<'_> {
        map!(self, values => &values[range])
    }

    /// Some of them as the content of a tensor, which shares this memory. A write to such a tensor copies it, so the
    /// values stay unchanged.
    pub(crate) fn view(self: &Arc<Self>, range: Range<usize>, shape: &[usize]) -> TensorData {
        let values = self.slice(range.clone());
        // Nothing lies nowhere.
        if values.is_empty() {
            return values.to_tensor_data(shape);
        }
        let dtype = match values {
            HostSlice::F32(_) => TensorDType::F32,
            HostSlice::F64(_) => TensorDType::F64,
            HostSlice::F16(_) => TensorDType::F16,
            HostSlice::BF16(_) => TensorDType::BF16,
        };
        let bytes = range.start * dtype.size()..range.end * dtype.size();
        let some = bytes::Bytes::from_owner(BufferView(Arc::clone(self))).slice(bytes);
        let some = Bytes::from_shared(some, AllocationProperty::Other);
        TensorData::from_bytes(some, shape, dtype)
    }

    /// Some runs of elements, one after the other, as the content of a tensor.
    pub(crate) fn to_tensor_data(&self, runs: &[Range<usize>], shape: &[usize]) -> TensorData {
        each!(self, values => {
            let mut all = Vec::with_capacity(runs.iter().map(Range::len).sum());
            runs.iter().for_each(|run| all.extend_from_slice(&values[run.clone()]));
            TensorData::new(all, shape)
        })
    }

    /// Runs an operation of all ranks on the first `len` elements.
    ///
    /// # Errors
    /// Those of the operation.
    #[track_caller]
    pub(crate) fn run(
        &mut self,
        group: &ProcessGroup,
        len: usize,
        operation: CollectiveOp,
    ) -> Result<(), CollectiveError> {
        each!(self, values => operation.run(group, &mut values[..len]))
    }

    pub(crate) fn as_f32_mut(&mut self) -> &mut [f32] {
        match self {
            Self::F32(values) => values,
            other => panic!("{} values are not f32", other.dtype()),
        }
    }

    /// Starts an operation of all ranks on the first `len` values.
    #[track_caller]
    pub(crate) fn start(
        self,
        group: &ProcessGroup,
        len: usize,
        operation: CollectiveOp,
    ) -> BufferWork {
        self.start_then(group, len, operation, None)
    }

    /// Starts an operation, and then takes the mean of some of the values over the ranks of another group.
    #[track_caller]
    pub(crate) fn start_then(
        self,
        group: &ProcessGroup,
        len: usize,
        operation: CollectiveOp,
        mean: Option<(ProcessGroup, Range<usize>)>,
    ) -> BufferWork {
        map!(self, values => group.background(values, move |group, data| {
            operation.run(group, &mut data[..len])?;
            match mean {
                Some((group, some)) => group.all_reduce(&mut data[some], ReduceOp::Mean),
                None => Ok(()),
            }
        }))
    }

    /// A copy of some values, in memory of this rank alone.
    pub(crate) fn copy(&self, range: Range<usize>) -> Self {
        let mut copy = Self::zeros(self.dtype(), range.len());
        copy.set(0..range.len(), self.slice(range), Scale::One);
        copy
    }
}

struct BufferView(Arc<BucketBuffer>);

impl AsRef<[u8]> for BufferView {
    fn as_ref(&self) -> &[u8] {
        each!(&*self.0, values => bytemuck::cast_slice(values))
    }
}

impl BufferWork {
    pub(crate) fn wait(self) -> Result<BucketBuffer, CollectiveError> {
        Ok(map!(self, work => work.wait()?))
    }
}

/// A tensor's elements on the device, in row-major order, in a form that its engine knows.
pub(crate) struct DeviceTensor {
    pub dtype: DType,
    pub elems: usize,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "nothing of this build reads it"))]
    pub memory: Arc<dyn Any + Send + Sync>,
    /// Keeps others from writing to the memory.
    pub reader: Option<Reader>,
}

impl DeviceTensor {
    /// The same memory, without its reader.
    pub(crate) fn shared(&self) -> Self {
        let Self { dtype, elems, ref memory, .. } = *self;
        Self { dtype, elems, memory: Arc::clone(memory), reader: None }
    }
}

/// A guard during whose life a tensor's memory is not written in place.
pub(crate) type Reader = Box<dyn Any + Send + Sync>;

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} x {})", self.dtype, self.elems)
    }
}

const LENGTHS: &str = "a gradient must fill its slot";

fn set<T: Scalar>(target: &mut [T], source: &[T], scale: Scale) {
    assert_eq!(target.len(), source.len(), "{LENGTHS}");
    match scale {
        Scale::One => target.copy_from_slice(source),
        Scale::By(factor) => {
            for (target, source) in target.iter_mut().zip(source) {
                *target = source.scaled(factor);
            }
        }
    }
}

fn add<T: Scalar>(target: &mut [T], source: &[T], scale: Scale) {
    assert_eq!(target.len(), source.len(), "{LENGTHS}");
    let pairs = target.iter_mut().zip(source);
    match scale {
        Scale::One => pairs.for_each(|(target, source)| *target = target.plus(*source)),
        Scale::By(factor) => {
            pairs.for_each(|(target, source)| *target = target.plus(source.scaled(factor)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quarters(dtype: DType) -> TensorData {
        let data = TensorData::from([0.25_f32, -0.5, 3.0]);
        match dtype {
            DType::F64 => data.convert::<f64>(),
            DType::F16 => data.convert::<f16>(),
            DType::BF16 => data.convert::<bf16>(),
            _ => data,
        }
    }

    /// With values that every type can hold exactly.
    #[test]
    fn arithmetic_works_in_every_type() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let data = quarters(dtype);
            let source = HostSlice::of(&data).unwrap();
            assert_eq!((source.dtype(), source.len()), (dtype, 3));
            let mut values = BucketBuffer::zeros(dtype, 5);
            values.set(1..4, source, Scale::By(2.0));
            values.add(1..4, source, Scale::One);
            values.add(1..4, source, Scale::By(-1.0));
            values.scale(0.5);
            values.clear(3..4);
            let found = values.slice(0..5).to_tensor_data(&[5]).convert::<f32>();
            assert_eq!(found.as_slice::<f32>().unwrap(), [0.0, 0.25, -0.5, 0.0, 0.0]);
        }
    }

    #[test]
    fn arithmetic_is_elementwise() {
        let source = BucketBuffer::F32(vec![1.0, 2.0].into());
        let mut values = BucketBuffer::zeros(DType::F32, 3);
        values.set(1..3, source.slice(0..2), Scale::By(2.0));
        values.add(1..3, source.slice(0..2), Scale::One);
        values.scale(1.0 / 3.0);
        let data = values.slice(0..3).to_tensor_data(&[3]);
        assert_eq!(data.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0]);
    }
}
