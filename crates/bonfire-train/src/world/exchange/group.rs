//! The ranks that normalise together.

use std::sync::Arc;

use bonfire_collective::{Mutex, ProcessGroup};
use burn::tensor::{Tensor, TensorData};

use super::{Failure, Message, Reply, reply_to};
use crate::world::timeouts::WarmUp;
use crate::{TrainError, World};

/// Ranks whose batches are normalised together, and the group in which they exchange statistics.
///
/// The group is used for nothing else, because its operations come in the middle of forward and backward passes, while
/// gradients are sent in the group of the [`World`]. Clones share the group.
#[derive(Clone, Debug)]
pub struct NormGroup {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: ProcessGroup,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The weight of this rank's loss, relative to those of the other ranks.
    weight: f64,
    /// The first failure: in a backward pass it has no caller that takes it.
    failure: Option<Failure>,
    warm_up: WarmUp,
}

impl NormGroup {
    /// Returns all ranks of a world, in a separate group that is formed by the first call. Every rank must call it, as
    /// an operation in its order.
    ///
    /// # Errors
    /// [`TrainError::Collective`] if the ranks cannot form the group.
    #[track_caller]
    pub fn of_world(world: &World) -> Result<Self, TrainError> {
        world.norm_groups().whole(world)
    }

    /// Takes the ranks of a group that [`split`](ProcessGroup::split) or [`subgroup`](ProcessGroup::subgroup) made of
    /// the world's and that has no other use, such as the ranks of a host. An error of a rank in [`Ddp`](crate::Ddp)
    /// ends it, too.
    pub fn of_ranks(world: &World, group: ProcessGroup) -> Self {
        world.norm_groups().add(world, group)
    }

    /// Returns the group of the exchanges.
    pub fn group(&self) -> &ProcessGroup {
        &self.shared.group
    }

    pub(crate) fn ranks(&self) -> usize {
        self.group().world_size().len()
    }

    fn new(group: &ProcessGroup, compiles: bool) -> Self {
        let group = group.named("batch norm");
        let state = State { weight: 1.0, failure: None, warm_up: WarmUp::new(&group, compiles) };
        Self { shared: Arc::new(Shared { group, state: Mutex::new(state) }) }
    }

    /// Exchanges a layer's message. In the backward pass a failure is kept for the end of the step, and the reply is
    /// too short.
    ///
    /// # Panics
    /// If the exchange fails in a forward pass, which cannot return an error: without the report of the panic hook.
    pub(crate) fn exchange<const D: usize>(&self, message: Tensor<D>) -> Tensor<D> {
        let (device, dtype) = (message.device(), message.dtype());
        let none = Tensor::zeros([1; D], &device);
        let message = match read(message) {
            Ok(message) => message,
            Err(failure) => {
                self.keep(failure);
                return none;
            }
        };
        match self.reply(&message) {
            Ok(reply) => {
                let mut shape = [1; D];
                shape[0] = reply.len();
                Tensor::from_data(TensorData::new(reply, shape), (&device, dtype))
            }
            Err(failure) if message.is_forward() => {
                let text = format!("batch norm cannot exchange its statistics: {failure}");
                std::panic::resume_unwind(Box::new(text))
            }
            Err(_) => none,
        }
    }

    fn reply(&self, message: &Message) -> Result<Reply, Failure> {
        let (weight, failure) = {
            let state = self.shared.state.lock();
            (state.weight, state.failure.clone())
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        let blocks = self.gather(&message.block(weight))?;
        reply_to(message, weight, &blocks).map_err(|mismatch| self.keep(mismatch.into()))
    }

    /// Takes part in the exchanges of ranks that still work, with nothing to add, until all ranks
    /// have ended the step.
    fn end_step(&self) -> Result<(), Failure> {
        // As many rounds as the other ranks have exchanges left; each has a deadline.
        loop {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            let blocks = self.gather(&[])?;
            if blocks.iter().all(Vec::is_empty) {
                self.shared.state.lock().warm_up.end_step();
                return Ok(());
            }
        }
    }

    fn gather(&self, block: &[f64]) -> Result<Vec<Vec<f64>>, Failure> {
        let group = self.shared.state.lock().warm_up.clone();
        let blocks = group.all_gather_v(block);
        let blocks = blocks.map_err(|error| self.keep(error.into()))?;
        Ok(blocks.iter().map(<[f64]>::to_vec).collect())
    }

    fn keep(&self, failure: Failure) -> Failure {
        self.shared.group.abort(&failure.to_string());
        self.shared.state.lock().failure.get_or_insert(failure).clone()
    }

    fn failure(&self) -> Option<Failure> {
        self.shared.state.lock().failure.clone()
    }
}

fn read<const D: usize>(message: Tensor<D>) -> Result<Message, Failure> {
    let data =
        message.try_into_data().map_err(|cause| Failure::Unreadable(format!("{cause:?}")))?;
    Ok(Message::parse(data.iter::<f64>().collect()))
}

#[derive(Clone, Debug, Default)]
pub(crate) struct NormGroups {
    list: Arc<Mutex<List>>,
}

#[derive(Debug, Default)]
struct List {
    whole: Option<NormGroup>,
    all: Vec<NormGroup>,
}

impl NormGroups {
    #[track_caller]
    fn whole(&self, world: &World) -> Result<NormGroup, TrainError> {
        if let Some(whole) = &self.list.lock().whole {
            return Ok(whole.clone());
        }
        let group = world.group().split(Some(0), 0)?.expect("every rank has a color");
        let whole = self.add(world, group);
        self.list.lock().whole = Some(whole.clone());
        Ok(whole)
    }

    fn add(&self, world: &World, group: ProcessGroup) -> NormGroup {
        let group = NormGroup::new(&group, world.compiles_kernels());
        self.list.lock().all.push(group.clone());
        group
    }

    pub(crate) fn are_used(&self) -> bool {
        !self.list.lock().all.is_empty()
    }

    /// Sets the weight of this rank's loss in the next backward pass.
    pub(crate) fn weigh(&self, weight: f64) {
        for group in self.all() {
            group.shared.state.lock().weight = weight;
        }
    }

    pub(crate) fn end_step(&self) -> Result<(), TrainError> {
        for group in self.all() {
            group.end_step()?;
        }
        Ok(())
    }

    /// What went wrong in one of them.
    pub(crate) fn failure(&self) -> Option<TrainError> {
        let failure = self.all().iter().find_map(NormGroup::failure);
        failure.map(TrainError::from)
    }

    fn all(&self) -> Vec<NormGroup> {
        self.list.lock().all.clone()
    }
}
