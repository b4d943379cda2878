//! Blocks of any length: ragged ones for gathering and scattering, a matrix for the all-to-all; and
//! what moving them costs, element by element.

mod support;

use bonfire_plan::{
    Algorithm, Collective, ElemRange, Hosts, Partition, PlanError, Rank, Role, Schedule,
    ScheduleShape, Step,
};
use support::{Noise, Sizes, block, compute, prove, schedule_of, shape, world};

/// The collectives with one block per rank, by every algorithm that takes blocks of any length.
fn ragged_kinds(root: Rank) -> Vec<(Collective, Algorithm)> {
    let mut kinds = Vec::new();
    for collective in [
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Gather { root },
        Collective::Scatter { root },
    ] {
        for &algorithm in Algorithm::candidates(collective) {
            if algorithm.takes_partition(collective) {
                kinds.push((collective, algorithm));
            }
        }
    }
    kinds
}

/// Blocks of up to `most` elements, many of them empty.
fn lengths(blocks: usize, most: usize, noise: &mut Noise) -> Vec<usize> {
    let mut length = || match noise.next() {
        bits if bits % 3 == 0 => 0,
        bits => (bits >> 8) as usize % (most + 1),
    };
    (0..blocks).map(|_| length()).collect()
}

fn with_partition(shape: ScheduleShape, partition: Partition) -> Schedule {
    let (Partition::Ragged(lengths) | Partition::Matrix(lengths)) = &partition else {
        panic!("a partition with lengths");
    };
    let count = lengths.iter().sum();
    schedule_of(ScheduleShape { count, partition, ..shape })
}

fn sizes(ranks: usize, chunk: usize) -> Sizes {
    Sizes { ranks, count: 0, chunk }
}

fn check_ragged(ranks: usize, chunk: usize, lengths: &[usize]) {
    let root = Rank::new(world(ranks).get() / 2);
    for (collective, algorithm) in ragged_kinds(root) {
        let partition = Partition::Ragged(lengths.into());
        let schedule = with_partition(shape(collective, algorithm, sizes(ranks, chunk)), partition);
        prove(&schedule);
        if ranks <= 6 {
            compute(&schedule, 23);
        }
    }
}

#[test]
fn ragged_blocks_hold_everywhere() {
    let mut noise = Noise(1);
    for ranks in 1..=64 {
        for (most, chunk) in [(1, 1), (9, 4), (300, 100)] {
            check_ragged(ranks, chunk, &lengths(ranks, most, &mut noise));
        }
        let zeros = vec![0; ranks];
        check_ragged(ranks, 3, &zeros);
        // All in one block, at either end.
        for index in [0, ranks - 1] {
            let mut one = zeros.clone();
            one[index] = 17;
            check_ragged(ranks, 5, &one);
        }
    }
}

#[test]
fn a_matrix_of_blocks_holds_everywhere() {
    let mut noise = Noise(2);
    for ranks in 1..=64 {
        for (most, chunk) in [(1, 1), (7, 3)] {
            if ranks > 24 && ranks % 8 != 0 {
                continue;
            }
            for &algorithm in Algorithm::candidates(Collective::AllToAll) {
                if !algorithm.takes_partition(Collective::AllToAll) {
                    continue;
                }
                let lengths = lengths(ranks * ranks, most, &mut noise);
                let shape = shape(Collective::AllToAll, algorithm, sizes(ranks, chunk));
                let schedule = with_partition(shape, Partition::Matrix(lengths.into()));
                let report = prove(&schedule);
                for rank in schedule.world_size().ranks() {
                    let own = block_between(&schedule, rank, rank).len();
                    let len = |role| -> usize {
                        let extent = schedule.extent(rank, role);
                        extent.iter().map(|range| range.len()).sum()
                    };
                    let cost = report.cost.ranks()[rank.index()];
                    assert_eq!(cost.elems_sent as usize, len(Role::Input) - own);
                    assert_eq!(cost.elems_received as usize, len(Role::Output) - own);
                }
                if ranks <= 6 {
                    compute(&schedule, 29);
                }
            }
        }
    }
}

fn block_between(schedule: &Schedule, source: Rank, target: Rank) -> ElemRange {
    block(schedule, source.index() * schedule.world_size().len() + target.index())
}

/// With equal blocks an engine may keep what it brings and what it gets in the same memory: the
/// chunk that is there has left before another takes its place.
#[test]
fn a_chunk_of_an_all_to_all_leaves_before_another_takes_its_place() {
    for ranks in 1..=9 {
        for &algorithm in Algorithm::candidates(Collective::AllToAll) {
            let count = 5 * ranks * ranks;
            let sizes = Sizes { ranks, count, chunk: 2 };
            let schedule = schedule_of(shape(Collective::AllToAll, algorithm, sizes));
            for rank in schedule.world_size().ranks() {
                let mut gone = Vec::new();
                for step in schedule.steps(rank) {
                    match step {
                        Step::Put { peer, source } => gone.push((peer, offset(source, &schedule))),
                        Step::Copy { peer, target } => {
                            let place = (peer, offset(target, &schedule));
                            assert!(gone.contains(&place), "{schedule}: rank {rank}, {step}");
                        }
                        _ => {}
                    }
                }
                assert_eq!(gone.len(), 3 * (ranks - 1), "{schedule}");
            }
        }
    }
}

/// Where in its block a chunk of an all-to-all with blocks of 5 elements begins.
fn offset(range: ElemRange, schedule: &Schedule) -> usize {
    let len = block(schedule, 0).len();
    assert_eq!(len, 5, "the blocks of this test");
    range.start() % len
}

/// A ring hands on every block but one; direct plans send a block once to everyone who needs it.
#[test]
fn ragged_blocks_cost_what_they_hold() {
    let (ranks, mut noise) = (7, Noise(3));
    let lengths = lengths(ranks, 50, &mut noise);
    let count: usize = lengths.iter().sum();
    let root = Rank::new(2);
    for (collective, algorithm) in ragged_kinds(root) {
        let partition = Partition::Ragged(lengths.as_slice().into());
        let schedule = with_partition(shape(collective, algorithm, sizes(ranks, 8)), partition);
        let report = prove(&schedule);
        for rank in schedule.world_size().ranks() {
            let own = lengths[rank.index()];
            let next = lengths[(rank.index() + 1) % ranks];
            let expected = match (collective, algorithm) {
                (Collective::AllGather, Algorithm::Ring) => count - next,
                (Collective::AllGather, Algorithm::OneShot) => (ranks - 1) * own,
                (Collective::ReduceScatter, Algorithm::Ring | Algorithm::OneShot) => count - own,
                (Collective::Gather { .. }, _) if rank == root => 0,
                (Collective::Gather { .. }, _) => own,
                (Collective::Scatter { .. }, _) if rank == root => count - own,
                (Collective::Scatter { .. }, _) => 0,
                _ => continue,
            };
            let cost = report.cost.ranks()[rank.index()];
            assert_eq!(cost.elems_sent as usize, expected, "{schedule}: rank {rank}");
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let refused = |collective, algorithm, count, partition: Partition| {
        let shape = ScheduleShape { count, partition, ..shape(collective, algorithm, sizes(3, 4)) };
        Schedule::new(shape).unwrap_err()
    };
    let gather = Collective::AllGather;
    let ragged = |lengths: &[usize]| Partition::Ragged(lengths.into());
    assert_eq!(
        refused(gather, Algorithm::Ring, 5, ragged(&[2, 3])),
        PlanError::PartitionLength { given: 2, expected: 3 }
    );
    let sum = Some(6);
    assert_eq!(
        refused(gather, Algorithm::Ring, 5, ragged(&[2, 3, 1])),
        PlanError::PartitionSum { sum, count: 5 }
    );
    let error = refused(gather, Algorithm::Ring, 5, ragged(&[usize::MAX, 3, 3]));
    assert_eq!(error, PlanError::PartitionSum { sum: None, count: 5 });
    assert!(error.to_string().contains("more than the address space"));
    for (collective, algorithm) in [
        (Collective::AllReduce, Algorithm::Ring),
        (Collective::AllToAll, Algorithm::Pairwise),
        (gather, Algorithm::ZeroCopy),
    ] {
        let error = refused(collective, algorithm, 6, ragged(&[2, 3, 1]));
        assert_eq!(error, PlanError::UnsupportedPartition { collective });
    }
    let matrix = Partition::Matrix([1; 9].into());
    assert_eq!(
        refused(gather, Algorithm::Ring, 9, matrix),
        PlanError::UnsupportedPartition { collective: gather }
    );
    let short = Partition::Matrix([1; 3].into());
    assert_eq!(
        refused(Collective::AllToAll, Algorithm::Pairwise, 3, short),
        PlanError::PartitionLength { given: 3, expected: 9 }
    );
    assert_eq!(
        refused(Collective::AllToAll, Algorithm::Pairwise, 10, Partition::Balanced),
        PlanError::UnequalBlocks { count: 10, blocks: 9 }
    );
}

#[test]
fn equal_plans_are_equal_however_they_were_asked_for() {
    let balanced =
        shape(Collective::AllGather, Algorithm::Ring, Sizes { ranks: 3, count: 10, chunk: 4 });
    let ragged = |lengths: [usize; 3]| ScheduleShape {
        partition: Partition::Ragged(lengths.into()),
        hosts: Hosts::new(vec![0, 1, 1]),
        ..balanced.clone()
    };
    assert_eq!(ragged([4, 3, 3]).normalized(), balanced);
    assert_ne!(ragged([3, 4, 3]).normalized(), balanced);
    assert_eq!(balanced.layout_hash(), 0);
    let (one, other) = (ragged([3, 4, 3]).normalized(), ragged([3, 3, 4]).normalized());
    assert_ne!(one.layout_hash(), 0);
    assert_ne!(one.layout_hash(), other.layout_hash());
    // Part of what ranks compare: the same on every machine, for ever.
    assert_eq!(one.layout_hash(), 0x60ad_95e1);
}

#[test]
fn hosts_for_another_world_are_refused() {
    let shape = ScheduleShape {
        hosts: Hosts::one(world(2)),
        ..shape(Collective::AllGather, Algorithm::Ring, sizes(3, 4))
    };
    let world_size = world(3);
    let error = PlanError::HostsLength { given: 2, world_size };
    assert_eq!(Schedule::new(shape).unwrap_err(), error);
}
