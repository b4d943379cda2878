//! What the tests of this crate share: short ways to name schedules, and an engine that executes
//! plans on real numbers and has no line in common with the verifier.

#![allow(dead_code, reason = "each test binary uses its own part of this module")]

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Collective, ElemRange, Hosts, Partition, Plan, Rank, Report, Schedule,
    ScheduleShape, Source, Stage, Step, WorldSize, check_plan, shard_range,
};

/// Larger than any buffer in these tests: one chunk is enough.
pub(crate) const UNCHUNKED: usize = 1 << 20;

pub(crate) fn world(ranks: usize) -> WorldSize {
    let ranks = u32::try_from(ranks).expect("a test's world is small");
    WorldSize::new(ranks).expect("a test's world has ranks")
}

pub(crate) fn elems(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).expect("a test's chunk has elements")
}

/// A schedule, with its sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) ranks: usize,
    pub(crate) count: usize,
    pub(crate) chunk: usize,
}

/// Balanced blocks, and all ranks on one host.
pub(crate) fn shape(collective: Collective, algorithm: Algorithm, sizes: Sizes) -> ScheduleShape {
    ScheduleShape {
        collective,
        algorithm,
        world_size: world(sizes.ranks),
        count: sizes.count,
        chunk_elems_max: elems(sizes.chunk),
        partition: Partition::Balanced,
        hosts: Hosts::one(world(sizes.ranks)),
    }
}

pub(crate) fn schedule(collective: Collective, algorithm: Algorithm, sizes: Sizes) -> Schedule {
    schedule_of(shape(collective, algorithm, sizes))
}

pub(crate) fn schedule_of(shape: ScheduleShape) -> Schedule {
    Schedule::new(shape).expect("the tests ask only for schedules that exist")
}

/// The report on a schedule, which must pass, and alike with one slot and with two.
pub(crate) fn prove(schedule: &Schedule) -> Report {
    let plan = Plan::new(schedule.clone());
    let shape = schedule.shape();
    let fail = |error| -> Report { panic!("{schedule}: {error}\n{shape:?}") };
    let report = check_plan(&plan, elems(1)).unwrap_or_else(fail);
    let wider = check_plan(&plan, elems(2)).unwrap_or_else(fail);
    assert_eq!(report, wider, "{schedule}: slots change the report");
    report
}

/// Runs a schedule on numbers, with one slot; the result must be what was promised.
pub(crate) fn compute(schedule: &Schedule, seed: u64) {
    let plan = Plan::new(schedule.clone());
    let input = Noise(seed).words(schedule);
    let output = execute(&plan, 1, input.clone()).expect("a proved plan runs to its end");
    let shape = schedule.shape();
    assert!(is_promised(schedule, &input, &output), "{schedule}\n{shape:?}");
}

/// One collective of each kind that a world of this size has; roots and pairs in its middle.
pub(crate) fn collectives(ranks: usize) -> Vec<Collective> {
    let world = world(ranks);
    let root = Rank::new(world.get() / 2);
    let mut collectives = vec![
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Barrier,
        Collective::Reduce { root },
        Collective::Gather { root },
        Collective::Scatter { root },
        Collective::AllToAll,
    ];
    if ranks > 1 {
        let (first, second) = (world.prev(root), root);
        collectives.push(Collective::Transfer { source: second, target: first });
        collectives.push(Collective::Exchange { first, second });
    }
    collectives
}

/// Every collective by every algorithm that implements it.
pub(crate) fn all_kinds(ranks: usize) -> Vec<(Collective, Algorithm)> {
    let with_algorithms = |collective| {
        let algorithms = Algorithm::candidates(collective).iter();
        algorithms.map(move |&algorithm| (collective, algorithm))
    };
    let collectives = collectives(ranks).into_iter();
    collectives.flat_map(with_algorithms).collect()
}

/// The nearest count that the collective can have.
pub(crate) fn possible_count(collective: Collective, ranks: usize, count: usize) -> usize {
    match collective {
        Collective::Barrier => 0,
        Collective::AllToAll => count.next_multiple_of(ranks * ranks),
        _ => count,
    }
}

/// Every step list of a schedule, for changing one of them.
pub(crate) fn step_lists(schedule: &Schedule) -> Vec<Vec<Step>> {
    schedule.world_size().ranks().map(|rank| schedule.steps(rank)).collect()
}

/// What an element can be, and what the two operations on it are.
pub(crate) trait Number: Copy + PartialEq + std::fmt::Debug {
    fn fold(self, other: Self) -> Self;
    fn finish(self) -> Self;
}

/// Wrapping sums; finishing is neither the identity nor the same when done twice.
impl Number for u64 {
    fn fold(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn finish(self) -> Self {
        self.wrapping_mul(3).wrapping_add(1)
    }
}

/// Sums whose bits depend on the order, without a division at the end.
impl Number for f32 {
    fn fold(self, other: Self) -> Self {
        self + other
    }

    fn finish(self) -> Self {
        self
    }
}

struct Frame<T> {
    data: Vec<T>,
    awaited: bool,
}

/// Executes a plan on numbers; `None` when it gets stuck or does something impossible.
pub(crate) fn execute<T: Number>(
    plan: &Plan,
    slots: usize,
    mut data: Vec<Vec<T>>,
) -> Option<Vec<Vec<T>>> {
    let ranks: Vec<Rank> = plan.schedule().world_size().ranks().collect();
    let mut places = vec![0; ranks.len()];
    let mut inboxes: HashMap<(Rank, Rank), VecDeque<Frame<T>>> = HashMap::new();
    loop {
        let mut moved = false;
        for &rank in &ranks {
            while let Some(step) = plan.steps(rank).get(places[rank.index()]) {
                let mut local = Local { rank, data: &mut data, slots };
                if !execute_step(step, &mut local, &mut inboxes)? {
                    break;
                }
                places[rank.index()] += 1;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let finished = ranks.iter().all(|&rank| places[rank.index()] == plan.steps(rank).len());
    let drained = inboxes.values().all(VecDeque::is_empty);
    (finished && drained).then_some(data)
}

/// The buffers of all ranks, of which a step that is not direct uses its own rank's only.
struct Local<'a, T> {
    rank: Rank,
    data: &'a mut [Vec<T>],
    slots: usize,
}

/// Whether the step was taken; `None` when it is impossible.
fn execute_step<T: Number>(
    step: &Step,
    local: &mut Local<'_, T>,
    inboxes: &mut HashMap<(Rank, Rank), VecDeque<Frame<T>>>,
) -> Option<bool> {
    let (rank, slots) = (local.rank, local.slots);
    let own = &mut local.data[rank.index()];
    match step {
        Step::Put { peer, source } => {
            let inbox = inboxes.entry((rank, *peer)).or_default();
            if inbox.len() >= slots {
                return Some(false);
            }
            let data = own.get(source.as_range())?.to_vec();
            inbox.push_back(Frame { data, awaited: false });
        }
        Step::Wait { peer } => match inboxes.entry((*peer, rank)).or_default().front_mut() {
            None => return Some(false),
            Some(frame) if frame.awaited => return None,
            Some(frame) => frame.awaited = true,
        },
        Step::Reduce { target, sources, stage } => {
            let operands: Option<Vec<Vec<T>>> = sources
                .iter()
                .map(|source| match source {
                    Source::Own => own.get(target.as_range()).map(<[T]>::to_vec),
                    Source::Inbox(peer) => readable(inboxes, (*peer, rank), target.len()),
                })
                .collect();
            let result = folded(&operands?, *stage)?;
            own.get_mut(target.as_range())?.copy_from_slice(&result);
        }
        Step::Copy { peer, target } => {
            let frame = readable(inboxes, (*peer, rank), target.len())?;
            own.get_mut(target.as_range())?.copy_from_slice(&frame);
        }
        Step::Release { peer } => {
            let frame = inboxes.entry((*peer, rank)).or_default().pop_front()?;
            if !frame.awaited {
                return None;
            }
        }
        Step::ReduceDirect { range, sources, targets, stage } => {
            let operand = |source: &Rank| {
                let data = local.data.get(source.index())?;
                data.get(range.as_range()).map(<[T]>::to_vec)
            };
            let operands: Option<Vec<Vec<T>>> = sources.iter().map(operand).collect();
            let result = folded(&operands?, *stage)?;
            for target in targets {
                let data = local.data.get_mut(target.index())?;
                data.get_mut(range.as_range())?.copy_from_slice(&result);
            }
        }
    }
    Some(true)
}

/// The fold of equally long operands; `None` without any.
fn folded<T: Number>(operands: &[Vec<T>], stage: Stage) -> Option<Vec<T>> {
    let (first, rest) = operands.split_first()?;
    let element = |(index, &first): (usize, &T)| {
        let folded = rest.iter().fold(first, |sum, next| sum.fold(next[index]));
        match stage {
            Stage::Partial => folded,
            Stage::Final => folded.finish(),
        }
    };
    Some(first.iter().enumerate().map(element).collect())
}

fn readable<T: Number>(
    inboxes: &HashMap<(Rank, Rank), VecDeque<Frame<T>>>,
    link: (Rank, Rank),
    len: usize,
) -> Option<Vec<T>> {
    let frame = inboxes.get(&link)?.front()?;
    (frame.awaited && frame.data.len() == len).then(|| frame.data.clone())
}

/// Whether `output` is what the collective promises for `input`, where sums run over the ranks in
/// ascending order. Buffers have the whole space of elements on every rank.
pub(crate) fn is_promised<T: Number>(
    schedule: &Schedule,
    input: &[Vec<T>],
    output: &[Vec<T>],
) -> bool {
    let (world, count) = (schedule.world_size(), schedule.count());
    let folded = |at: usize| {
        let sum = input.iter().map(|data| data[at]).reduce(T::fold);
        sum.expect("a world has ranks").finish()
    };
    let holds_fold = |rank: Rank, range: ElemRange| {
        range.as_range().all(|at| output[rank.index()][at] == folded(at))
    };
    let holds_data_of = |rank: Rank, owner: Rank, range: ElemRange| {
        output[rank.index()][range.as_range()] == input[owner.index()][range.as_range()]
    };
    let everything = ElemRange::up_to(count);
    let holds_blocks = |rank: Rank| {
        let mut owners = world.ranks();
        owners.all(|owner| holds_data_of(rank, owner, block(schedule, owner.index())))
    };
    world.ranks().all(|rank| match schedule.collective() {
        Collective::AllReduce => holds_fold(rank, everything),
        Collective::ReduceScatter => holds_fold(rank, block(schedule, rank.index())),
        Collective::Reduce { root } => rank != root || holds_fold(rank, everything),
        Collective::AllGather => holds_blocks(rank),
        Collective::Gather { root } => rank != root || holds_blocks(rank),
        Collective::Scatter { root } => holds_data_of(rank, root, block(schedule, rank.index())),
        Collective::AllToAll => world.ranks().all(|source| {
            let index = source.index() * world.len() + rank.index();
            holds_data_of(rank, source, block(schedule, index))
        }),
        Collective::Broadcast { root } => holds_data_of(rank, root, everything),
        Collective::Barrier => true,
        Collective::Transfer { source, target } => {
            rank != target || holds_data_of(rank, source, everything)
        }
        Collective::Exchange { first, second } => {
            let theirs = ElemRange::new(count, 2 * count);
            (rank != first || holds_data_of(rank, second, theirs))
                && (rank != second || holds_data_of(rank, first, everything))
        }
    })
}

/// The block with this number; of an all-to-all, row by row.
pub(crate) fn block(schedule: &Schedule, index: usize) -> ElemRange {
    let (ranks, count) = (schedule.world_size().len(), schedule.count());
    match &schedule.shape().partition {
        Partition::Ragged(lengths) | Partition::Matrix(lengths) => {
            let start = lengths[..index].iter().sum();
            ElemRange::new(start, start + lengths[index])
        }
        Partition::Balanced if schedule.collective() == Collective::AllToAll => {
            let len = count / (ranks * ranks);
            ElemRange::new(index * len, index * len + len)
        }
        Partition::Balanced => {
            let rank = Rank::new(u32::try_from(index).expect("a test's world is small"));
            shard_range(count, schedule.world_size(), rank)
        }
    }
}

/// A small generator for data, so that every case is the same in every run.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    /// The next 64 bits of the SplitMix64 sequence.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn words(&mut self, schedule: &Schedule) -> Vec<Vec<u64>> {
        let row = |_| (0..schedule.space().len()).map(|_| self.next()).collect();
        schedule.world_size().ranks().map(row).collect()
    }

    pub(crate) fn floats(&mut self, schedule: &Schedule) -> Vec<Vec<f32>> {
        let mut float = || (self.next() >> 40) as f32 / (1 << 20) as f32 - 8.0;
        let mut rows = Vec::new();
        for _ in schedule.world_size().ranks() {
            rows.push((0..schedule.space().len()).map(|_| float()).collect());
        }
        rows
    }
}
