//! Plans in two levels hold for every layout of hosts, and cross between hosts as little as can be.

mod support;

use bonfire_plan::{
    Algorithm, Collective, DType, Hosts, Order, Partition, Rank, Schedule, ScheduleShape, Step,
};
use support::{Noise, Sizes, compute, prove, schedule_of, shape, world};

const COLLECTIVES: [Collective; 5] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast { root: Rank::new(0) },
    Collective::Reduce { root: Rank::new(0) },
];

/// Hosts of so many ranks each, numbered host by host.
fn filled(ranks_of_hosts: &[usize]) -> Vec<u32> {
    let hosts = (0..).zip(ranks_of_hosts);
    hosts.flat_map(|(host, &ranks)| std::iter::repeat_n(host, ranks)).collect()
}

/// Ranks assigned to hosts one by one.
fn in_turn(ranks: usize, hosts: u32) -> Vec<u32> {
    (0..hosts).cycle().take(ranks).collect()
}

fn hierarchical(collective: Collective, sizes: Sizes, numbers: Vec<u32>) -> Schedule {
    schedule_of(ScheduleShape {
        hosts: Hosts::new(numbers),
        ..shape(collective, Algorithm::Hierarchical, sizes)
    })
}

fn check_layout(numbers: &[u32]) {
    let ranks = numbers.len();
    let last = Rank::new(world(ranks).get() - 1);
    let mut collectives = COLLECTIVES.to_vec();
    collectives.push(Collective::Broadcast { root: last });
    collectives.push(Collective::Reduce { root: last });
    for collective in collectives {
        let mut counts = vec![(ranks + 1, 4), (5 * ranks - 1, 2)];
        if ranks <= 16 {
            counts.extend([(0, 1), (1, 1), (257, 999)]);
        }
        for (count, chunk) in counts {
            let sizes = Sizes { ranks, count, chunk };
            let schedule = hierarchical(collective, sizes, numbers.to_vec());
            prove(&schedule);
            if ranks <= 6 {
                compute(&schedule, 31);
            }
        }
    }
}

#[test]
fn every_grouping_of_up_to_five_ranks_holds() {
    for ranks in 1..=5_u32 {
        // Every way to number hosts; groupings repeat, which does no harm.
        for code in 0..ranks.pow(ranks) {
            let digits = (0..ranks).map(|digit| code / ranks.pow(digit) % ranks);
            let numbers: Vec<_> = digits.collect();
            let is_first_name = Hosts::new(numbers.clone()).numbers().eq(numbers.iter().copied());
            if is_first_name {
                check_layout(&numbers);
            }
        }
    }
}

#[test]
fn equal_hosts_hold() {
    for ranks in 6..=64 {
        for hosts in [2, 3, 4, 8, ranks] {
            let is_sampled = ranks <= 24 || ranks % 8 == 0 || hosts == 3;
            if ranks % hosts == 0 && is_sampled {
                check_layout(&filled(&vec![ranks / hosts; hosts]));
            }
        }
    }
}

#[test]
fn unequal_hosts_hold() {
    for layout in
        [&[1, 7][..], &[7, 1], &[8, 4, 2, 1], &[1, 2, 3, 4, 5], &[3, 3, 2], &[16, 1, 16], &[13, 20]]
    {
        check_layout(&filled(layout));
    }
    check_layout(&in_turn(10, 3));
    check_layout(&in_turn(33, 4));
    let mut noise = Noise(5);
    for ranks in [9, 20, 41, 64] {
        let numbers = (0..ranks).map(|_| (noise.next() % 7) as u32).collect::<Vec<_>>();
        check_layout(&numbers);
    }
}

#[test]
fn ragged_blocks_hold_on_unequal_hosts() {
    let numbers = filled(&[1, 4, 2]);
    let lengths = [0, 9, 1, 0, 23, 4, 0];
    for collective in [Collective::AllGather, Collective::ReduceScatter] {
        let sizes = Sizes { ranks: 7, count: lengths.iter().sum(), chunk: 3 };
        let schedule = schedule_of(ScheduleShape {
            partition: Partition::Ragged(lengths.into()),
            hosts: Hosts::new(numbers.clone()),
            ..shape(collective, Algorithm::Hierarchical, sizes)
        });
        prove(&schedule);
        compute(&schedule, 37);
    }
}

/// The elements that all ranks together put to ranks on other hosts.
fn elems_between_hosts(schedule: &Schedule) -> usize {
    let numbers: Vec<_> = schedule.shape().hosts.numbers().collect();
    let mut elems = 0;
    for rank in schedule.world_size().ranks() {
        for step in schedule.steps(rank) {
            if let Step::Put { peer, source } = step
                && numbers[peer.index()] != numbers[rank.index()]
            {
                elems += source.len();
            }
        }
    }
    elems
}

/// Each of H hosts needs what the others have, and has nothing but its own fold to give: (H - 1) S
/// in all for a fold or a gather, and twice that for both.
#[test]
fn every_element_crosses_between_two_hosts_once_each_way() {
    for layout in [&[4, 4][..], &[2, 2, 2, 2], &[3, 1, 4], &[8]] {
        let ranks = layout.iter().sum();
        let sizes = Sizes { ranks, count: 24 * ranks, chunk: 5 };
        for (collective, crossings) in
            [(Collective::AllReduce, 2), (Collective::ReduceScatter, 1), (Collective::AllGather, 1)]
        {
            let schedule = hierarchical(collective, sizes, filled(layout));
            let expected = crossings * (layout.len() - 1) * sizes.count;
            assert_eq!(elems_between_hosts(&schedule), expected, "{schedule} on {layout:?}");
        }
    }
}

/// Two hops between hosts, however many chunks there are: the others hide behind them. Within a host
/// each host's blocks take a round each way.
#[test]
fn hops_between_hosts_hide_behind_those_within() {
    for (ranks_of_host, hosts) in [(2, 2), (4, 4), (8, 8)] {
        let ranks = ranks_of_host * hosts;
        let chunks = 5;
        let sizes = Sizes { ranks, count: 16 * ranks * chunks, chunk: 16 };
        let schedule =
            hierarchical(Collective::AllReduce, sizes, filled(&vec![ranks_of_host; hosts]));
        let report = prove(&schedule);
        assert_eq!(report.order, Order::Fixed);
        assert_eq!(report.cost.rounds(), 2 * (hosts * chunks) as u64 + 2, "{schedule}");
        // Bytes of a rank: its own host's traffic, and its share of what crosses.
        let (g, h) = (ranks_of_host as u64, hosts as u64);
        let bytes = (sizes.count * 4) as u64;
        let within = 2 * (g - 1) * bytes / g;
        let between = 2 * (h - 1) * bytes / (g * h);
        for rank in report.cost.ranks() {
            assert_eq!(rank.bytes_sent(DType::F32).get(), within + between, "{schedule}");
        }
    }
}

/// On one host the plan folds as the direct one does: in the canonical order.
#[test]
fn one_host_is_the_direct_plan() {
    for ranks in 1..=9 {
        let sizes = Sizes { ranks, count: 50, chunk: 4 };
        for collective in COLLECTIVES {
            let on_one = schedule_of(shape(collective, Algorithm::Hierarchical, sizes));
            let report = prove(&on_one);
            assert_eq!(report.order, Order::Canonical, "{on_one}");
            if collective == Collective::AllReduce {
                let direct = schedule_of(shape(collective, Algorithm::TwoShot, sizes));
                let direct = prove(&direct);
                assert_eq!(report.cost.ranks(), direct.cost.ranks(), "{on_one}");
            }
        }
    }
}

/// The bits of an element do not depend on the buffer around it, nor on how that is chunked.
#[test]
fn the_order_is_that_of_the_hosts_wherever_an_element_lies() {
    let numbers = filled(&[3, 2, 1]);
    let fold = |row: &[Vec<f32>], at: usize| {
        let host = |ranks: std::ops::Range<usize>| ranks.map(|rank| row[rank][at]);
        let host = |ranks| host(ranks).reduce(|a, b| a + b).unwrap_or_default();
        let (first, second, third): (f32, f32, f32) = (host(0..3), host(3..5), host(5..6));
        first + second + third
    };
    for (count, chunk) in [(1, 1), (10, 3), (64, 7)] {
        let sizes = Sizes { ranks: 6, count, chunk };
        let schedule = hierarchical(Collective::AllReduce, sizes, numbers.clone());
        let input = Noise(41).floats(&schedule);
        let plan = bonfire_plan::Plan::new(schedule);
        let output = support::execute(&plan, 1, input.clone()).expect("a proved plan runs");
        for row in output {
            for (at, value) in row.iter().enumerate() {
                assert_eq!(value.to_bits(), fold(&input, at).to_bits());
            }
        }
    }
}
