//! What every rank of a pipeline does, in order.

use super::action::{Action, Compute, Message, Pass, Payload};
use super::error::ShapeError;
use super::orders;
use super::shape::Shape;
use crate::{Rank, WorldSize};

/// A list of actions for each rank.
///
/// A schedule without messages says only what is computed. Then a pass waits until the pass that makes its input has
/// ended, wherever that runs. With messages, it takes its input from a message that the rank has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The shape that it was made for; `None` for lists from elsewhere.
    shape: Option<Shape>,
    ranks: WorldSize,
    owners: Vec<Rank>,
    micro_batches: u32,
    lists: Vec<Vec<Action>>,
}

impl Schedule {
    /// The passes of this shape, without messages.
    ///
    /// # Errors
    /// [`ShapeError`] when there is no such schedule.
    pub fn new(shape: Shape) -> Result<Self, ShapeError> {
        shape.check()?;
        let owners = (0..shape.stages()).map(|stage| shape.owner(stage));
        let list = |rank| {
            let passes = orders::passes(&shape, rank).into_iter();
            passes.map(Action::Compute).collect()
        };
        Ok(Self {
            shape: Some(shape),
            ranks: shape.ranks,
            owners: owners.collect(),
            micro_batches: shape.micro_batches.get(),
            lists: shape.ranks.ranks().map(list).collect(),
        })
    }

    /// One with empty lists, for a schedule from elsewhere.
    pub(super) fn of_owners(owners: Vec<Rank>, micro_batches: u32, ranks: WorldSize) -> Self {
        Self { shape: None, ranks, owners, micro_batches, lists: vec![Vec::new(); ranks.len()] }
    }

    /// The same stages and micro-batches with other lists, which nobody has verified.
    ///
    /// # Panics
    /// When there is not one list for each rank.
    #[must_use]
    pub fn with_lists(self, lists: Vec<Vec<Action>>) -> Self {
        assert_eq!(lists.len(), self.ranks.len(), "one list for each rank");
        Self { lists, ..self }
    }

    /// The shape that it was made for; `None` for one that was read.
    pub fn shape(&self) -> Option<&Shape> {
        self.shape.as_ref()
    }

    /// The ranks of the pipeline.
    pub fn ranks(&self) -> WorldSize {
        self.ranks
    }

    /// The stages of the model.
    pub fn stages(&self) -> u32 {
        self.owners.len() as u32
    }

    /// The micro-batches of a step.
    pub fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// The rank that holds a stage.
    ///
    /// # Panics
    /// When there is no such stage.
    pub fn owner(&self, stage: u32) -> Rank {
        self.owners[stage as usize]
    }

    /// The stages that a rank holds, in the order of the layers.
    pub fn stages_on(&self, rank: Rank) -> Vec<u32> {
        let is_own = |stage: &u32| self.owner(*stage) == rank;
        (0..self.stages()).filter(is_own).collect()
    }

    /// The passes of one rank as a schedule of that rank alone, whose stages are all that there are: for a rehearsal of
    /// what they take, without the others.
    #[must_use]
    pub fn alone(&self, rank: Rank) -> Self {
        let stages = self.stages_on(rank);
        let passes = self.actions(rank).iter().filter_map(|action| {
            let Action::Compute(compute) = action else {
                return None;
            };
            let stage = stages.iter().position(|stage| *stage == compute.stage)? as u32;
            Some(Action::Compute(Compute { stage, ..*compute }))
        });
        let owners = vec![Rank::new(0); stages.len()];
        Self::of_owners(owners, self.micro_batches, WorldSize::ONE)
            .with_lists(vec![passes.collect()])
    }

    /// What a rank does, in order.
    pub fn actions(&self, rank: Rank) -> &[Action] {
        &self.lists[rank.index()]
    }

    /// The lists of all ranks, in rank order.
    pub fn lists(&self) -> &[Vec<Action>] {
        &self.lists
    }

    /// The most activations that each rank holds at a time. A forward pass adds one of its stage, which is held
    /// until the whole backward pass, or the weight gradient, has ended.
    ///
    /// With several stages on a rank each is a part of what one stage would have: divide by the stages to compare.
    pub fn live_max(&self) -> Vec<u32> {
        let live_max = |list: &Vec<Action>| {
            let (mut live, mut most) = (0_u32, 0);
            for action in list {
                let Action::Compute(compute) = action else {
                    continue;
                };
                live += u32::from(compute.pass == Pass::Forward);
                live = live.saturating_sub(u32::from(compute.pass.adds_to_gradients()));
                most = most.max(live);
            }
            most
        };
        self.lists.iter().map(live_max).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Action> {
        self.lists.iter().flatten()
    }

    /// Whether ranks exchange messages, rather than values that appear.
    pub fn has_messages(&self) -> bool {
        let is_message = |action: &Action| matches!(action, Action::Send(_) | Action::Receive(_));
        self.all().any(is_message)
    }

    /// What a pass takes from a neighbouring stage, on whatever rank.
    pub fn input(&self, compute: Compute) -> Option<Message> {
        let (payload, boundary) = match compute.pass {
            Pass::Forward => (Payload::Activation, compute.stage.checked_sub(1)?),
            Pass::Backward | Pass::InputGradient => (Payload::Gradient, compute.stage),
            Pass::WeightGradient => return None,
        };
        self.message(payload, boundary, compute)
    }

    /// What a pass makes for a neighbouring stage, on whatever rank.
    pub fn output(&self, compute: Compute) -> Option<Message> {
        let (payload, boundary) = match compute.pass {
            Pass::Forward => (Payload::Activation, compute.stage),
            Pass::Backward | Pass::InputGradient => {
                (Payload::Gradient, compute.stage.checked_sub(1)?)
            }
            Pass::WeightGradient => return None,
        };
        self.message(payload, boundary, compute)
    }

    fn message(&self, payload: Payload, boundary: u32, compute: Compute) -> Option<Message> {
        let message = Message { payload, boundary, micro_batch: compute.micro_batch };
        (boundary + 1 < self.stages()).then_some(message)
    }

    /// The pass that makes what a message carries. `is_there` says whether the schedule has a whole backward pass.
    pub(super) fn maker(&self, message: Message, is_there: impl Fn(Action) -> bool) -> Action {
        let pass = |pass| Action::compute(pass, message.source(), message.micro_batch);
        let whole = pass(Pass::Backward);
        match message.payload {
            Payload::Activation => pass(Pass::Forward),
            Payload::Gradient if is_there(whole) => whole,
            Payload::Gradient => pass(Pass::InputGradient),
        }
    }

    /// Whether the two stages of a message are on two ranks.
    pub fn crosses(&self, message: Message) -> bool {
        let last = message.boundary >= self.stages().saturating_sub(1);
        !last && self.owner(message.source()) != self.owner(message.target())
    }

    /// Values that stages make for each other, on whatever ranks: the length of a list with one entry for each.
    pub(super) fn values(&self) -> usize {
        2 * self.owners.len() * self.micro_batches as usize
    }

    /// The entry of a message in such a list.
    pub(super) fn value(&self, message: Message) -> usize {
        let lane = 2 * message.boundary as usize + message.payload as usize;
        lane * self.micro_batches as usize + message.micro_batch as usize
    }
}
