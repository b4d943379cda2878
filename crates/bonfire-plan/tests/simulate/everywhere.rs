//! What holds for every plan over every network.

use super::*;

/// Every kind of collective, small enough to check.
fn every_shape() -> Vec<ScheduleShape> {
    let [root, other] = [0, 1].map(Rank::new);
    let collectives = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        BROADCAST,
        Collective::Reduce { root },
        Collective::Gather { root },
        Collective::Scatter { root },
        Collective::AllToAll,
        Collective::Barrier,
        Collective::Exchange { first: root, second: other },
    ];
    let mut shapes = Vec::new();
    for collective in collectives {
        for &algorithm in Algorithm::candidates(collective) {
            for ranks in [1, 2, 4, 7] {
                let count = match collective {
                    Collective::Exchange { .. } if ranks == 1 => continue,
                    Collective::Barrier => 0,
                    Collective::AllToAll => ranks * ranks * 13,
                    _ => 601,
                };
                for chunk in [37, 1000] {
                    let sizes = Sizes { ranks, count, chunk };
                    shapes.push(shape(collective, algorithm, sizes));
                }
            }
        }
    }
    shapes
}

/// Networks with one host, one host for each rank, and in between.
fn networks(world_size: WorldSize) -> impl Iterator<Item = Network> {
    [1, 3, 1000].into_iter().map(move |per_host| {
        let mut network = Network::new(hosts(world_size.len(), per_host), LINK, SLOW);
        network.intra.overhead_s = 1e-7;
        network.intra.copy_s_per_byte = 1e-10;
        network
    })
}

fn is_direct(schedule: &Schedule) -> bool {
    let steps = schedule.steps(Rank::new(0));
    steps.iter().any(|step| matches!(step, Step::ReduceDirect { .. }))
}

/// Every schedule over every network that it can run on.
fn everywhere(test: impl Fn(&Schedule, &Network)) {
    for shape in every_shape() {
        for network in networks(shape.world_size) {
            let schedule =
                schedule_of(ScheduleShape { hosts: network.hosts.clone(), ..shape.clone() });
            if network.hosts.host_count() == 1 || !is_direct(&schedule) {
                test(&schedule, &network);
            }
        }
    }
}

#[test]
fn counts_are_those_of_the_verifier() {
    everywhere(|schedule, network| {
        let cost = check(schedule, network.slots).unwrap().cost;
        let simulation = simulate(schedule, DType::F32, network, Detail::Totals).unwrap();
        assert_eq!(simulation.rounds, cost.rounds(), "{schedule}");
        if !is_direct(schedule) {
            for (rank, cost) in simulation.ranks.iter().zip(cost.ranks()) {
                assert_eq!(rank.frames_sent, cost.frames_sent, "{schedule}");
                assert_eq!(rank.bytes_sent, cost.bytes_sent(DType::F32).get());
                assert_eq!(rank.bytes_received, cost.bytes_received(DType::F32).get());
            }
        }
    });
}

#[test]
fn the_critical_path_adds_up_to_the_time() {
    everywhere(|schedule, network| {
        for slots in [1, 4] {
            let slots = NonZeroUsize::new(slots).unwrap();
            let network = Network { slots, ..network.clone() };
            let simulation = simulate(schedule, DType::F64, &network, Detail::Totals).unwrap();
            assert_path(&simulation);
        }
    });
}

#[test]
fn a_ring_across_hosts_waits_for_the_slow_link() {
    let ring = schedule(Collective::AllReduce, Algorithm::Ring, unchunked(8, 8000));
    let network = Network::new(hosts(8, 4), LINK, SLOW);
    let simulation = simulate(&ring, DType::U8, &network, Detail::Totals).unwrap();
    assert!(simulation.path.iter().any(|segment| matches!(segment.to, Some((_, Class::Inter)))));
    // No round is faster than a frame between the hosts.
    assert!(simulation.time_s > 7.0 * (1e-5 + 1e-5));
    for nic in &simulation.nics {
        assert_eq!((nic.frames_sent, nic.bytes_sent, nic.bytes_received), (14, 14_000, 14_000));
    }
}

#[test]
fn the_same_input_gives_the_same_output() {
    everywhere(|schedule, network| {
        let once = simulate(schedule, DType::F32, network, Detail::Timeline).unwrap();
        let again = simulate(schedule, DType::F32, network, Detail::Timeline).unwrap();
        assert_eq!(once, again);
        let plan = Plan::new(schedule.clone());
        let listed = simulate_plan(&plan, DType::F32, network, Detail::Timeline).unwrap();
        assert_eq!(once, listed);
    });
}

#[test]
fn spans_of_a_lane_do_not_overlap_and_fill_a_rank_s_time() {
    everywhere(|schedule, network| {
        let simulation = simulate(schedule, DType::F32, network, Detail::Timeline).unwrap();
        let mut lanes: HashMap<Lane, Vec<Span>> = HashMap::new();
        for span in &simulation.spans {
            lanes.entry(span.lane).or_default().push(*span);
        }
        for spans in lanes.values_mut() {
            spans.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
            for pair in spans.windows(2) {
                let slack = 1e-9 * simulation.time_s;
                assert!(pair[0].end_s <= pair[1].start_s + slack, "{schedule}: {pair:?}");
            }
        }
        for (rank, totals) in schedule.world_size().ranks().zip(&simulation.ranks) {
            let spans = lanes.get(&Lane::Rank(rank)).map_or(&[][..], Vec::as_slice);
            let filled: f64 = spans.iter().map(|span| span.end_s - span.start_s).sum();
            assert!((filled - totals.end_s).abs() <= 1e-9 * simulation.time_s);
        }
    });
}

#[test]
fn a_slower_link_makes_everything_slower_by_as_much() {
    everywhere(|schedule, network| {
        let time_s = |factor| {
            let network = Network {
                intra: network.intra.slower(factor),
                inter: network.inter.slower(factor),
                ..network.clone()
            };
            let simulation = simulate(schedule, DType::F32, &network, Detail::Totals);
            simulation.unwrap().time_s
        };
        for factor in [0.3, 3.7] {
            let (seen, expected) = (time_s(factor), factor * time_s(1.0));
            let is_close = (seen - expected).abs() <= 1e-9 * expected;
            assert!(is_close, "{schedule}: {seen} is not {expected}");
        }
    });
}
