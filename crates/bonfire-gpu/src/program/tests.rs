//! Programs against the schedules that they are made of.

use std::collections::{BTreeMap, HashSet};

use super::*;

fn place(world: u32, me: u32) -> Place {
    Place { me: Rank::new(me), world_size: WorldSize::new(world).unwrap() }
}

fn key(collective: Collective, layout: Layout, count: usize) -> Key {
    Key { collective, layout, count }
}

/// The programs of all ranks, for each lane.
fn all(world: u32, key: Key) -> Vec<Arc<[Program]>> {
    (0..world).map(|me| Programs::default().get(key, place(world, me)).unwrap()).collect()
}

/// The same, lane by lane: the programs of all ranks.
fn by_lane(programs: &[Arc<[Program]>]) -> Vec<Vec<&Program>> {
    let lanes = 0..programs[0].len();
    lanes.map(|lane| programs.iter().map(|own| &own[lane]).collect()).collect()
}

#[test]
fn a_direct_program_is_the_zero_copy_schedule_step_by_step() {
    let root = Rank::new(1);
    for collective in [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Reduce { root },
    ] {
        let whole =
            schedule(collective, Algorithm::ZeroCopy, WorldSize::new(5).unwrap(), 23, 23).unwrap();
        for me in 0..5 {
            let programs =
                Programs::default().get(key(collective, Layout::Direct, 23), place(5, me)).unwrap();
            let expected: Vec<Action> = whole
                .steps_in_place(Rank::new(me))
                .into_iter()
                .filter_map(|step| action(step, |range| range))
                .collect();
            assert_eq!(programs[0].actions, expected, "{collective}");
            assert_eq!(programs[0].folds().count(), 1, "{collective}");
        }
    }
}

#[test]
fn what_a_rank_tells_a_peer_hears() {
    for (world, count) in [(2, 10), (3, 100), (4, 3), (8, 1001), (5, 0)] {
        for layout in [
            Layout::Direct,
            Layout::Rings(1),
            Layout::Rings(4),
            Layout::Chains(1),
            Layout::Chains(4),
        ] {
            let programs = all(world, key(Collective::AllReduce, layout, count));
            for lane in by_lane(&programs) {
                let number = |rank: usize, wanted: Action| {
                    let actions = &lane[rank].actions;
                    actions.iter().filter(|action| **action == wanted).count()
                };
                for from in 0..world {
                    let mut signals = 0;
                    for to in (0..world).filter(|to| *to != from) {
                        let tells = number(from as usize, Action::Signal(Rank::new(to)));
                        let hears = number(to as usize, Action::Wait(Rank::new(from)));
                        assert_eq!(tells, hears, "{world} ranks, {layout:?}, {from} to {to}");
                        signals += tells;
                    }
                    let tells = lane[0].tells[from as usize];
                    assert_eq!(tells as usize, signals, "{world} ranks, {layout:?}");
                }
            }
        }
    }
}

/// Every element with the ranks whose values were folded into it, in order, by following the folds of all
/// ranks in an order that the messages allow.
fn folded(programs: &[Arc<[Program]>], count: usize) -> Vec<Vec<Vec<u32>>> {
    let ranks = programs.len();
    let mut values: Vec<Vec<Vec<u32>>> =
        (0..ranks as u32).map(|rank| vec![vec![rank]; count]).collect();
    for lane in by_lane(programs) {
        let mut next = vec![0; ranks];
        let mut words: BTreeMap<(u32, usize), usize> = BTreeMap::new();
        loop {
            let mut moved = false;
            for rank in 0..ranks {
                let Some(action) = lane[rank].actions.get(next[rank]) else {
                    continue;
                };
                match action {
                    Action::Signal(peer) => {
                        *words.entry((rank as u32, peer.index())).or_default() += 1;
                    }
                    Action::Wait(peer) => {
                        let word = words.entry((peer.get(), rank)).or_default();
                        if *word == 0 {
                            continue;
                        }
                        *word -= 1;
                    }
                    Action::Fold(fold) => {
                        for index in fold.range.as_range() {
                            let sources = fold.sources.iter();
                            let result: Vec<u32> = sources
                                .flat_map(|rank| values[rank.index()][index].clone())
                                .collect();
                            for target in &fold.targets {
                                values[target.index()][index].clone_from(&result);
                            }
                        }
                    }
                }
                next[rank] += 1;
                moved = true;
            }
            if !moved {
                break;
            }
        }
        let done = |rank: usize| next[rank] == lane[rank].actions.len();
        assert!((0..ranks).all(done), "no rank is left waiting");
    }
    values
}

#[test]
fn rings_beside_each_other_fold_in_the_order_of_one_ring() {
    for (world, count, lanes) in [(2, 10, 1), (3, 100, 4), (4, 3, 2), (8, 1001, 4), (5, 7, 3)] {
        let shape = key(Collective::AllReduce, Layout::Rings(lanes), count);
        let values = folded(&all(world, shape), count);
        let world_size = WorldSize::new(world).unwrap();
        for owner in world_size.ranks() {
            let order: Vec<u32> = (1..=world).map(|hop| (owner.get() + hop) % world).collect();
            for index in shard_range(count, world_size, owner).as_range() {
                for (rank, values) in values.iter().enumerate() {
                    assert_eq!(values[index], order, "element {index} on rank {rank}");
                }
            }
        }
    }
}

#[test]
fn a_direct_all_reduce_folds_in_the_canonical_order() {
    let shape = key(Collective::AllReduce, Layout::Direct, 11);
    for values in folded(&all(4, shape), 11) {
        assert!(values.iter().all(|order| *order == [0, 1, 2, 3]));
    }
}

#[test]
fn chains_beside_each_other_fold_in_the_canonical_order() {
    // A chain of one piece, chains that are empty, and chains of several pieces.
    for (world, count, lanes) in
        [(2, 10, 1), (3, 300, 4), (4, 3, 2), (8, 1001, 4), (4, 400_000, 1), (3, 700_001, 2)]
    {
        let shape = key(Collective::AllReduce, Layout::Chains(lanes), count);
        let order: Vec<u32> = (0..world).collect();
        for values in folded(&all(world, shape), count) {
            assert!(values.iter().all(|found| *found == order), "{shape:?}");
        }
    }
}

#[test]
fn a_chain_has_the_pieces_that_its_estimate_says_and_no_more_than_pay() {
    for (world, count) in [(2, 10), (3, 128 << 10), (4, 900_000), (8, 20 << 20)] {
        let shape = key(Collective::AllReduce, Layout::Chains(1), count);
        let programs = all(world, shape);
        let pieces = pieces(count, WorldSize::new(world).unwrap());
        // The last rank folds each of them once.
        let last = &programs[world as usize - 1][0];
        let shards = world as usize;
        assert!(last.folds().count() <= pieces, "{shape:?}");
        assert!(pieces <= last.folds().count() + shards, "{shape:?}");
        assert!(pieces <= 64 + shards, "{shape:?}: {pieces}");
    }
}

#[test]
fn every_kind_of_fold_is_among_those_of_as_many_elements_as_there_are_ranks_and_lanes() {
    // That is what kernels are loaded for, before the first operation of a kind.
    for (world, lanes) in [(2, 1), (4, 4), (8, 3)] {
        for me in 0..world {
            let kinds = |count| {
                let shape = key(Collective::AllReduce, Layout::Chains(lanes), count);
                let programs = Programs::default().get(shape, place(world, me)).unwrap();
                let folds = programs.iter().flat_map(Program::folds);
                let kind = |fold: &Fold| (fold.sources.clone(), fold.targets.clone(), fold.stage);
                folds.map(kind).collect::<HashSet<_>>()
            };
            assert_eq!(kinds((world * lanes) as usize), kinds(900_000));
        }
    }
}

#[test]
fn a_barrier_is_one_hop_in_which_all_tell_all() {
    for world in [1, 2, 3, 8, 16] {
        let programs = all(world, key(Collective::Barrier, Layout::Direct, 0));
        for program in &programs {
            let (signals, heard) = program[0].actions.split_at(world as usize - 1);
            assert!(signals.iter().all(|action| matches!(action, Action::Signal(_))));
            assert!(heard.iter().all(|action| matches!(action, Action::Wait(_))));
            assert_eq!(signals.len(), heard.len(), "{world} ranks");
        }
        // One before the kernel of an all-reduce and one behind it.
        let shape = key(Collective::AllReduce, Layout::Direct, 1000);
        let signals: u32 = all(world, shape)[0][0].tells.iter().sum();
        assert_eq!(signals, 2 * world * (world - 1), "{world} ranks");
    }
}

#[test]
fn programs_are_made_once_and_no_more_than_a_bound_are_kept() {
    let mut programs = Programs::default();
    let shape = |count| key(Collective::AllReduce, Layout::Direct, count);
    let first = programs.get(shape(1), place(2, 0)).unwrap();
    let again = programs.get(shape(1), place(2, 0)).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    for count in 0..2 * SHAPES_MAX {
        programs.get(shape(count), place(2, 0)).unwrap();
        assert!(programs.made.len() <= SHAPES_MAX);
    }
}
