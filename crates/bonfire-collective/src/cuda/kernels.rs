//! Which kernel folds what, and those that are loaded.

use std::collections::HashMap;

use bonfire_plan::{DType, ReduceOp};
use bonfire_sys::cuda::{
    Context, CudaError, Fold, FoldKernel, FoldKey, Nvrtc, Scalar, SignalKernel,
};

use super::neighbours::Neighbours;

/// The kernels of one rank.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Context,
    nvrtc: Nvrtc,
    neighbours: Neighbours,
    loaded: HashMap<FoldKey, FoldKernel>,
}

impl Kernels {
    pub(super) fn new(context: &Context, nvrtc: Nvrtc, neighbours: &Neighbours) -> Self {
        Self {
            context: context.clone(),
            nvrtc,
            neighbours: neighbours.clone(),
            loaded: HashMap::new(),
        }
    }

    pub(super) fn get(&self, key: FoldKey) -> Option<&FoldKernel> {
        self.loaded.get(&key)
    }

    /// Compiles and loads a kernel, unless it is loaded. It may wait for running kernels.
    pub(super) fn load(&mut self, key: FoldKey) -> Result<(), CudaError> {
        if self.loaded.contains_key(&key) {
            return Ok(());
        }
        let capability = self.context.device().capability();
        let cubin = self.neighbours.cubin(format!("{key:?}"), capability, || {
            key.compile(self.nvrtc, capability)
        })?;
        let kernel = FoldKernel::load(&self.context, key, &cubin)?;
        self.loaded.insert(key, kernel);
        Ok(())
    }

    pub(super) fn signals(&self) -> Result<SignalKernel, CudaError> {
        let capability = self.context.device().capability();
        let cubin = self
            .neighbours
            .cubin("signals".to_owned(), capability, || {
                SignalKernel::compile(self.nvrtc, capability)
            })?;
        SignalKernel::load(&self.context, &cubin)
    }
}

/// The kernel that folds `sources` buffers.
pub(super) fn key(dtype: DType, reduce: ReduceOp, sources: usize) -> FoldKey {
    FoldKey {
        scalar: scalar(dtype),
        fold: fold(reduce),
        sources,
    }
}

/// The kernel that copies one buffer to others: a fold of one.
pub(super) fn copy_key(dtype: DType) -> FoldKey {
    let scalar = match dtype.size_bytes() {
        1 => Scalar::U8,
        2 => Scalar::U16,
        4 => Scalar::U32,
        _ => Scalar::U64,
    };
    FoldKey {
        scalar,
        fold: Fold::Or,
        sources: 1,
    }
}

/// What the result is divided by.
pub(super) fn divisor(reduce: ReduceOp, world_size: usize) -> u32 {
    match reduce {
        ReduceOp::Mean => world_size as u32,
        _ => 1,
    }
}

fn fold(reduce: ReduceOp) -> Fold {
    match reduce {
        ReduceOp::Sum | ReduceOp::Mean => Fold::Sum,
        ReduceOp::Product => Fold::Product,
        ReduceOp::Min => Fold::Min,
        ReduceOp::Max => Fold::Max,
        ReduceOp::And => Fold::And,
        ReduceOp::Or => Fold::Or,
        ReduceOp::Xor => Fold::Xor,
    }
}

/// A bool is a byte that is 0 or 1, and every fold that bools have keeps it so.
fn scalar(dtype: DType) -> Scalar {
    match dtype {
        DType::F32 => Scalar::F32,
        DType::F64 => Scalar::F64,
        DType::F16 => Scalar::F16,
        DType::BF16 => Scalar::BF16,
        DType::I8 => Scalar::I8,
        DType::I16 => Scalar::I16,
        DType::I32 => Scalar::I32,
        DType::I64 => Scalar::I64,
        DType::U8 | DType::Bool => Scalar::U8,
        DType::U16 => Scalar::U16,
        DType::U32 => Scalar::U32,
        DType::U64 => Scalar::U64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_the_sizes_of_their_elements() {
        for &dtype in DType::ALL {
            assert_eq!(scalar(dtype).bytes(), dtype.size_bytes(), "{dtype}");
            assert_eq!(
                copy_key(dtype).scalar.bytes(),
                dtype.size_bytes(),
                "{dtype}"
            );
        }
    }

    #[test]
    fn only_a_mean_divides() {
        for &reduce in ReduceOp::ALL {
            let by = if reduce == ReduceOp::Mean { 3 } else { 1 };
            assert_eq!(divisor(reduce, 3), by, "{reduce}");
        }
    }
}
