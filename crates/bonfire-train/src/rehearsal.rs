//! Measures a model for a planner of memory: its parameters, and the memory of its passes.
//!
//! The memory that a model keeps for its backward pass depends on its operations, which only the backend knows. So
//! passes are run, and the operating system's count of the process's pages is read. In some of them gradients are
//! dropped at once: the rest are the activations, and the operations' temporary memory.

use std::io;
use std::sync::Arc;

use bonfire_collective::{Resident, release_freed_memory};
use bonfire_plan::memory::{Activations, Parameter, Start};
use bonfire_plan::{Bytes, DType};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, DType as TensorDType, Int, Tensor};

use crate::loss::IntoLoss;
use crate::nn::recompute::running::Running;
use crate::parameters::{ModulePath, ParameterTable, trainable};
use crate::reducer::hooks::{Anchors, Depth, Listener, Pass, measured};
use crate::{Precision, TrainError, World};

/// Runs three forward and backward passes of a model on this rank alone, and returns their memory besides parameters.
/// `forward` makes a batch as large as those of the training, and returns the same as that of
/// [`Ddp::backward`](crate::Ddp::backward). The model does not change.
///
/// It is right on the CPU, in a process that does nothing else at the time and has not trained yet: memory that an
/// allocator reuses is not counted. A model with layers that exchange something with other ranks does so here, too.
///
/// # Errors
/// [`TrainError::Unmeasurable`] where the system does not report a process's memory; those of the forward pass, and of
/// a model that cannot be trained.
pub fn rehearse<M: Module, L: IntoLoss>(
    model: &M,
    precision: Precision,
    forward: impl FnMut(&M) -> L,
) -> Result<Activations, TrainError> {
    rehearsed(model, precision, forward, || Ok(()))
}

/// Measures all ranks of a world, which are threads of this process: for a model that is divided among them, or whose
/// sequences are. Every rank calls it with its part. The memory of the process is counted for all of them together and
/// divided by their number, so it is right if they use equally much.
///
/// # Errors
/// As [`rehearse`]; [`TrainError::Collective`] if a rank failed.
#[track_caller]
pub fn rehearse_among<M: Module, L: IntoLoss>(
    world: &World,
    model: &M,
    precision: Precision,
    forward: impl FnMut(&M) -> L,
) -> Result<Activations, TrainError> {
    let all = rehearsed(model, precision, forward, || Ok(world.group().barrier()?))?;
    Ok(Activations {
        alone: share(all.alone, world),
        with_gradients: share(all.with_gradients, world),
    })
}

/// Measures the peak memory of any work of all ranks of a world, in equal shares, for work that [`rehearse_among`]
/// cannot run: such as the passes of a pipeline's rank, whose stages are on no other one. Every rank calls it. The
/// work is done twice, and the second time counts.
///
/// # Errors
/// As [`rehearse_among`], and those of the work.
#[track_caller]
pub fn rehearse_work<E: From<TrainError>>(
    world: &World,
    mut work: impl FnMut() -> Result<(), E>,
) -> Result<Bytes, E> {
    let meet = || world.group().barrier().map_err(TrainError::from);
    meet()?;
    let before = before()?;
    for _ in 0..2 {
        meet()?;
        work()?;
    }
    meet()?;
    Ok(share(taken(before)?, world))
}

/// The resident memory of the process. Restarts the measurement of its peak.
fn before() -> Result<Bytes, TrainError> {
    release_freed_memory();
    Resident::forget_peak().map_err(unmeasurable)?;
    let now = Resident::of_this_process().map_err(unmeasurable)?.now_bytes;
    Ok(Bytes::new(now))
}

fn taken(before: Bytes) -> Result<Bytes, TrainError> {
    let peak = Resident::of_this_process().map_err(unmeasurable)?.peak_bytes;
    Ok(Bytes::new(peak.saturating_sub(before.get())))
}

fn share(bytes: Bytes, world: &World) -> Bytes {
    Bytes::new(bytes.get() / u64::from(world.world_size().get()))
}

/// Runs the passes. `meet` returns when all threads that run some have arrived.
fn rehearsed<M: Module, L: IntoLoss>(
    model: &M,
    precision: Precision,
    forward: impl FnMut(&M) -> L,
    meet: impl Fn() -> Result<(), TrainError>,
) -> Result<Activations, TrainError> {
    // Mapped, running statistics of this crate have separate values. Those of Burn are shared by all clones, and
    // get back what they had.
    let model = trainable(model.clone()).map(&mut Same);
    let running = Running::of(&model);
    let found = passes(&model, precision, forward, meet);
    running.put_back(model);
    found
}

fn passes<M: Module, L: IntoLoss>(
    model: &M,
    precision: Precision,
    mut forward: impl FnMut(&M) -> L,
    meet: impl Fn() -> Result<(), TrainError>,
) -> Result<Activations, TrainError> {
    let table = Arc::new(ParameterTable::of(model)?);
    let (mut anchors, depth) = (Anchors::default(), Depth::default());
    meet()?;
    let before = before()?;
    let mut pass = |listener: Listener| {
        let pass = Pass { listener: &listener, precision, keeps_gradients: false, gathered: None };
        let hooked = anchors.attach(model, &table, &depth, pass)?;
        // No rank computes while another one measures.
        meet()?;
        let (loss, _output) = forward(&hooked).into_loss().map_err(TrainError::Forward)?;
        let (loss, _value) = loss.split()?;
        if loss.is_tracked() {
            measured(loss, &depth)?.backward();
        }
        meet()?;
        taken(before)
    };
    // The first one guesses in which order gradients come, and an allocator may keep some of it.
    pass(Listener::Dropping)?;
    Ok(Activations { alone: pass(Listener::Dropping)?, with_gradients: pass(Listener::Nobody)? })
}

struct Same;

impl ModuleMapper for Same {}

fn unmeasurable(source: io::Error) -> TrainError {
    TrainError::Unmeasurable { source }
}

/// Lists the parameters of a model for a planner, and the way in which they are made. `moments` returns the number of
/// the optimizer's moments of a trained parameter. Parameters that Burn has not initialised yet stay as they are, and
/// count as f32.
pub fn outline<M: Module>(model: &M, moments: impl Fn(ParamId) -> u32) -> (Vec<Parameter>, Start) {
    let mut outline =
        Outline { moments, path: ModulePath::default(), parameters: Vec::new(), is_made: false };
    trainable(model.clone()).visit(&mut outline);
    let start = if outline.is_made { Start::Whole } else { Start::OneByOne };
    (outline.parameters, start)
}

struct Outline<F> {
    moments: F,
    path: ModulePath,
    parameters: Vec<Parameter>,
    /// True if any trained parameter is in memory.
    is_made: bool,
}

impl<F> Outline<F> {
    fn push(&mut self, shape: Vec<usize>, dtype: TensorDType, moments: Option<u32>) {
        let dtype = crate::values::reducible(dtype).unwrap_or(match dtype.size() {
            8 => DType::I64,
            4 => DType::I32,
            2 => DType::I16,
            _ => DType::U8,
        });
        self.parameters.push(Parameter { name: self.path.to_string(), shape, dtype, moments });
    }
}

impl<F: Fn(ParamId) -> u32> ModuleVisitor for Outline<F> {
    crate::parameters::follow_path!(path);

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_made = param.is_initialized();
        let dtype = if is_made { param.val().dtype() } else { TensorDType::F32 };
        let moments = param.is_require_grad().then(|| (self.moments)(param.id));
        self.is_made |= is_made && moments.is_some();
        let shape = param.lazy_shape().iter().copied().collect();
        self.push(shape, dtype, moments);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let tensor = param.val();
        self.push(tensor.dims().to_vec(), tensor.dtype(), None);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let tensor = param.val();
        self.push(tensor.dims().to_vec(), tensor.dtype(), None);
    }
}
