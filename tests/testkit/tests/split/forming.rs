//! Who is in the parts of a group, and that they work.

use std::thread;

use bonfire_collective::{ProcessGroup, Rank, ReduceOp};
use bonfire_testkit::conformance::{Bits, check_all};
use bonfire_testkit::{local, on_hosts};

use super::{everywhere, members, options, sum_of_members};

#[test]
fn even_and_odd_ranks_form_two_groups() {
    for (transport, ranks) in everywhere(5, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        assert_eq!(half.rank().get(), me / 2);
        assert_eq!(half.world_rank(half.rank()), world.rank());
        // The world goes on, and outlives nothing: the part needs it no more.
        world.barrier().unwrap();
        drop(world);
        (members(&half), sum_of_members(&half), half.number())
    }) {
        let number = |rank: usize| ranks[rank].2;
        for (rank, (members, sum, _)) in ranks.iter().enumerate() {
            let (expected, total) =
                if rank % 2 == 0 { (vec![0, 2, 4], 6) } else { (vec![1, 3], 4) };
            assert_eq!((members, *sum), (&expected, total), "{transport}");
            assert_eq!(number(rank), number(rank % 2), "{transport}");
        }
        assert!(number(0) != number(1) && number(0) * number(1) != 0);
    }
}

#[test]
fn keys_order_the_ranks_and_equal_keys_keep_their_order() {
    for (transport, ranks) in everywhere(4, |world| {
        let me = i64::from(world.rank().get());
        let reversed = world.split(Some(9), -me).unwrap().unwrap();
        let swapped = world.split(Some(0), (me / 2 + 1) % 2).unwrap().unwrap();
        assert_eq!(sum_of_members(&reversed) + sum_of_members(&swapped), 12);
        (members(&reversed), members(&swapped))
    }) {
        for (reversed, swapped) in ranks {
            assert_eq!(reversed, [3, 2, 1, 0], "{transport}");
            assert_eq!(swapped, [2, 3, 0, 1], "{transport}");
        }
    }
}

#[test]
fn a_rank_without_a_color_takes_part_and_gets_nothing() {
    for (transport, ranks) in everywhere(4, |world| {
        let color = (world.rank().get() % 3 != 0).then_some(7);
        let group = world.split(color, 0).unwrap();
        let nobody = world.split(None, 0).unwrap();
        assert!(nobody.is_none());
        world.barrier().unwrap();
        group.map(|group| (members(&group), sum_of_members(&group)))
    }) {
        let inside = Some((vec![1, 2], 3));
        assert_eq!(ranks, [None, inside.clone(), inside, None], "{transport}");
    }
}

#[test]
fn a_part_can_be_split_again() {
    for (transport, ranks) in everywhere(6, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), -i64::from(me)).unwrap().unwrap();
        let color = (half.rank().get() < 2).then_some(3);
        let pair = half.split(color, -1).unwrap();
        let alone = half.split(Some(half.rank().get()), 0).unwrap().unwrap();
        assert_eq!(sum_of_members(&alone), me);
        let pair = pair.map(|pair| {
            assert_eq!(pair.world_rank(pair.rank()).get(), me);
            (members(&pair), sum_of_members(&pair))
        });
        (pair, [world.number(), half.number(), alone.number()])
    }) {
        let (pairs, numbers): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        let (even, odd) = (Some((vec![4, 2], 6)), Some((vec![5, 3], 8)));
        assert_eq!(pairs, [None, None, even.clone(), odd.clone(), even, odd], "{transport}");
        let mut alone: Vec<u32> = numbers.iter().map(|numbers| numbers[2]).collect();
        alone.extend([numbers[0][0], numbers[0][1], numbers[1][1]]);
        alone.sort_unstable();
        alone.dedup();
        assert_eq!(alone.len(), 6 + 3, "{transport}: every group has its own number");
    }
}

#[test]
fn a_group_of_one_splits_into_itself() {
    for (_, ranks) in everywhere(1, |world| {
        let again = world.split(Some(u32::MAX), i64::MIN).unwrap().unwrap();
        check_all(&again, Bits::Canonical)
    }) {
        assert_eq!(ranks.len(), 1);
    }
}

#[test]
fn several_groups_work_at_once_on_several_threads_of_a_rank() {
    for (_, ranks) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        let pair = world.split(Some(me / 2), 0).unwrap().unwrap();
        let groups = [&world, &half, &pair];
        let total = |group: &ProcessGroup| -> u32 { (0..40).map(|_| sum_of_members(group)).sum() };
        thread::scope(|scope| {
            let threads = groups.map(|group| scope.spawn(move || total(group)));
            // One of them is split while the others work.
            let threads = threads.map(|thread| thread.join().unwrap());
            let inner = half.split(Some(0), 0).unwrap().unwrap();
            let outer = scope.spawn(move || total(&inner));
            assert_eq!(total(&pair), threads[2]);
            assert_eq!(outer.join().unwrap(), threads[1]);
            threads
        })
    }) {
        for (rank, sums) in (0..).zip(ranks) {
            let half = if rank % 2 == 0 { 2 } else { 4 };
            let pair = if rank < 2 { 1 } else { 5 };
            assert_eq!(sums, [6 * 40, half * 40, pair * 40]);
        }
    }
}

#[test]
fn groups_can_be_split_at_once() {
    for (_, ranks) in everywhere(4, |world| {
        let me = world.rank().get();
        let half = world.split(Some(me % 2), 0).unwrap().unwrap();
        let pair = world.split(Some(me / 2), 0).unwrap().unwrap();
        let split = |group: &ProcessGroup| {
            let parts: Vec<_> = (0..5).map(|_| group.split(Some(0), 0).unwrap().unwrap()).collect();
            for part in &parts {
                assert_eq!(sum_of_members(part), sum_of_members(group));
            }
            parts.iter().map(ProcessGroup::number).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let threads = [&half, &pair].map(|group| scope.spawn(move || split(group)));
            threads.map(|thread| thread.join().unwrap()).concat()
        })
    }) {
        for mut numbers in ranks {
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 10);
        }
    }
}

#[test]
fn a_list_of_ranks_makes_a_group_in_its_order() {
    for (transport, ranks) in everywhere(4, |world| {
        let group = world.subgroup(&[3, 0, 2].map(Rank::new)).unwrap();
        let nobody = world.subgroup(&[]).unwrap();
        assert!(nobody.is_none());
        group.map(|group| (members(&group), sum_of_members(&group)))
    }) {
        let inside = Some((vec![3, 0, 2], 5));
        let expected = [inside.clone(), None, inside.clone(), inside];
        assert_eq!(ranks, expected, "{transport}");
    }
}

#[test]
fn the_hosts_of_a_job_are_found() {
    let hosts = ["b", "a", "b", "b", "a"];
    let options = options().with_transport(None);
    let ranks = on_hosts(&hosts, options, |world| {
        assert_eq!(world.topology().hosts(), [0, 1, 0, 0, 1]);
        assert_eq!(world.topology().leaders(), [0, 1].map(Rank::new));
        let host = world.split_by_host().unwrap();
        assert_eq!(host.topology().host_count(), 1);
        assert_eq!(host.rank().get(), world.topology().local_rank(world.rank()));
        let leaders = world.split_leaders().unwrap();
        if let Some(leaders) = &leaders {
            assert_eq!(leaders.topology().hosts(), [0, 1]);
            assert_eq!(sum_of_members(leaders), 1);
        }
        // Two levels add up to what one does.
        let mut data = [sum_of_members(&host)];
        if let Some(leaders) = &leaders {
            leaders.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        }
        host.broadcast(&mut data, Rank::new(0)).unwrap();
        assert_eq!(data[0], 10);
        (members(&host), leaders.is_some())
    });
    let (b, a) = (vec![0, 2, 3], vec![1, 4]);
    let expected =
        [(b.clone(), true), (a.clone(), true), (b.clone(), false), (b, false), (a, false)];
    assert_eq!(ranks, expected);
}

#[test]
fn parts_conform_like_groups_of_their_size() {
    let expected = local(3, options(), |group| check_all(&group, Bits::Canonical))[0];
    for (transport, digests) in everywhere(4, |world| {
        let color = (world.rank().get() != 1).then_some(0);
        let part = world.split(color, -i64::from(world.rank().get())).unwrap();
        part.map(|part| check_all(&part, Bits::Canonical))
    }) {
        let expected = [Some(expected), None, Some(expected), Some(expected)];
        assert_eq!(digests, expected, "{transport}");
    }
}
