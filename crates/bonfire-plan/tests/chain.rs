//! The chain of hosts holds for every layout of hosts, folds in the order of the ranks, and crosses
//! between hosts as little as can be.

mod support;

use bonfire_plan::{
    Algorithm, Collective, Hosts, Order, Partition, Rank, Schedule, ScheduleShape, Step,
};
use support::{Noise, Sizes, compute, execute, is_promised, prove, schedule_of, shape, world};

/// Hosts of so many ranks each, numbered host by host.
fn filled(ranks_of_hosts: &[usize]) -> Vec<u32> {
    let hosts = (0..).zip(ranks_of_hosts);
    hosts.flat_map(|(host, &ranks)| std::iter::repeat_n(host, ranks)).collect()
}

fn chain(collective: Collective, sizes: Sizes, numbers: &[u32]) -> Schedule {
    schedule_of(ScheduleShape {
        hosts: Hosts::new(numbers.to_vec()),
        ..shape(collective, Algorithm::Chain, sizes)
    })
}

fn collectives(ranks: usize) -> Vec<Collective> {
    let roots = world(ranks).ranks();
    let mut collectives = vec![Collective::AllReduce, Collective::ReduceScatter];
    collectives.extend(roots.map(|root| Collective::Reduce { root }));
    collectives
}

fn check_layout(numbers: &[u32]) {
    let ranks = numbers.len();
    for collective in collectives(ranks) {
        let mut counts = vec![(ranks + 1, 4), (5 * ranks - 1, 2)];
        if ranks <= 8 {
            counts.extend([(0, 1), (1, 1), (257, 9), (257, 999)]);
        }
        for (count, chunk) in counts {
            let sizes = Sizes { ranks, count, chunk };
            let schedule = chain(collective, sizes, numbers);
            assert!(prove(&schedule).order <= Order::Rounded, "{schedule}");
            if ranks <= 6 {
                compute(&schedule, 31);
            }
        }
    }
}

#[test]
fn every_grouping_of_up_to_six_ranks_holds() {
    for ranks in 1..=6_u32 {
        // Every way to number hosts by their first ranks.
        for code in 0..ranks.pow(ranks) {
            let digits = (0..ranks).map(|digit| code / ranks.pow(digit) % ranks);
            let numbers: Vec<_> = digits.collect();
            let named = Hosts::new(numbers.clone());
            if named.numbers().eq(numbers.iter().copied()) {
                check_layout(&numbers);
            }
        }
    }
}

#[test]
fn larger_worlds_hold() {
    for layout in [
        &[4, 4][..],
        &[8, 8],
        &[2, 2, 2, 2, 2],
        &[7, 1],
        &[1, 7],
        &[8, 4, 2, 1],
        &[1, 2, 3, 4, 5],
        &[3, 3, 2],
        &[16, 1, 16],
        &[13, 20],
        &[32, 32],
        &[1; 24],
    ] {
        check_layout(&filled(layout));
    }
    let mut noise = Noise(5);
    for ranks in [9, 20, 41] {
        let numbers: Vec<u32> = (0..ranks).map(|_| (noise.next() % 3) as u32).collect();
        check_layout(&numbers);
    }
}

#[test]
fn ragged_blocks_hold_on_unequal_hosts() {
    let lengths = [0, 9, 1, 0, 23, 4, 0];
    let sizes = Sizes { ranks: 7, count: lengths.iter().sum(), chunk: 3 };
    let schedule = schedule_of(ScheduleShape {
        partition: Partition::Ragged(lengths.into()),
        hosts: Hosts::new(filled(&[1, 4, 2])),
        ..shape(Collective::ReduceScatter, Algorithm::Chain, sizes)
    });
    prove(&schedule);
    compute(&schedule, 37);
}

/// The verifier's word on the order, in numbers: sums of f32 have the bits of the fold over the ranks.
#[test]
fn the_bits_are_those_of_one_host() {
    for layout in [filled(&[4, 4]), filled(&[3, 1, 2]), vec![0, 1, 0, 0, 1, 2]] {
        let ranks = layout.len();
        for collective in collectives(ranks) {
            for (count, chunk) in [(64, 3), (1, 1), (97, 500)] {
                let sizes = Sizes { ranks, count, chunk };
                let schedule = chain(collective, sizes, &layout);
                let input = Noise(41).floats(&schedule);
                let plan = bonfire_plan::Plan::new(schedule.clone());
                let output = execute(&plan, 1, input.clone()).expect("a proved plan runs");
                assert!(is_promised(&schedule, &input, &output), "{schedule}");
            }
        }
    }
}

/// The elements that the ranks of one host put to those of another, by (source, target).
fn elems_between(schedule: &Schedule, source: u32, target: u32) -> usize {
    let hosts = &schedule.shape().hosts;
    let mut elems = 0;
    for rank in schedule.world_size().ranks() {
        for step in schedule.steps(rank) {
            if let Step::Put { peer, source: put } = step
                && (hosts.number(rank), hosts.number(peer)) == (source, target)
            {
                elems += put.len();
            }
        }
    }
    elems
}

/// S up each link and S down; for one rank only what it gets comes down.
#[test]
fn every_element_crosses_between_neighbours_once_each_way() {
    for layout in [&[4, 4][..], &[2, 2, 2, 2], &[3, 1, 4]] {
        let ranks = layout.iter().sum();
        let count = 24 * ranks;
        let sizes = Sizes { ranks, count, chunk: 5 };
        let numbers = filled(layout);
        let last = layout.len() as u32 - 1;
        let of = |collective| chain(collective, sizes, &numbers);
        let all_reduce = of(Collective::AllReduce);
        let reduce_scatter = of(Collective::ReduceScatter);
        let root = Rank::new(0);
        let reduce = of(Collective::Reduce { root });
        for host in 0..last {
            for schedule in [&all_reduce, &reduce_scatter, &reduce] {
                assert_eq!(elems_between(schedule, host, host + 1), count, "{schedule}");
            }
            assert_eq!(elems_between(&all_reduce, host + 1, host), count);
            let blocks = layout[host as usize] * count / ranks;
            assert_eq!(elems_between(&reduce_scatter, last, host), blocks);
        }
        assert_eq!(elems_between(&reduce, last, 0), count);
    }
}

/// However long the chain is, items follow one another: two rounds for each, and two between hosts.
#[test]
fn the_length_of_the_chain_costs_latency_only() {
    for (hosts, chunks) in [(2, 1), (2, 20), (3, 20), (8, 1), (8, 5)] {
        let ranks = 2 * hosts;
        let sizes = Sizes { ranks, count: 4 * ranks * chunks, chunk: 4 };
        let schedule = chain(Collective::AllReduce, sizes, &filled(&vec![2; hosts]));
        let rounds = prove(&schedule).cost.rounds();
        let items = hosts * chunks;
        assert_eq!(rounds, 2 * (items + hosts - 1) as u64, "{schedule}");
    }
}
