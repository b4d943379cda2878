use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Collective, Hosts, Partition, Plan, Schedule, ScheduleShape, check_plan,
};

use super::*;

fn schedule(collective: Collective, algorithm: Algorithm, world: u32, count: usize) -> Schedule {
    let world_size = WorldSize::new(world).unwrap();
    Schedule::new(ScheduleShape {
        collective,
        algorithm,
        world_size,
        count,
        chunk_elems_max: NonZeroUsize::new(count.max(1)).unwrap(),
        partition: Partition::Balanced,
        hosts: Hosts::one(world_size),
    })
    .unwrap()
}

/// The chain as a plan that claims to be an all-reduce.
fn plan(world: u32, count: usize) -> Plan {
    let all_reduce = schedule(Collective::AllReduce, Algorithm::ZeroCopy, world, count);
    let barrier = schedule(Collective::Barrier, Algorithm::Dissemination, world, 0);
    let world_size = all_reduce.world_size();
    let steps = world_size
        .ranks()
        .map(|rank| steps(world_size, rank, count, barrier.steps(rank)))
        .collect();
    Plan::with_steps(all_reduce, steps)
}

/// Frames are empty, so a word that counts them is enough: as many slots as there can be frames.
fn slots() -> NonZeroUsize {
    NonZeroUsize::new(1 << 20).unwrap()
}

#[test]
fn a_chain_is_an_all_reduce_without_races_for_every_number_of_ranks() {
    for world in 1..=64 {
        for pieces in [0, 1, 2, 5, 9] {
            // The last piece is shorter.
            let count = (pieces * PIECE_ELEMS_MIN).saturating_sub(7);
            let plan = plan(world, count);
            check_plan(&plan, slots())
                .unwrap_or_else(|error| panic!("{world} ranks, {pieces} pieces: {error}"));
        }
    }
}

#[test]
fn a_chain_longer_than_its_pieces_and_one_of_many_pieces_are_right() {
    for (world, pieces) in [(16, 3), (3, PIECES_MAX), (2, PIECES_MAX)] {
        let plan = plan(world, pieces * PIECE_ELEMS_MIN + 1);
        check_plan(&plan, slots()).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn without_its_barrier_a_chain_races_with_what_follows() {
    let whole = plan(3, PIECE_ELEMS_MIN);
    let rounds = 2;
    let cut = whole.schedule().world_size().ranks().map(|rank| {
        let steps = whole.steps(rank);
        steps[..steps.len() - 3 * rounds].to_vec()
    });
    let cut = Plan::with_steps(whole.schedule().clone(), cut.collect());
    assert!(check_plan(&cut, slots()).is_err(), "{cut}");
}

#[test]
fn a_rank_starts_on_the_next_piece_before_the_first_comes_back() {
    let whole = plan(4, 5 * PIECE_ELEMS_MIN);
    let folds = |rank: u32| -> Vec<bool> {
        let steps = whole.steps(Rank::new(rank)).iter();
        let folds = steps.filter_map(|step| match step {
            Step::ReduceDirect { sources, .. } => Some(sources.len() > 1),
            _ => None,
        });
        folds.collect()
    };
    let (up, down) = (true, false);
    assert_eq!(folds(3), [up; 5]);
    assert_eq!(folds(2), [up, up, down, up, down, up, down, up, down, down]);
    assert_eq!(folds(0), [down; 5]);
}

#[test]
fn all_ranks_tell_equally_much_and_tell_before_they_wait() {
    for world in 2..=9 {
        for pieces in [0, 1, 4, 11] {
            let plan = plan(world, pieces * PIECE_ELEMS_MIN);
            let ranks = plan.schedule().world_size().ranks();
            let puts = ranks.map(|rank| {
                let steps = plan.steps(rank);
                assert!(matches!(steps[0], Step::Put { .. }), "{plan}");
                let puts = steps.iter().filter(|step| matches!(step, Step::Put { .. }));
                puts.count()
            });
            let puts: Vec<usize> = puts.collect();
            assert!(puts.iter().all(|own| *own == puts[0]), "{puts:?}");
        }
    }
}

#[test]
fn there_are_no_more_pieces_than_pay() {
    for count in [0, 1, PIECE_ELEMS_MIN, 10 * PIECE_ELEMS_MIN, 1 << 34] {
        let pieces = count.div_ceil(piece_elems(count).get());
        assert!(pieces <= PIECES_MAX, "{count} elements in {pieces}");
        assert!(piece_elems(count).get() >= PIECE_ELEMS_MIN, "{count}");
    }
}
