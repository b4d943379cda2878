//! Sends activations and gradients from rank to rank while the ranks compute.
//!
//! Each ordered pair of ranks that exchange messages has its own group, whose background thread sends or receives one
//! message after the other. So a message waits only for those that the schedule puts before it in the same channel,
//! and never for a pass, as the simulator assumes. The verifier has proved that both ends of a channel have the same
//! order.
//!
//! A failure ends the group of the world, and then the groups of this rank's pairs. A waiting rank checks the world,
//! too, so every rank gets the failure at once, from the rank that failed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bonfire_collective::{CollectiveError, ProcessGroup, Rank, Work};
use bonfire_plan::pipeline::{Action, Message, Payload, Schedule};
use bonfire_train::{TrainError, World};
use burn::tensor::TensorData;

use super::error::PipelineError;
use super::output::Layout;
use super::wire;

/// The sending rank of a group of two.
pub(super) const SOURCE: Rank = Rank::new(0);
pub(super) const TARGET: Rank = Rank::new(1);

/// The interval at which a waiting rank checks the world for a failure.
const LOOK: Duration = Duration::from_millis(5);

/// Time for a failure to arrive from the rank that failed, where a neighbour's end is known before: a packet that is
/// lost twice takes a second and a half.
const NEWS_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Channels {
    pub(super) world: World,
    to: BTreeMap<Rank, ProcessGroup>,
    from: BTreeMap<Rank, ProcessGroup>,
    /// What crosses each boundary, once it is known.
    layouts: Vec<Arc<OnceLock<Layout>>>,
    /// Messages that are being sent, in order.
    sending: VecDeque<Work<Vec<TensorData>>>,
}

impl Channels {
    /// Makes the channels of a schedule with messages. Every rank calls it.
    #[track_caller]
    pub(super) fn new(world: &World, schedule: &Schedule) -> Result<Self, CollectiveError> {
        let sends = schedule.lists().iter().flatten().filter_map(|action| match action {
            Action::Send(message) => Some(message),
            _ => None,
        });
        let ends = |message: &Message| {
            let owner = |stage| schedule.owner(stage);
            (owner(message.source()), owner(message.target()))
        };
        let ways: BTreeSet<(Rank, Rank)> = sends.map(ends).collect();
        let (mut to, mut from) = (BTreeMap::new(), BTreeMap::new());
        for (source, target) in ways {
            let Some(pair) = world.group().subgroup(&[source, target])? else {
                continue;
            };
            match pair.rank() {
                SOURCE => to.insert(target, pair),
                _ => from.insert(source, pair),
            };
        }
        Ok(Self {
            world: world.clone(),
            to,
            from,
            layouts: (1..schedule.stages()).map(|_| Arc::default()).collect(),
            sending: VecDeque::new(),
        })
    }

    /// That what a stage hands on is what it has handed on so far. Whether it has handed on anything.
    pub(super) fn agree(&self, message: Message, found: Layout) -> Result<Agreed, PipelineError> {
        let known = &self.layouts[message.boundary as usize];
        if let Some(agreed) = known.get() {
            if *agreed == found {
                return Ok(Agreed::Before);
            }
            return Err(PipelineError::OtherOutput {
                stage: message.boundary,
                micro_batch: message.micro_batch,
                agreed: agreed.to_string(),
                found: found.to_string(),
            });
        }
        let _ = known.set(found);
        Ok(Agreed::Now)
    }

    pub(super) fn send(&mut self, target: Rank, values: Vec<TensorData>, agreed: Agreed) {
        let work = wire::background(&self.to[&target], values, move |pair, values| {
            if agreed == Agreed::Now {
                wire::send_layout(pair, TARGET, &Layout::of(values))?;
            }
            wire::send(pair, TARGET, values)
        });
        self.sending.push_back(work);
    }

    pub(super) fn receive(&self, message: Message, source: Rank) -> Work<Vec<TensorData>> {
        let known = Arc::clone(&self.layouts[message.boundary as usize]);
        self.receive_as(known, message.payload, source)
    }

    /// Receives in the background a message of any layout: it was sent with [`Agreed::Now`].
    pub(super) fn receive_described(&self, source: Rank) -> Work<Vec<TensorData>> {
        self.receive_as(Arc::default(), Payload::Activation, source)
    }

    fn receive_as(
        &self,
        known: Arc<OnceLock<Layout>>,
        payload: Payload,
        source: Rank,
    ) -> Work<Vec<TensorData>> {
        wire::background(&self.from[&source], Vec::new(), move |pair, values| {
            if known.get().is_none() && payload == Payload::Activation {
                let _ = known.set(wire::receive_layout(pair, SOURCE)?);
            }
            let layout = known.get().expect("a gradient comes after its activation");
            *values = wire::receive(pair, SOURCE, layout)?;
            Ok(())
        })
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// The failure of any rank.
    pub(super) fn wait(
        &self,
        work: Work<Vec<TensorData>>,
    ) -> Result<Vec<TensorData>, CollectiveError> {
        while !work.wait_for(LOOK) {
            self.check()?;
        }
        work.wait().map_err(|error| self.first(error))
    }

    pub(super) fn check(&self) -> Result<(), CollectiveError> {
        self.world.group().failure().map_or(Ok(()), Err)
    }

    /// Takes the failure that an operation inside of a pass has kept.
    pub(super) fn take_failure(&self) -> Option<TrainError> {
        self.world.take_failure()
    }

    pub(super) fn release_sent(&mut self) -> Result<(), CollectiveError> {
        while let Some(work) = self.sending.pop_front_if(|work| work.is_completed()) {
            work.wait().map_err(|error| self.first(error))?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Result<(), CollectiveError> {
        while let Some(work) = self.sending.pop_front() {
            self.wait(work)?;
        }
        Ok(())
    }

    /// The first failure: a neighbour may have ended because another rank did.
    fn first(&self, error: CollectiveError) -> CollectiveError {
        let start = Instant::now();
        while start.elapsed() < NEWS_PATIENCE {
            if let Some(failure) = self.world.group().failure() {
                return failure;
            }
            std::thread::sleep(LOOK);
        }
        error
    }
}

/// If the layout of a boundary was known before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreed {
    Before,
    Now,
}
