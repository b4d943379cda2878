//! The verifier: proves a schedule before it runs, wherever it is from.
//!
//! It requires that
//! - every stage has for every micro-batch one forward pass, and one backward pass, whole or split, on the rank
//!   that holds the stage;
//! - a backward pass comes behind its forward pass, and a weight gradient behind its input gradient;
//! - messages, if there are any, are sent behind the pass that makes what they carry, received in front of the
//!   pass that needs it, each once, and between two ranks in the order in which they are sent;
//! - all ranks finish, even if every send waits for its receive;
//! - sums of gradients, if there are any, come behind the last gradient of their stage;
//! - passes, if parameters are gathered, lie between a gather and a release of their stage;
//! - ranks hold as many activations as the closed form of the schedule says, if it is one of [`Kind`](super::Kind).
//!
//! It says nothing about time, or whether the numbers are right.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::action::{Action, Message, Pass};
use super::error::{Broken, Rule};
use super::run::run;
use super::schedule::Schedule;
use crate::Rank;

/// What is known of a schedule that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proof {
    /// The most activations that each rank holds at a time, as [`Schedule::live_max`] counts them.
    pub live_max: Vec<u32>,
    /// Messages between ranks, over all boundaries.
    pub messages: usize,
}

/// Proves that a schedule can run and computes every gradient once.
///
/// # Errors
/// The first breach found.
pub fn verify(schedule: &Schedule) -> Result<Proof, Broken> {
    let verifier = Verifier::new(schedule)?;
    verifier.check_complete()?;
    verifier.check_order()?;
    verifier.check_parameters()?;
    verifier.check_message_order()?;
    run(schedule, |_, _| ())?;
    verifier.check_live()?;
    let is_send = |action: &&Action| matches!(action, Action::Send(_));
    Ok(Proof { live_max: schedule.live_max(), messages: schedule.all().filter(is_send).count() })
}

/// What must be in front of an action, and the rule that is broken where it is not.
type Need = (Action, fn(Action) -> Rule);

struct Verifier<'a> {
    schedule: &'a Schedule,
    /// Where each action is in the list of the rank that holds its stage; the last of gathers and releases.
    places: HashMap<Action, usize>,
    has_messages: bool,
}

impl<'a> Verifier<'a> {
    fn new(schedule: &'a Schedule) -> Result<Self, Broken> {
        let mut verifier =
            Self { schedule, places: HashMap::new(), has_messages: schedule.has_messages() };
        for (rank, index, action) in verifier.actions() {
            if let Some(rule) = verifier.stranger(rank, action) {
                return Err(broken(rank, index, action, rule));
            }
            let first = verifier.places.insert(action, index);
            let may_repeat = matches!(action, Action::Gather { .. } | Action::Release { .. });
            if let (Some(first), false) = (first, may_repeat) {
                return Err(broken(rank, index, action, Rule::Repeated { first }));
            }
        }
        Ok(verifier)
    }

    fn actions(&self) -> impl Iterator<Item = (Rank, usize, Action)> + use<'a> {
        let schedule = self.schedule;
        schedule.ranks().ranks().flat_map(move |rank| {
            let list = schedule.actions(rank).iter().enumerate();
            list.map(move |(index, &action)| (rank, index, action))
        })
    }

    /// What makes an action foreign to the rank or to the pipeline.
    fn stranger(&self, rank: Rank, action: Action) -> Option<Rule> {
        let (stages, micro_batches) = (self.schedule.stages(), self.schedule.micro_batches());
        if action.stage() >= stages {
            return Some(Rule::UnknownStage { stages });
        }
        let micro_batch = action.micro_batch();
        if micro_batch.is_some_and(|number| number >= micro_batches) {
            return Some(Rule::UnknownMicroBatch { micro_batches });
        }
        let owner = self.schedule.owner(action.stage());
        if owner != rank {
            return Some(Rule::NotTheOwner { owner });
        }
        match action {
            Action::Send(message) | Action::Receive(message) => {
                (!self.schedule.crosses(message)).then_some(Rule::NoPeer)
            }
            _ => None,
        }
    }

    fn check_complete(&self) -> Result<(), Broken> {
        let is_sum = |action: &Action| matches!(action, Action::ReduceGradients { .. });
        let has_sums = self.schedule.all().any(is_sum);
        for stage in 0..self.schedule.stages() {
            for micro_batch in 0..self.schedule.micro_batches() {
                self.check_passes(stage, micro_batch)?;
            }
            if has_sums {
                self.require(Action::ReduceGradients { stage })?;
            }
        }
        if !self.has_messages {
            return Ok(());
        }
        for (_, _, action) in self.actions() {
            let Action::Compute(compute) = action else {
                continue;
            };
            let message = self.schedule.output(compute);
            if let Some(message) = message.filter(|&message| self.schedule.crosses(message)) {
                self.require(Action::Send(message))?;
                self.require(Action::Receive(message))?;
            }
        }
        Ok(())
    }

    fn check_passes(&self, stage: u32, micro_batch: u32) -> Result<(), Broken> {
        let action = |pass| Action::compute(pass, stage, micro_batch);
        self.require(action(Pass::Forward))?;
        let halves = [Pass::InputGradient, Pass::WeightGradient].map(action);
        let mut halves = halves.into_iter();
        let split = halves.clone().find(|half| self.places.contains_key(half));
        let whole = action(Pass::Backward);
        match (split, self.places.contains_key(&whole)) {
            (Some(half), true) => {
                let (rank, index) = (self.schedule.owner(stage), self.places[&half]);
                Err(broken(rank, index, half, Rule::TwoBackwards { other: whole }))
            }
            (Some(_), false) => halves.try_for_each(|half| self.require(half)),
            (None, _) => self.require(whole),
        }
    }

    fn require(&self, action: Action) -> Result<(), Broken> {
        let found = self.places.get(&action);
        found.map(drop).ok_or_else(|| self.missing(action))
    }

    fn missing(&self, action: Action) -> Broken {
        let rank = self.schedule.owner(action.stage());
        Broken::Missing { rank, action }
    }

    /// On every rank, each action comes behind those that it depends on.
    fn check_order(&self) -> Result<(), Broken> {
        for (rank, index, action) in self.actions() {
            let mut needs = self.needs(action).into_iter();
            let is_later = |needed: &Action| self.places.get(needed).is_some_and(|&at| at > index);
            if let Some((needed, rule)) = needs.find(|(needed, _)| is_later(needed)) {
                return Err(broken(rank, index, action, rule(needed)));
            }
        }
        Ok(())
    }

    /// What must be in front of an action on its rank.
    fn needs(&self, action: Action) -> Vec<Need> {
        let mut needs: Vec<Need> = Vec::new();
        match action {
            Action::Compute(compute) => {
                let own = |pass| Action::compute(pass, compute.stage, compute.micro_batch);
                match compute.pass {
                    Pass::Forward => {}
                    Pass::Backward | Pass::InputGradient => {
                        needs.push((own(Pass::Forward), Rule::BeforeForward));
                    }
                    Pass::WeightGradient => {
                        needs.push((own(Pass::InputGradient), Rule::BeforeInputGradient));
                    }
                }
                match self.schedule.input(compute) {
                    Some(message) if !self.schedule.crosses(message) => {
                        needs.push((self.maker(message), Rule::BeforeNeighbour));
                    }
                    Some(message) if self.has_messages => {
                        needs.push((Action::Receive(message), Rule::BeforeReceive));
                    }
                    _ => {}
                }
            }
            Action::Send(message) => needs.push((self.maker(message), Rule::BeforeResult)),
            Action::ReduceGradients { stage } => {
                for micro_batch in 0..self.schedule.micro_batches() {
                    let gradients = [Pass::Backward, Pass::WeightGradient];
                    let gradients = gradients.map(|pass| Action::compute(pass, stage, micro_batch));
                    needs.extend(gradients.map(|pass| (pass, Rule::BeforeGradient as fn(_) -> _)));
                }
            }
            Action::Receive(_) | Action::Gather { .. } | Action::Release { .. } => {}
        }
        needs
    }

    fn maker(&self, message: Message) -> Action {
        let is_there = |action| self.places.contains_key(&action);
        self.schedule.maker(message, is_there)
    }

    /// If parameters are gathered at all, every pass finds those of its stage.
    fn check_parameters(&self) -> Result<(), Broken> {
        let is_storage =
            |action: &Action| matches!(action, Action::Gather { .. } | Action::Release { .. });
        if !self.schedule.all().any(is_storage) {
            return Ok(());
        }
        let mut gathered = BTreeSet::new();
        for (rank, index, action) in self.actions() {
            let rule = match action {
                Action::Gather { stage } if !gathered.insert(stage) => Rule::AlreadyGathered,
                Action::Release { stage } if !gathered.remove(&stage) => Rule::NotGathered,
                Action::Compute(compute) if !gathered.contains(&compute.stage) => Rule::NotGathered,
                _ => continue,
            };
            return Err(broken(rank, index, action, rule));
        }
        match gathered.first() {
            Some(&stage) => Err(self.missing(Action::Release { stage })),
            None => Ok(()),
        }
    }

    /// Between two ranks, in one direction, messages are received in the order in which they are sent.
    fn check_message_order(&self) -> Result<(), Broken> {
        let mut pairs: BTreeMap<_, (Vec<Message>, Vec<Message>)> = BTreeMap::new();
        for (_, _, action) in self.actions() {
            let (Action::Send(message) | Action::Receive(message)) = action else {
                continue;
            };
            let ends = [message.source(), message.target()].map(|stage| self.schedule.owner(stage));
            let (sent, received) = pairs.entry(ends).or_default();
            match action {
                Action::Send(_) => sent.push(message),
                _ => received.push(message),
            }
        }
        for ([source_rank, target_rank], (sent, received)) in pairs {
            let mut both = sent.into_iter().zip(received);
            if let Some((sent, received)) = both.find(|(sent, received)| sent != received) {
                return Err(Broken::MessageOrder {
                    source_rank,
                    target_rank,
                    sent: Action::Send(sent),
                    received: Action::Receive(received),
                });
            }
        }
        Ok(())
    }

    fn check_live(&self) -> Result<(), Broken> {
        let Some(shape) = self.schedule.shape() else {
            return Ok(());
        };
        let kind = shape.kind;
        for (rank, live) in self.schedule.ranks().ranks().zip(self.schedule.live_max()) {
            let promised = shape.live_max(rank);
            if live != promised {
                return Err(Broken::Live { rank, kind, live, promised });
            }
        }
        Ok(())
    }
}

fn broken(rank: Rank, index: usize, action: Action, rule: Rule) -> Broken {
    Broken::Action { rank, index, action, rule }
}
