//! What NCCL needs to know of an operation.

use bonfire_cuda::nccl::{NcclOp, NcclType};
use bonfire_cuda::{CudaError, Span};
use bonfire_plan::{DType, Rank, ReduceOp, WorldSize, shard_range};

use crate::error::{CudaGroupError, Result};
use crate::request::elements::Elements;

pub(crate) fn shards(
    data: &Span,
    elements: &Elements,
    world_size: WorldSize,
) -> Result<Vec<(u32, Span)>, CudaError> {
    let bytes = elements.dtype.size_bytes();
    let shard = |rank| shard_range(elements.count(), world_size, rank);
    let part = |rank: Rank| {
        let (start, end) = (shard(rank).start() * bytes, shard(rank).end() * bytes);
        Ok((rank.get(), data.part(start..end)?))
    };
    let ranks = world_size.ranks();
    let owners = ranks.filter(|rank| !shard(*rank).is_empty());
    owners.map(part).collect()
}

/// How NCCL does a reduction. A bool is a byte that is 0 or 1: there, and is the smaller, or the larger.
pub(crate) fn kind(dtype: DType, reduce: ReduceOp) -> Result<(NcclType, NcclOp)> {
    reduce.require(dtype)?;
    let none = CudaGroupError::NotInNccl { dtype, reduce };
    let op = match (reduce, dtype) {
        (ReduceOp::Sum, _) => NcclOp::Sum,
        (ReduceOp::Mean, _) => NcclOp::Mean,
        (ReduceOp::Product, _) => NcclOp::Product,
        (ReduceOp::Min, _) | (ReduceOp::And, DType::Bool) => NcclOp::Min,
        (ReduceOp::Max, _) | (ReduceOp::Or, DType::Bool) => NcclOp::Max,
        (ReduceOp::And | ReduceOp::Or | ReduceOp::Xor, _) => return Err(none),
    };
    let kind = match dtype {
        DType::F32 => NcclType::F32,
        DType::F64 => NcclType::F64,
        DType::F16 => NcclType::F16,
        DType::BF16 => NcclType::BF16,
        DType::I8 => NcclType::I8,
        DType::I32 => NcclType::I32,
        DType::I64 => NcclType::I64,
        DType::U8 | DType::Bool => NcclType::U8,
        DType::U32 => NcclType::U32,
        DType::U64 => NcclType::U64,
        DType::I16 | DType::U16 => return Err(none),
    };
    Ok((kind, op))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reduction_is_done_or_refused_by_name() {
        for &dtype in DType::ALL {
            for &reduce in ReduceOp::ALL {
                match kind(dtype, reduce) {
                    Ok((kind, _)) => {
                        assert!(reduce.supports(dtype), "{reduce} of {dtype}");
                        assert_eq!(kind.bytes(), dtype.size_bytes(), "{dtype}");
                    }
                    Err(CudaGroupError::NotInNccl { .. }) => {
                        let short = matches!(dtype, DType::I16 | DType::U16);
                        let bits = matches!(reduce, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor);
                        assert!(short || bits, "{reduce} of {dtype}");
                    }
                    Err(CudaGroupError::Usage(_)) => assert!(!reduce.supports(dtype)),
                    Err(other) => panic!("{reduce} of {dtype}: {other}"),
                }
            }
        }
    }

    #[test]
    fn truth_values_are_combined_as_numbers() {
        let of = |reduce| kind(DType::Bool, reduce).unwrap();
        assert_eq!(of(ReduceOp::And), (NcclType::U8, NcclOp::Min));
        assert_eq!(of(ReduceOp::Or), (NcclType::U8, NcclOp::Max));
    }

    #[test]
    fn what_nccl_lacks_is_named() {
        let text = kind(DType::I16, ReduceOp::Sum).unwrap_err().to_string();
        assert!(text.contains("i16") && text.contains("CudaGroup"), "{text}");
    }
}
