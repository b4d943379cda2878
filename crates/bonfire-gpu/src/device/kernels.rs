//! Which kernel folds what, and those that are loaded.

use std::collections::HashMap;

use bonfire_cuda::{Context, CudaError, Nvrtc};
use bonfire_kernels::launch::flags::SignalKernel;
use bonfire_kernels::launch::one_shot::{OneShotKernel, OneShotKey};
use bonfire_kernels::launch::stream::{CodeError, ReduceCode, ReduceKernel};
use bonfire_kernels::reduce::{Reduce, ReduceError, Role, Width};
use bonfire_kernels::{Element, Fold};
use bonfire_plan::{DType, Rank, ReduceOp, Stage};
use smallvec::SmallVec;

use crate::device::neighbours::Neighbours;
use crate::program;

#[derive(Debug)]
pub(crate) struct Kernels {
    context: Context,
    nvrtc: Nvrtc,
    neighbours: Neighbours,
    reductions: HashMap<ReduceKey, ReduceKernel>,
    one_shots: HashMap<OneShotKey, OneShotKernel>,
}

/// What a kernel that folds is compiled for. Small, and made for every launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReduceKey {
    element: Element,
    fold: Fold,
    roles: SmallVec<[Role; 16]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KernelKey {
    Reduce(ReduceKey),
    OneShot(OneShotKey),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    #[error(transparent)]
    Reduce(#[from] ReduceError),
    #[error(transparent)]
    Code(#[from] CodeError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl Kernels {
    pub(crate) fn new(context: &Context, nvrtc: Nvrtc, neighbours: &Neighbours) -> Self {
        Self {
            context: context.clone(),
            nvrtc,
            neighbours: neighbours.clone(),
            reductions: HashMap::new(),
            one_shots: HashMap::new(),
        }
    }

    /// Compiles and loads a kernel, unless it is loaded. It may wait for running kernels.
    pub(crate) fn load(&mut self, key: &KernelKey) -> Result<(), KernelError> {
        match key {
            KernelKey::Reduce(key) => self.load_reduction(key),
            KernelKey::OneShot(key) => Ok(self.load_one_shot(*key)?),
        }
    }

    fn load_reduction(&mut self, key: &ReduceKey) -> Result<(), KernelError> {
        if self.reductions.contains_key(key) {
            return Ok(());
        }
        let capability = self.context.device().capability();
        let reduce = key.reduce()?;
        let reductions = &self.neighbours.inner.reductions;
        let code = reductions
            .get(key.clone(), capability, || ReduceCode::compile(reduce, self.nvrtc, capability))?;
        let kernel = code.load(&self.context)?;
        self.reductions.insert(key.clone(), kernel);
        Ok(())
    }

    fn load_one_shot(&mut self, key: OneShotKey) -> Result<(), CudaError> {
        if self.one_shots.contains_key(&key) {
            return Ok(());
        }
        let capability = self.context.device().capability();
        let one_shots = &self.neighbours.inner.one_shots;
        let cubin = one_shots.get(key, capability, || key.compile(self.nvrtc, capability))?;
        let kernel = OneShotKernel::load(&self.context, key, &cubin)?;
        self.one_shots.insert(key, kernel);
        Ok(())
    }

    pub(crate) fn signals(&self) -> Result<SignalKernel, CudaError> {
        let capability = self.context.device().capability();
        let cubin = self
            .neighbours
            .inner
            .signals
            .get((), capability, || SignalKernel::compile(self.nvrtc, capability))?;
        SignalKernel::load(&self.context, &cubin)
    }

    pub(crate) fn reduction(&mut self, key: &ReduceKey) -> &mut ReduceKernel {
        let found = self.reductions.get_mut(key);
        found.expect("loaded before the operation")
    }

    pub(crate) fn one_shot(&self, key: OneShotKey) -> &OneShotKernel {
        let found = self.one_shots.get(&key);
        found.expect("loaded before the operation")
    }
}

impl ReduceKey {
    /// The kernel of a step that folds. One source is a copy, of bits, and one that copies to itself only reads there.
    pub(crate) fn new(dtype: DType, reduce: Option<ReduceOp>, fold: &program::Fold) -> Self {
        let (element, how) = match reduce {
            Some(reduce) if fold.sources.len() > 1 => (element(dtype), how(reduce, fold.stage)),
            _ => (bits(dtype), Fold::Or),
        };
        let role = |rank: &Rank| match (fold.sources.contains(rank), fold.targets.contains(rank)) {
            (true, true) if fold.sources.len() > 1 => Role::Both,
            (true, _) => Role::Source,
            (false, _) => Role::Target,
        };
        Self { element, fold: how, roles: fold.buffers().map(role).collect() }
    }

    pub(crate) fn writes(&self) -> bool {
        self.roles.iter().any(|role| role.is_target())
    }

    fn reduce(&self) -> Result<Reduce, ReduceError> {
        // The ranges of a step lie at one place of all buffers, whose memory begins at multiples of 16.
        Reduce::new(self.element, self.fold, &self.roles, Width::Vector)
    }
}

/// The kernel that exchanges and folds the buffers of that many ranks.
pub(crate) fn one_shot_key(dtype: DType, reduce: ReduceOp, ranks: usize) -> OneShotKey {
    OneShotKey { element: element(dtype), fold: how(reduce, Stage::Partial), ranks }
}

pub(crate) fn divisor(reduce: ReduceOp, world_size: usize) -> u32 {
    match reduce {
        ReduceOp::Mean => world_size as u32,
        _ => 1,
    }
}

/// How a step combines: only the last of several divides.
fn how(reduce: ReduceOp, stage: Stage) -> Fold {
    match (reduce, stage) {
        (ReduceOp::Mean, Stage::Final) => Fold::Mean,
        (ReduceOp::Sum | ReduceOp::Mean, _) => Fold::Sum,
        (ReduceOp::Product, _) => Fold::Product,
        (ReduceOp::Min, _) => Fold::Min,
        (ReduceOp::Max, _) => Fold::Max,
        (ReduceOp::And, _) => Fold::And,
        (ReduceOp::Or, _) => Fold::Or,
        (ReduceOp::Xor, _) => Fold::Xor,
    }
}

/// A bool is a byte that is 0 or 1, and every fold that bools have keeps it so.
fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::F32,
        DType::F64 => Element::F64,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        DType::I8 => Element::I8,
        DType::I16 => Element::I16,
        DType::I32 => Element::I32,
        DType::I64 => Element::I64,
        DType::U8 | DType::Bool => Element::U8,
        DType::U16 => Element::U16,
        DType::U32 => Element::U32,
        DType::U64 => Element::U64,
    }
}

/// The element that a copy moves: no bit of it changes.
fn bits(dtype: DType) -> Element {
    match dtype.size_bytes() {
        1 => Element::U8,
        2 => Element::U16,
        4 => Element::U32,
        _ => Element::U64,
    }
}

#[cfg(test)]
mod tests;
