//! The ring engine: runs the ring plans of `bonfire-plan`, chunk by chunk, on several streams beside each
//! other.
//!
//! A frame of the plan is not moved: a rank that puts a chunk only tells the next one that it is ready, and
//! the next one reads it where it lies. That is safe without any word back: in the ring plans a rank writes
//! a chunk that its neighbour was to read only after the complete result came round to it, which took that
//! neighbour's read. A barrier ends the operation, since the neighbour may still be reading the last chunks.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Collective, ElemRange, Hosts, Partition, PlanError, Rank, ReduceOp, Schedule,
    ScheduleShape, Stage, Step, WorldSize, chunks, shard_range,
};
use bonfire_sys::cuda::{Context, CudaError, Event, FoldLaunch, Priority, Stream};

use super::buffer::Elements;
use super::engine::{Job, Spans};
use super::group::State;
use super::kernels::{copy_key, divisor, key};

/// The streams of a ring, and what to queue on them for each number of elements.
#[derive(Debug)]
pub(super) struct Ring {
    lanes: Vec<Lane>,
    begun: Event,
    programs: HashMap<(Collective, usize), Program>,
}

/// One stream, and the event of its end.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    done: Event,
}

/// For each lane what it does, in order.
type Program = Vec<Vec<LaneStep>>;

/// A step of a plan, as a lane does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneStep {
    /// The next rank may read what this one has written.
    Send,
    /// The previous rank has written what comes next.
    Receive,
    /// Folds the previous rank's chunk and the own into the own.
    Fold(ElemRange, Stage),
    /// Copies the previous rank's chunk to the own.
    Copy(ElemRange),
}

impl Ring {
    pub(super) fn new(context: &Context, channels: u32) -> Result<Self, CudaError> {
        let lane = |_| {
            Ok(Lane {
                stream: Stream::new(context, Priority::High)?,
                done: Event::new(context)?,
            })
        };
        let lanes: Result<Vec<Lane>, CudaError> = (0..channels.max(1)).map(lane).collect();
        Ok(Self {
            lanes: lanes?,
            begun: Event::new(context)?,
            programs: HashMap::new(),
        })
    }

    /// Works the plan out, unless it has been already.
    pub(super) fn prepare(
        &mut self,
        collective: Collective,
        place: Place,
        elements: &Elements,
    ) -> Result<(), PlanError> {
        let index = (collective, elements.count());
        if !self.programs.contains_key(&index) {
            let program = program(collective, place, elements.count(), self.lanes.len())?;
            self.programs.insert(index, program);
        }
        Ok(())
    }
}

/// A rank and its world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) me: Rank,
    pub(super) world_size: WorldSize,
}

fn program(
    collective: Collective,
    place: Place,
    count: usize,
    lanes: usize,
) -> Result<Program, PlanError> {
    let Place { me, world_size } = place;
    let longest = count.div_ceil(world_size.len());
    let chunk_elems_max = NonZeroUsize::new(longest.div_ceil(lanes)).unwrap_or(NonZeroUsize::MIN);
    let schedule = Schedule::new(ScheduleShape {
        collective,
        algorithm: Algorithm::Ring,
        world_size,
        count,
        chunk_elems_max,
        partition: Partition::Balanced,
        hosts: Hosts::one(world_size),
    })?;
    // The chunks of a shard go to the lanes in order: at most one to each.
    let mut lane_of = HashMap::new();
    for rank in world_size.ranks() {
        let shard = shard_range(count, world_size, rank);
        for (lane, chunk) in chunks(shard, chunk_elems_max).enumerate() {
            lane_of.entry(chunk.start()).or_insert(lane);
        }
    }
    let mut program: Program = vec![Vec::new(); lanes];
    for step in schedule.steps(me) {
        let (range, lane_steps): (ElemRange, &[LaneStep]) = match &step {
            Step::Put { source, .. } => (*source, &[LaneStep::Send]),
            Step::Reduce { target, stage, .. } => (
                *target,
                &[LaneStep::Receive, LaneStep::Fold(*target, *stage)],
            ),
            Step::Copy { target, .. } => (*target, &[LaneStep::Receive, LaneStep::Copy(*target)]),
            // What is awaited is known from the step behind it, and nothing is moved that could be freed.
            Step::Wait { .. } | Step::Release { .. } => continue,
            Step::ReduceDirect { .. } => unreachable!("a ring reaches into no buffers"),
        };
        program[lane_of[&range.start()]].extend_from_slice(lane_steps);
    }
    Ok(program)
}

impl State {
    /// The kernels that a ring needs.
    pub(super) fn ring_keys(
        elements: &Elements,
        reduce: ReduceOp,
    ) -> [bonfire_sys::cuda::FoldKey; 2] {
        [key(elements.dtype, reduce, 2), copy_key(elements.dtype)]
    }

    /// Queues a ring on its lanes, between the work before and behind it on the main stream.
    pub(super) fn run_ring(
        &mut self,
        job: Job<'_>,
        collective: Collective,
        reduce: ReduceOp,
    ) -> Result<(), CudaError> {
        let ring = self.ring.take().expect("made before the operation");
        let result = self.queue_ring(&ring, job, collective, reduce);
        self.flags.clear();
        self.ring = Some(ring);
        result
    }

    fn queue_ring(
        &mut self,
        ring: &Ring,
        job: Job<'_>,
        collective: Collective,
        reduce: ReduceOp,
    ) -> Result<(), CudaError> {
        let program = &ring.programs[&(collective, job.elements.count())];
        self.stream.record(&ring.begun)?;
        for (number, (lane, steps)) in ring.lanes.iter().zip(program).enumerate() {
            let channel = number as u32;
            lane.stream.wait(&ring.begun)?;
            for step in steps {
                match step {
                    LaneStep::Send => self.flags.send(channel),
                    LaneStep::Receive => self.flags.receive(channel),
                    LaneStep::Fold(range, stage) => {
                        self.flags.queue(&lane.stream)?;
                        self.fold_from_previous(lane, job, *range, (reduce, *stage))?;
                    }
                    LaneStep::Copy(range) => {
                        self.flags.queue(&lane.stream)?;
                        self.copy_from_previous(lane, job, *range)?;
                    }
                }
            }
            self.flags.queue(&lane.stream)?;
            lane.stream.record(&lane.done)?;
            self.stream.wait(&lane.done)?;
        }
        self.flags.barrier(&self.stream)
    }

    fn fold_from_previous(
        &self,
        lane: &Lane,
        job: Job<'_>,
        range: ElemRange,
        (reduce, stage): (ReduceOp, Stage),
    ) -> Result<(), CudaError> {
        let prev = self.world_size.prev(self.me).index();
        let own = job.buffer.part(self.me.index(), job.elements, range);
        let sources: Spans = [job.buffer.part(prev, job.elements, range), own.clone()]
            .into_iter()
            .collect();
        let world = self.world_size.len();
        let launch = FoldLaunch {
            sources: &sources,
            targets: &[own],
            divisor: match stage {
                Stage::Partial => 1,
                Stage::Final => divisor(reduce, world),
            },
            blocks_max: self.blocks_max,
        };
        self.kernel(key(job.elements.dtype, reduce, 2))
            .launch(&lane.stream, &launch)
    }

    fn copy_from_previous(
        &self,
        lane: &Lane,
        job: Job<'_>,
        range: ElemRange,
    ) -> Result<(), CudaError> {
        let prev = self.world_size.prev(self.me).index();
        let launch = FoldLaunch {
            sources: &[job.buffer.part(prev, job.elements, range)],
            targets: &[job.buffer.part(self.me.index(), job.elements, range)],
            divisor: 1,
            blocks_max: self.blocks_max,
        };
        self.kernel(copy_key(job.elements.dtype))
            .launch(&lane.stream, &launch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(world: u32, count: usize, lanes: usize) -> Vec<Program> {
        let world_size = WorldSize::new(world).unwrap();
        let place = |me| Place { me, world_size };
        world_size
            .ranks()
            .map(|me| program(Collective::AllReduce, place(me), count, lanes).unwrap())
            .collect()
    }

    #[test]
    fn what_a_rank_sends_on_a_lane_its_next_one_receives_there() {
        for (world, count, lanes) in [(2, 10, 1), (3, 100, 4), (4, 3, 2), (8, 1001, 4), (5, 0, 3)] {
            let programs = programs(world, count, lanes);
            let number = |rank: usize, lane: usize, wanted: LaneStep| {
                let steps = &programs[rank][lane];
                steps.iter().filter(|step| **step == wanted).count()
            };
            for rank in 0..world as usize {
                let next = (rank + 1) % world as usize;
                for lane in 0..lanes {
                    assert_eq!(
                        number(rank, lane, LaneStep::Send),
                        number(next, lane, LaneStep::Receive),
                        "{world} ranks, {count} elements, lane {lane} of rank {rank}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_element_is_written_by_every_rank() {
        let (world, count) = (4, 1003);
        for program in programs(world, count, 3) {
            let mut times = vec![0; count];
            for step in program.iter().flatten() {
                if let LaneStep::Fold(range, _) | LaneStep::Copy(range) = step {
                    times[range.as_range()].iter_mut().for_each(|t| *t += 1);
                }
            }
            assert!(times.iter().all(|t| (1..=2).contains(t)), "{times:?}");
        }
    }
}
