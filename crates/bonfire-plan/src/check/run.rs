//! Executes a plan on symbols, one rank at a time, until every rank is done or none can continue.
//!
//! Every queue has one writer and one reader, and a rank's steps do not depend on what others do at the time. So the
//! outcome, deadlock included, is the same for every order in which ranks are given turns (Kahn, "The semantics of a
//! simple language for parallel programming", 1974), and one order is enough to check.

use std::collections::VecDeque;

use super::atoms::Atoms;
use super::cost::{Cost, RankCost};
use super::error::{Blocked, CheckError, Fault, Obstacle};
use super::expression::{Expressions, Value};
use super::link::{Clock, Frame, Link};
use super::races::{Place, Races};
use super::reach::Reach;
use super::{content, rank_set};
use crate::{Collective, ElemRange, Order, Plan, Rank, Source, Stage, Step};

pub(super) struct Run<'a> {
    plan: &'a Plan,
    slots: usize,
    atoms: Atoms,
    expressions: Expressions,
    ranks: Vec<RankState>,
    /// The queue from rank s to rank t is at s * n + t.
    links: Vec<Link>,
    /// Only for plans with direct steps: without them a buffer has one user.
    races: Option<Races>,
}

struct RankState {
    next_step: usize,
    obstacle: Option<Obstacle>,
    data: Vec<Value>,
    reach: Reach,
    /// The ranks that are known to have entered; no words unless the collective is a barrier.
    heard: Vec<u64>,
    clock: Clock,
    cost: RankCost,
}

enum Progress {
    Done,
    Blocked(Obstacle),
}

impl<'a> Run<'a> {
    pub(super) fn new(plan: &'a Plan, slots: usize) -> Self {
        let schedule = plan.schedule();
        let world_size = schedule.world_size();
        let atoms = Atoms::new(plan);
        let state = |rank| {
            let mut heard = Vec::new();
            if schedule.collective() == Collective::Barrier {
                heard.resize(rank_set::words(world_size), 0);
                rank_set::insert(&mut heard, rank);
            }
            RankState {
                next_step: 0,
                obstacle: None,
                data: content::initial(schedule, &atoms, rank),
                reach: Reach::new(schedule, &atoms, rank),
                heard,
                clock: Clock::default(),
                cost: RankCost::default(),
            }
        };
        let ranks: Vec<_> = world_size.ranks().map(state).collect();
        let links = (0..ranks.len() * ranks.len()).map(|_| Link::default());
        let is_direct = |step: &Step| matches!(step, Step::ReduceDirect { .. });
        let mut steps = world_size.ranks().flat_map(|rank| plan.steps(rank));
        let has_direct = steps.any(is_direct);
        Self {
            plan,
            slots,
            expressions: Expressions::new(world_size),
            links: links.collect(),
            races: has_direct.then(|| Races::new(world_size, &atoms)),
            atoms,
            ranks,
        }
    }

    /// Runs every rank to its end, and finds every queue empty.
    pub(super) fn finish(&mut self) -> Result<(), CheckError> {
        let mut turns: VecDeque<Rank> = self.plan.schedule().world_size().ranks().collect();
        while let Some(rank) = turns.pop_front() {
            self.advance(rank, &mut turns)?;
        }
        let world_size = self.plan.schedule().world_size();
        let blocked = |(rank, state): (Rank, &RankState)| {
            Some(Blocked { rank, index: state.next_step, obstacle: state.obstacle? })
        };
        let states = world_size.ranks().zip(&self.ranks);
        let blocked: Vec<_> = states.filter_map(blocked).collect();
        if !blocked.is_empty() {
            return Err(CheckError::Deadlock { blocked });
        }
        for from in world_size.ranks() {
            for to in world_size.ranks() {
                if let Some(frame) = self.links[self.link(from, to)].front() {
                    return Err(CheckError::Unreleased {
                        from,
                        to,
                        index: frame.index,
                        source_range: frame.source,
                    });
                }
            }
        }
        match &self.races {
            Some(races) => races.finish(&self.atoms),
            None => Ok(()),
        }
    }

    /// Compares what the ranks hold, and know, with what the collective promises.
    pub(super) fn verify(&mut self) -> Result<Order, CheckError> {
        let schedule = self.plan.schedule();
        if schedule.collective() == Collective::Barrier {
            let heard = self.ranks.iter().map(|state| state.heard.as_slice());
            content::verify_heard(schedule, heard)?;
        }
        let ranks = self.ranks.iter();
        let data: Vec<_> = ranks.map(|state| state.data.as_slice()).collect();
        content::verify(schedule, &self.atoms, &mut self.expressions, &data)
    }

    pub(super) fn cost(&self) -> Cost {
        let clocks = self.ranks.iter().map(|state| state.clock);
        let last = clocks.fold(Clock::default(), Clock::later);
        Cost {
            ranks: self.ranks.iter().map(|state| state.cost).collect(),
            rounds: last.chain,
            rounds_one_port: last.one_port,
        }
    }

    /// Takes the steps of `rank` until it is done or blocked, and gives a turn to those it freed.
    fn advance(&mut self, rank: Rank, turns: &mut VecDeque<Rank>) -> Result<(), CheckError> {
        let plan = self.plan;
        let first = self.ranks[rank.index()].next_step;
        self.ranks[rank.index()].obstacle = None;
        for (index, step) in plan.steps(rank).iter().enumerate().skip(first) {
            self.ranks[rank.index()].next_step = index;
            let progress = self.take(rank, step).map_err(|fault| CheckError::Step {
                rank,
                index,
                step: step.clone(),
                fault,
            })?;
            if let Progress::Blocked(obstacle) = progress {
                self.ranks[rank.index()].obstacle = Some(obstacle);
                return Ok(());
            }
            let (peer, obstacle) = match *step {
                Step::Put { peer, .. } => (peer, Obstacle::FrameFrom(rank)),
                Step::Release { peer } => (peer, Obstacle::SlotAt(rank)),
                Step::Wait { .. }
                | Step::Reduce { .. }
                | Step::Copy { .. }
                | Step::ReduceDirect { .. } => continue,
            };
            let freed = &mut self.ranks[peer.index()].obstacle;
            if freed.take_if(|freed| *freed == obstacle).is_some() {
                turns.push_back(peer);
            }
        }
        Ok(())
    }

    fn take(&mut self, rank: Rank, step: &Step) -> Result<Progress, Fault> {
        match step {
            Step::Put { peer, source } => return self.put(rank, *peer, *source),
            Step::Wait { peer } => return self.wait(rank, *peer),
            Step::Reduce { target, sources, stage } => {
                self.reduce(rank, *target, sources, *stage)?
            }
            Step::Copy { peer, target } => self.copy(rank, *peer, *target)?,
            Step::Release { peer } => self.release(rank, *peer)?,
            Step::ReduceDirect { range, sources, targets, stage } => {
                self.reduce_direct(rank, *range, sources, targets, *stage)?
            }
        }
        Ok(Progress::Done)
    }

    fn put(&mut self, rank: Rank, peer: Rank, source: ElemRange) -> Result<Progress, Fault> {
        self.require_peer(rank, peer)?;
        self.require_readable(rank, source)?;
        let chunk_elems_max = self.plan.schedule().chunk_elems_max().get();
        if source.len() > chunk_elems_max {
            return Err(Fault::FrameTooLong { range: source, chunk_elems_max });
        }
        if self.links[self.link(rank, peer)].len() == self.slots {
            return Ok(Progress::Blocked(Obstacle::SlotAt(peer)));
        }
        let run = self.atoms.of(source);
        self.note_read(rank, rank, source)?;
        let known = self.races.as_mut().map(|races| races.publish(rank));
        let state = &mut self.ranks[rank.index()];
        let values: Box<[Value]> = state.data[run.clone()].into();
        if let Some(at) = values.iter().position(|value| value.is_undefined()) {
            let range = self.atoms.range(run.start + at);
            return Err(Fault::Undefined { range });
        }
        state.cost.frames_sent += 1;
        state.cost.elems_sent += source.len() as u64;
        state.clock.one_port += 1;
        let frame = Frame {
            source,
            values,
            heard: state.heard.clone(),
            known: known.unwrap_or_default(),
            clock: Clock { chain: state.clock.chain + 1, one_port: state.clock.one_port },
            index: state.next_step,
        };
        let link = self.link(rank, peer);
        self.links[link].publish(frame);
        Ok(Progress::Done)
    }

    fn wait(&mut self, rank: Rank, peer: Rank) -> Result<Progress, Fault> {
        self.require_peer(rank, peer)?;
        let link = self.link(peer, rank);
        let Some(frame) = self.links[link].wait(peer)? else {
            return Ok(Progress::Blocked(Obstacle::FrameFrom(peer)));
        };
        let state = &mut self.ranks[rank.index()];
        state.cost.frames_received += 1;
        state.cost.elems_received += frame.source.len() as u64;
        state.clock = state.clock.later(frame.clock);
        rank_set::unite(&mut state.heard, &frame.heard);
        if let Some(races) = &mut self.races {
            races.hear(rank, &frame.known);
        }
        Ok(Progress::Done)
    }

    fn reduce(
        &mut self,
        rank: Rank,
        target: ElemRange,
        sources: &[Source],
        stage: Stage,
    ) -> Result<(), Fault> {
        self.require_writable(rank, target)?;
        if sources.is_empty() {
            return Err(Fault::NoSources);
        }
        for source in sources {
            if let Source::Inbox(peer) = *source {
                self.require_peer(rank, peer)?;
                let link = self.link(peer, rank);
                self.links[link].read(peer, target)?;
            }
        }
        if sources.contains(&Source::Own) {
            self.note_read(rank, rank, target)?;
        }
        self.note_write(rank, rank, target)?;
        let run = self.atoms.of(target);
        for atom in run.clone() {
            let mut folded = None;
            for source in sources {
                let operand = match *source {
                    Source::Own => self.ranks[rank.index()].data[atom],
                    Source::Inbox(peer) => {
                        let frame = self.links[self.link(peer, rank)].front();
                        frame.expect("the frame was just read").values[atom - run.start]
                    }
                };
                folded = Some(self.fold(folded, operand, atom)?);
            }
            let folded = folded.expect("there is at least one source");
            self.ranks[rank.index()].data[atom] = folded.stored(stage, sources.len());
        }
        let folds = (sources.len() - 1) as u64;
        self.ranks[rank.index()].cost.elems_folded += folds * target.len() as u64;
        Ok(())
    }

    fn fold(&mut self, before: Option<Value>, operand: Value, atom: usize) -> Result<Value, Fault> {
        let operand = self.defined(operand, atom)?;
        let range = self.atoms.range(atom);
        if operand.is_final() {
            return Err(Fault::AlreadyFinal { range });
        }
        let Some(before) = before else {
            return Ok(operand);
        };
        let folded = self.expressions.fold(before, operand);
        folded.map_err(|rank| Fault::FoldedTwice { rank, range })
    }

    fn defined(&self, value: Value, atom: usize) -> Result<Value, Fault> {
        if value.is_undefined() {
            let range = self.atoms.range(atom);
            return Err(Fault::Undefined { range });
        }
        Ok(value)
    }

    fn copy(&mut self, rank: Rank, peer: Rank, target: ElemRange) -> Result<(), Fault> {
        self.require_writable(rank, target)?;
        self.require_peer(rank, peer)?;
        self.note_write(rank, rank, target)?;
        let link = self.link(peer, rank);
        let frame = self.links[link].read(peer, target)?;
        self.ranks[rank.index()].data[self.atoms.of(target)].copy_from_slice(&frame.values);
        Ok(())
    }

    fn reduce_direct(
        &mut self,
        rank: Rank,
        range: ElemRange,
        sources: &[Rank],
        targets: &[Rank],
        stage: Stage,
    ) -> Result<(), Fault> {
        self.require_bounds(range)?;
        if sources.is_empty() {
            return Err(Fault::NoSources);
        }
        if targets.is_empty() {
            return Err(Fault::NoTargets);
        }
        for &source in sources {
            self.require_member(source)?;
            self.require_readable(source, range)?;
            self.note_read(rank, source, range)?;
        }
        for &target in targets {
            self.require_member(target)?;
            self.require_writable(target, range)?;
            self.note_write(rank, target, range)?;
        }
        for atom in self.atoms.of(range) {
            let mut folded = None;
            for source in sources {
                let operand = self.ranks[source.index()].data[atom];
                folded = Some(match (sources.len(), stage) {
                    // One source that nothing is folded with is a copy, of finished values too.
                    (1, Stage::Partial) => self.defined(operand, atom)?,
                    _ => self.fold(folded, operand, atom)?,
                });
            }
            let folded = folded.expect("there is at least one source");
            for target in targets {
                self.ranks[target.index()].data[atom] = folded.stored(stage, sources.len());
            }
        }
        let remote = |ranks: &[Rank]| ranks.iter().filter(|&&other| other != rank).count() as u64;
        let elems = range.len() as u64;
        let cost = &mut self.ranks[rank.index()].cost;
        cost.elems_read_direct += remote(sources) * elems;
        cost.elems_written_direct += remote(targets) * elems;
        cost.elems_folded += (sources.len() - 1) as u64 * elems;
        Ok(())
    }

    fn release(&mut self, rank: Rank, peer: Rank) -> Result<(), Fault> {
        self.require_peer(rank, peer)?;
        let link = self.link(peer, rank);
        self.links[link].release(peer)
    }

    fn require_peer(&self, rank: Rank, peer: Rank) -> Result<(), Fault> {
        if peer == rank || !self.plan.schedule().world_size().contains(peer) {
            return Err(Fault::NotAPeer { peer });
        }
        Ok(())
    }

    fn require_member(&self, rank: Rank) -> Result<(), Fault> {
        if self.plan.schedule().world_size().contains(rank) {
            Ok(())
        } else {
            Err(Fault::NotAMember { rank })
        }
    }

    fn require_bounds(&self, range: ElemRange) -> Result<(), Fault> {
        let count = self.plan.schedule().space().end();
        if range.end() > count {
            return Err(Fault::OutOfBounds { range, count });
        }
        Ok(())
    }

    fn require_readable(&self, rank: Rank, range: ElemRange) -> Result<(), Fault> {
        self.require_bounds(range)?;
        let reach = &self.ranks[rank.index()].reach;
        reach.require_read(&self.atoms, range)
    }

    fn require_writable(&self, rank: Rank, range: ElemRange) -> Result<(), Fault> {
        self.require_bounds(range)?;
        let reach = &self.ranks[rank.index()].reach;
        reach.require_write(&self.atoms, range)
    }

    fn note_read(&mut self, rank: Rank, owner: Rank, range: ElemRange) -> Result<(), Fault> {
        let atoms = self.atoms.of(range);
        match &mut self.races {
            Some(races) => races.read(rank, Place { owner, atoms }, &self.atoms),
            None => Ok(()),
        }
    }

    fn note_write(&mut self, rank: Rank, owner: Rank, range: ElemRange) -> Result<(), Fault> {
        let atoms = self.atoms.of(range);
        match &mut self.races {
            Some(races) => races.write(rank, Place { owner, atoms }, &self.atoms),
            None => Ok(()),
        }
    }

    fn link(&self, from: Rank, to: Rank) -> usize {
        from.index() * self.ranks.len() + to.index()
    }
}
