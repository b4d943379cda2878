//! What a rank queues for a schedule: messages, and kernels on the buffers of all ranks.
//!
//! A program is the schedule's own list of steps, as [`steps_in_place`](bonfire_plan::Schedule::steps_in_place) gives
//! it, with nothing added, left out or put in another order. So what was proved of the schedule holds of what the
//! device does, as far as each step is done right: a put is a word that is raised behind everything the stream did
//! before, a wait holds the stream until the word is there, and a direct fold is a kernel. Words count messages without
//! end, so that a release has nothing to free.

pub(crate) mod choice;
pub(crate) mod pair_bandwidths;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bonfire_plan::{
    Algorithm, Collective, ElemRange, Hosts, Partition, PlanError, Rank, Schedule, ScheduleShape,
    Stage, Step, WorldSize, chunks, shard_range,
};
use smallvec::SmallVec;

/// Ranks of a step; no allocation for up to 8.
pub(crate) type Ranks = SmallVec<[Rank; 8]>;

/// One step, as a stream does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Notifies the peer of everything that was done so far.
    Signal(Rank),
    /// Waits until the peer has sent its notification.
    Wait(Rank),
    Fold(Fold),
}

/// One [`Step::ReduceDirect`] of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    pub(crate) range: ElemRange,
    pub(crate) sources: Ranks,
    pub(crate) targets: Ranks,
    pub(crate) stage: Stage,
}

impl Fold {
    /// The ranks whose buffers it is about: the sources in their order, then what is only written.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &Rank> {
        let only_written = |rank: &&Rank| !self.sources.contains(*rank);
        self.sources.iter().chain(self.targets.iter().filter(only_written))
    }
}

/// What one rank does, in order, on one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) actions: Vec<Action>,
    pub(crate) tells: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) me: Rank,
    pub(crate) world_size: WorldSize,
}

impl Program {
    /// The part of a rank in what all do, whose ranges lie where `place_of` says.
    fn new(
        Place { me, world_size }: Place,
        steps_of: impl Fn(Rank) -> Vec<Step>,
        place_of: impl Fn(ElemRange) -> ElemRange,
    ) -> Self {
        let steps = steps_of(me).into_iter();
        let actions = steps.filter_map(|step| action(step, &place_of)).collect();
        let tells = |rank| {
            let steps = steps_of(rank);
            let puts = steps.iter().filter(|step| matches!(step, Step::Put { .. }));
            puts.count() as u32
        };
        Self { actions, tells: world_size.ranks().map(tells).collect() }
    }

    pub(crate) fn folds(&self) -> impl Iterator<Item = &Fold> {
        self.actions.iter().filter_map(|action| match action {
            Action::Fold(fold) => Some(fold),
            Action::Signal(_) | Action::Wait(_) => None,
        })
    }
}

fn action(step: Step, place_of: impl Fn(ElemRange) -> ElemRange) -> Option<Action> {
    match step {
        Step::Put { peer, source } => {
            assert!(source.is_empty(), "a frame of {source} is not in place");
            Some(Action::Signal(peer))
        }
        Step::Wait { peer } => Some(Action::Wait(peer)),
        Step::Release { .. } => None,
        Step::ReduceDirect { range, sources, targets, stage } => Some(Action::Fold(Fold {
            range: place_of(range),
            sources: sources.iter().copied().collect(),
            targets: targets.iter().copied().collect(),
            stage,
        })),
        Step::Reduce { .. } | Step::Copy { .. } => {
            unreachable!("steps in place read no frames, got {step}")
        }
    }
}

/// The programs of the shapes that were used last.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    made: HashMap<Key, Arc<[Program]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) collective: Collective,
    pub(crate) layout: Layout,
    pub(crate) count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// One: every rank folds its shard of all buffers, or copies what it is to have from the others'.
    Direct,
    /// This many rings beside each other.
    Rings(u32),
    /// This many chains beside each other; only an all-reduce has them.
    Chains(u32),
}

/// Shapes that are kept: more than a model has buckets. The oldest are not distinguished from
/// others; all are forgotten at once.
const SHAPES_MAX: usize = 1024;

impl Programs {
    /// One program per stream, made at the first call.
    pub(crate) fn get(&mut self, key: Key, place: Place) -> Result<Arc<[Program]>, PlanError> {
        if let Some(programs) = self.made.get(&key) {
            return Ok(Arc::clone(programs));
        }
        let programs: Arc<[Program]> = match key.layout {
            Layout::Direct => [direct(key, place)?].into(),
            Layout::Rings(lanes) => rings(key, place, lanes as usize)?.into(),
            Layout::Chains(lanes) => {
                assert_eq!(key.collective, Collective::AllReduce, "{key:?}");
                chains(key, place, lanes as usize)?.into()
            }
        };
        if self.made.len() == SHAPES_MAX {
            self.made.clear();
        }
        self.made.insert(key, Arc::clone(&programs));
        Ok(programs)
    }
}

/// The links of a chain are single ranks.
fn schedule(
    collective: Collective,
    algorithm: Algorithm,
    world_size: WorldSize,
    count: usize,
    chunk_elems_max: usize,
) -> Result<Schedule, PlanError> {
    Schedule::new(ScheduleShape {
        collective,
        algorithm,
        world_size,
        count,
        chunk_elems_max: NonZeroUsize::new(chunk_elems_max).unwrap_or(NonZeroUsize::MIN),
        partition: Partition::Balanced,
        hosts: match algorithm {
            Algorithm::Chain => Hosts::new((0..world_size.get()).collect()),
            _ => Hosts::one(world_size),
        },
    })
}

fn direct(key: Key, place: Place) -> Result<Program, PlanError> {
    let algorithm = match key.collective {
        Collective::Barrier => Algorithm::Dissemination,
        Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::AllToAll
        | Collective::Transfer { .. }
        | Collective::Exchange { .. } => Algorithm::OneShot,
        _ => Algorithm::ZeroCopy,
    };
    let (world_size, count) = (place.world_size, key.count);
    let whole = schedule(key.collective, algorithm, world_size, count, count)?;
    let steps_of = |rank| whole.steps_in_place(rank);
    Ok(Program::new(place, steps_of, |range| range))
}

/// The chunks of the ring for the whole buffer, one lane for each chunk of a shard: the lane's chunks, one
/// of each shard, are the balanced shards of fewer elements, and the lane is the ring's schedule for
/// those. So every element is folded in the order that the ring for the whole buffer folds it in.
fn rings(key: Key, place: Place, lanes: usize) -> Result<Vec<Program>, PlanError> {
    let (world_size, collective) = (place.world_size, key.collective);
    let longest = key.count.div_ceil(world_size.len());
    let chunk = NonZeroUsize::new(longest.div_ceil(lanes.max(1))).unwrap_or(NonZeroUsize::MIN);
    let lane = |number: usize| {
        let places: Vec<ElemRange> = world_size
            .ranks()
            .map(|rank| {
                let shard = shard_range(key.count, world_size, rank);
                let nothing = ElemRange::new(shard.end(), shard.end());
                chunks(shard, chunk).nth(number).unwrap_or(nothing)
            })
            .collect();
        let count = places.iter().map(|range| range.len()).sum();
        let ring = schedule(collective, Algorithm::Ring, world_size, count, chunk.get())?;
        let place_of = |range: ElemRange| {
            let owner =
                world_size.ranks().find(|rank| shard_range(count, world_size, *rank) == range);
            let owner = owner.expect("a ring of one chunk per shard folds whole shards");
            let place = places[owner.index()];
            assert_eq!(place.len(), range.len(), "the chunks of a lane are balanced");
            place
        };
        let steps_of = |rank| ring.steps_in_place(rank);
        Ok(Program::new(place, steps_of, place_of))
    };
    (0..lanes).map(lane).collect()
}

/// One chain for each of `lanes` parts of the buffer. A rank reads only the memory of its two
/// neighbours and writes only its own, so the first and the last need not reach each other fast.
fn chains(key: Key, place: Place, lanes: usize) -> Result<Vec<Program>, PlanError> {
    let world_size = place.world_size;
    let part = part_elems(key.count, lanes);
    let lane = |number: usize| {
        let start = (number * part).min(key.count);
        let count = (start + part).min(key.count) - start;
        let (collective, piece) = (key.collective, piece_elems(count));
        let chain = schedule(collective, Algorithm::Chain, world_size, count, piece)?;
        let place_of =
            |range: ElemRange| ElemRange::new(start + range.start(), start + range.end());
        let steps_of = |rank| chain.steps_in_place(rank);
        Ok(Program::new(place, steps_of, place_of))
    };
    (0..lanes).map(lane).collect()
}

/// The longest piece of a chain of `count` elements. The more pieces, the sooner the last rank has
/// something to do; the fewer, the fewer launches.
fn piece_elems(count: usize) -> usize {
    /// Shorter ones cost more to announce than to move: half a MiB of f32.
    const MIN: usize = 128 << 10;
    const PIECES_MAX: usize = 64;
    count.div_ceil(PIECES_MAX).max(MIN)
}

/// The pieces of a chain of `count` elements: those of each rank's shard.
pub(crate) fn pieces(count: usize, world_size: WorldSize) -> usize {
    let shard = count.div_ceil(world_size.len());
    world_size.len() * shard.div_ceil(piece_elems(count)).max(1)
}

/// How many elements a chain beside others has, at most.
pub(crate) fn part_elems(count: usize, lanes: usize) -> usize {
    /// A part of whole lines of a cache, whatever the type of the elements.
    const LINE: usize = 128;
    count.div_ceil(lanes.max(1)).next_multiple_of(LINE)
}

#[cfg(test)]
mod tests;
