//! The simulator against formulas, against the verifier's counts, and against itself.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::collections::HashMap;
use std::num::NonZeroUsize;

use bonfire_plan::simulate::{
    Activity, Class, Detail, Lane, Link, Network, SimulateError, Simulation, Span, simulate,
    simulate_plan,
};
use bonfire_plan::{
    Algorithm, Collective, DType, ElemRange, Hosts, Plan, Rank, Schedule, ScheduleShape, Source,
    Stage, Step, WorldSize, check,
};
use support::{Sizes, schedule, schedule_of, shape, world};

/// 1 us, 1 GB/s, and folds at 4 GB/s.
const LINK: Link = Link {
    latency_s: 1e-6,
    s_per_byte: 1e-9,
    overhead_s: 0.0,
    copy_s_per_byte: 0.0,
    fold_s_per_byte: 0.25e-9,
};

/// Ten times the latency and the time per byte.
const SLOW: Link = Link {
    latency_s: 1e-5,
    s_per_byte: 1e-8,
    ..LINK
};

const BROADCAST: Collective = Collective::Broadcast { root: Rank::new(0) };

fn unchunked(ranks: usize, count: usize) -> Sizes {
    Sizes {
        ranks,
        count,
        chunk: count.max(1),
    }
}

/// The time on one host, of elements of one byte.
fn time_s(collective: Collective, algorithm: Algorithm, sizes: Sizes) -> f64 {
    let network = Network::one_host(world(sizes.ranks), LINK);
    let schedule = schedule(collective, algorithm, sizes);
    let simulation = simulate(&schedule, DType::U8, &network, Detail::Totals);
    simulation.unwrap().time_s
}

#[track_caller]
fn assert_close(seen: f64, expected: f64) {
    assert!(
        (seen - expected).abs() <= 1e-9 * expected,
        "{seen} is not {expected}"
    );
}

/// Ranks in equal groups, one after the other.
fn hosts(ranks: usize, per_host: usize) -> Hosts {
    Hosts::new((0..ranks).map(|rank| (rank / per_host) as u32).collect())
}

fn put(peer: u32, count: usize) -> Step {
    Step::Put {
        peer: Rank::new(peer),
        source: ElemRange::up_to(count),
    }
}

fn take(peer: u32, count: usize) -> [Step; 3] {
    let peer = Rank::new(peer);
    let target = ElemRange::up_to(count);
    [
        Step::Wait { peer },
        Step::Copy { peer, target },
        Step::Release { peer },
    ]
}

/// Lists of steps that no schedule has, over a network with equal links everywhere.
fn by_hand(steps: Vec<Vec<Step>>, hosts: Hosts, slots: usize) -> Result<Simulation, SimulateError> {
    let sizes = unchunked(steps.len(), 1000);
    let plan = Plan::with_steps(schedule(BROADCAST, Algorithm::Binomial, sizes), steps);
    let network = Network {
        slots: NonZeroUsize::new(slots).unwrap(),
        ..Network::new(hosts, LINK, LINK)
    };
    simulate_plan(&plan, DType::U8, &network, Detail::Totals)
}

#[test]
fn a_ring_takes_its_closed_form() {
    for ranks in [1, 2, 3, 4, 7, 16, 64] {
        let (n, bytes) = (ranks as f64, (ranks * 1000) as f64);
        let sizes = unchunked(ranks, ranks * 1000);
        let (rounds, share) = (n - 1.0, (n - 1.0) / n * bytes);
        let (latency, transfer, fold) = (rounds * 1e-6, share * 1e-9, share * 0.25e-9);
        let half = latency + transfer;
        let all_reduce = time_s(Collective::AllReduce, Algorithm::Ring, sizes);
        assert_close(all_reduce, 2.0 * half + fold);
        let reduce_scatter = time_s(Collective::ReduceScatter, Algorithm::Ring, sizes);
        assert_close(reduce_scatter, half + fold);
        assert_close(time_s(Collective::AllGather, Algorithm::Ring, sizes), half);
    }
}

#[test]
fn overhead_and_copies_are_paid_on_both_sides() {
    let link = Link {
        overhead_s: 1e-7,
        copy_s_per_byte: 0.5e-9,
        ..LINK
    };
    let (ranks, shard) = (8, 1000.0);
    let network = Network::one_host(world(ranks), link);
    let ring = schedule(
        Collective::AllReduce,
        Algorithm::Ring,
        unchunked(ranks, 8000),
    );
    let simulation = simulate(&ring, DType::U8, &network, Detail::Totals).unwrap();
    let round = 1e-6 + shard * 1e-9 + 2.0 * 1e-7 + shard * 0.5e-9;
    // A round of the first half ends with a fold, one of the second with a copy.
    let expected = 14.0 * round + 7.0 * shard * (0.25e-9 + 0.5e-9);
    assert_close(simulation.time_s, expected);
}

#[test]
fn direct_plans_take_their_closed_forms() {
    for ranks in [2, 3, 8, 16] {
        let (n, shard) = (ranks as f64, 1000.0);
        let sizes = unchunked(ranks, ranks * 1000);
        // One latency, then n - 1 frames through a port; then the fold of them all.
        let hop = |bytes: f64| 1e-6 + (n - 1.0) * bytes * 1e-9;
        let fold = |bytes: f64| (n - 1.0) * bytes * 0.25e-9;
        let one_shot = time_s(Collective::AllReduce, Algorithm::OneShot, sizes);
        assert_close(one_shot, hop(n * shard) + fold(n * shard));
        let two_shot = time_s(Collective::AllReduce, Algorithm::TwoShot, sizes);
        assert_close(two_shot, 2.0 * hop(shard) + fold(shard));
        let all_gather = time_s(Collective::AllGather, Algorithm::OneShot, sizes);
        assert_close(all_gather, hop(shard));
    }
}

#[test]
fn recursive_halving_and_doubling_takes_its_closed_form() {
    for (ranks, rounds) in [(2, 1.0), (4, 2.0), (16, 4.0), (64, 6.0)] {
        let bytes = (ranks * 1000) as f64;
        let share = bytes - 1000.0;
        let sizes = unchunked(ranks, ranks * 1000);
        let half = rounds * 1e-6 + share * 1e-9;
        let all_reduce = time_s(Collective::AllReduce, Algorithm::HalvingDoubling, sizes);
        assert_close(all_reduce, 2.0 * half + share * 0.25e-9);
        let all_gather = time_s(Collective::AllGather, Algorithm::HalvingDoubling, sizes);
        assert_close(all_gather, half);
    }
}

#[test]
fn zero_copy_takes_its_closed_form() {
    for (ranks, rounds) in [(2, 1.0), (4, 2.0), (8, 3.0)] {
        let seen = time_s(
            Collective::AllReduce,
            Algorithm::ZeroCopy,
            unchunked(ranks, ranks * 1000),
        );
        assert_close(seen, zero_copy_s(ranks, rounds));
    }
}

#[test]
fn a_binomial_reduce_folds_all_children_of_a_rank_at_once() {
    let reduce = Collective::Reduce { root: Rank::new(0) };
    for (ranks, rounds) in [(2, 1.0), (8, 3.0), (32, 5.0)] {
        let seen = time_s(reduce, Algorithm::Binomial, unchunked(ranks, 4000));
        // A rank at height h has h children.
        let folds = rounds * (rounds + 1.0) / 2.0;
        assert_close(seen, rounds * (1e-6 + 4e-6) + folds * 1e-6);
    }
}

#[test]
fn blocks_from_and_to_a_root_pass_its_port_one_by_one() {
    let root = Rank::new(1);
    for ranks in [2, 5, 16] {
        let expected = 1e-6 + (ranks as f64 - 1.0) * 1e-6;
        for collective in [Collective::Gather { root }, Collective::Scatter { root }] {
            let seen = time_s(
                collective,
                Algorithm::OneShot,
                unchunked(ranks, ranks * 1000),
            );
            assert_close(seen, expected);
        }
    }
}

#[test]
fn every_block_of_an_all_to_all_passes_the_port_of_its_rank() {
    for ranks in [2, 4, 16] {
        let sizes = unchunked(ranks, ranks * ranks * 1000);
        let others = ranks as f64 - 1.0;
        let one_shot = time_s(Collective::AllToAll, Algorithm::OneShot, sizes);
        assert_close(one_shot, 1e-6 + others * 1e-6);
        // In pairs every block pays the latency too; and a rank that has nobody to meet in a round
        // goes ahead and is in the way of others.
        let pairwise = time_s(Collective::AllToAll, Algorithm::Pairwise, sizes);
        assert!(pairwise >= others * 2e-6 * (1.0 - 1e-9), "{pairwise}");
    }
}

#[test]
fn two_levels_take_the_time_of_each() {
    let (ranks, per_host, host_count) = (16, 4, 4);
    let bytes = 16_000.0;
    let sizes = unchunked(ranks, 16_000);
    let hosts = hosts(ranks, per_host);
    let two_levels = schedule_of(ScheduleShape {
        hosts: hosts.clone(),
        ..shape(Collective::AllReduce, Algorithm::Hierarchical, sizes)
    });
    let free = |link| Link {
        fold_s_per_byte: 0.0,
        ..link
    };
    let network = Network::new(hosts, free(LINK), free(SLOW));
    let simulation = simulate(&two_levels, DType::U8, &network, Detail::Totals).unwrap();
    let share = |parts: usize| (parts as f64 - 1.0) / parts as f64 * bytes;
    let within = 1e-6 + share(per_host) * 1e-9;
    let between = 1e-5 + share(host_count) * 1e-8;
    // Agents of blocks of their own host wait for one latency less.
    let expected = 2.0 * (within + between);
    assert!(
        (simulation.time_s / expected - 1.0).abs() < 0.01,
        "{expected}"
    );
}

#[test]
fn a_binomial_broadcast_doubles_the_ranks_in_each_round() {
    for (ranks, rounds) in [(1, 0.0), (2, 1.0), (8, 3.0), (64, 6.0)] {
        let seen = time_s(BROADCAST, Algorithm::Binomial, unchunked(ranks, 5000));
        assert_close(seen + 1.0, rounds * (1e-6 + 5e-6) + 1.0);
    }
}

#[test]
fn a_barrier_is_latency_alone() {
    for (ranks, rounds) in [(2, 1.0), (3, 2.0), (16, 4.0), (17, 5.0)] {
        let seen = time_s(
            Collective::Barrier,
            Algorithm::Dissemination,
            unchunked(ranks, 0),
        );
        assert_close(seen, rounds * 1e-6);
    }
}

/// A ring sends a chunk only when it has taken the one before.
#[test]
fn every_chunk_of_a_ring_pays_the_latency() {
    let (ranks, chunks) = (4, 20);
    let sizes = Sizes {
        chunk: 50_000,
        ..unchunked(ranks, ranks * chunks * 50_000)
    };
    let (frames, share) = (2.0 * 3.0 * chunks as f64, 3.0 * 20.0 * 50_000.0);
    let expected = frames * 1e-6 + 2.0 * share * 1e-9 + share * 0.25e-9;
    assert_close(
        time_s(Collective::AllReduce, Algorithm::Ring, sizes),
        expected,
    );
}

#[test]
fn ranks_that_share_a_network_card_take_turns() {
    // 0 sends to 2, and 1 to 3.
    let steps = || {
        let receive = |from| take(from, 1000).to_vec();
        vec![
            vec![put(2, 1000)],
            vec![put(3, 1000)],
            receive(0),
            receive(1),
        ]
    };
    let apart = by_hand(steps(), hosts(4, 1), 4).unwrap();
    assert_close(apart.time_s, 1e-6 + 1e-6);
    let together = by_hand(steps(), hosts(4, 2), 4).unwrap();
    assert_close(together.time_s, 1e-6 + 2e-6);
    let ends: Vec<f64> = together.ranks.iter().map(|rank| rank.end_s).collect();
    assert_close(ends[2], 2e-6);
    assert_close(ends[3], 3e-6);
    let queued = together
        .path
        .iter()
        .find(|part| part.activity == Activity::Queue);
    let queued = queued.expect("one of the two waits for the card");
    assert!((queued.end_s - queued.start_s - 1e-6).abs() < 1e-12);
    assert_eq!(together.nics[0].frames_sent, 2);
    assert_eq!(together.nics[0].bytes_sent, 2000);
    assert_eq!(together.nics[1].bytes_received, 2000);
}

#[test]
fn frames_to_one_rank_queue_at_its_port() {
    let mut receives = Vec::new();
    (1..4).for_each(|rank| receives.extend(take(rank, 1000)));
    let sends = || vec![put(0, 1000)];
    let steps = vec![receives, sends(), sends(), sends()];
    let simulation = by_hand(steps, Hosts::one(world(4)), 4).unwrap();
    assert_close(simulation.time_s, 1e-6 + 3e-6);
    assert_close(simulation.ranks[0].blocked_s, simulation.time_s);
    assert_eq!(simulation.ranks[0].bytes_received, 3000);
}

#[test]
fn opposite_directions_do_not_disturb_each_other() {
    let one = |peer| {
        let mut steps = vec![put(peer, 1000)];
        steps.extend(take(peer, 1000));
        steps
    };
    for per_host in [1, 2] {
        let steps = vec![one(1), one(0)];
        let simulation = by_hand(steps, hosts(2, per_host), 4).unwrap();
        assert_close(simulation.time_s, 2e-6);
    }
}

#[test]
fn few_slots_make_a_sender_wait_for_their_return() {
    let steps = || {
        let mut receives = Vec::new();
        (0..5).for_each(|_| receives.extend(take(0, 1000)));
        vec![vec![put(1, 1000); 5], receives]
    };
    let with = |slots| by_hand(steps(), Hosts::one(world(2)), slots).unwrap();
    // Stop and wait: each frame but the first follows the return of the only slot.
    let one = with(1);
    assert_close(one.time_s, 5.0 * 2e-6 + 4.0 * 1e-6);
    let returns = one
        .path
        .iter()
        .filter(|part| part.activity == Activity::SlotReturn);
    assert_eq!(returns.count(), 4);
    // With enough of them the port never stops.
    for slots in [3, 4, 5, usize::MAX] {
        assert_close(with(slots).time_s, 1e-6 + 5e-6);
    }
}

/// A direct all-reduce by hand: a barrier, one step for each rank's shard, a barrier.
fn direct_all_reduce(ranks: usize, shard: usize) -> Vec<Vec<Step>> {
    let everyone: Box<[Rank]> = world(ranks).ranks().collect();
    let barrier = schedule(
        Collective::Barrier,
        Algorithm::Dissemination,
        unchunked(ranks, 0),
    );
    let list = |rank: Rank| {
        let start = rank.index() * shard;
        let mut steps = barrier.steps(rank);
        steps.push(Step::ReduceDirect {
            range: ElemRange::new(start, start + shard),
            sources: everyone.clone(),
            targets: everyone.clone(),
            stage: Stage::Final,
        });
        steps.extend(barrier.steps(rank));
        steps
    };
    world(ranks).ranks().map(list).collect()
}

/// All-reduce of 1000 bytes per rank over [`LINK`]: two barriers of so many rounds; a request and its
/// data; the fold; the writes, which the second barrier waits for.
fn zero_copy_s(ranks: usize, rounds: f64) -> f64 {
    let others = ranks as f64 - 1.0;
    (2.0 * rounds + 3.0) * 1e-6 + 2.0 * others * 1e-6 + others * 0.25e-6
}

#[test]
fn a_direct_step_moves_what_is_remote_over_all_ports() {
    for (ranks, rounds) in [(2, 1.0), (4, 2.0), (8, 3.0)] {
        let one_host = Hosts::one(world(ranks));
        let simulation = by_hand(direct_all_reduce(ranks, 1000), one_host, 4).unwrap();
        assert_close(simulation.time_s, zero_copy_s(ranks, rounds));
        let sent = 2 * (ranks as u64 - 1) * 1000;
        for rank in &simulation.ranks {
            assert_eq!((rank.bytes_sent, rank.bytes_received), (sent, sent));
        }
        assert_path(&simulation);
    }
}

#[test]
fn a_direct_step_between_hosts_is_refused() {
    let error = by_hand(direct_all_reduce(4, 1000), hosts(4, 2), 4).unwrap_err();
    let (rank, peer) = (Rank::new(0), Rank::new(2));
    assert_eq!(error, SimulateError::DirectAcrossHosts { rank, peer });
}

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
        Collective::Exchange {
            first: root,
            second: other,
        },
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
                    let sizes = Sizes {
                        ranks,
                        count,
                        chunk,
                    };
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
    steps
        .iter()
        .any(|step| matches!(step, Step::ReduceDirect { .. }))
}

/// Every schedule over every network that it can run on.
fn everywhere(test: impl Fn(&Schedule, &Network)) {
    for shape in every_shape() {
        for network in networks(shape.world_size) {
            let schedule = schedule_of(ScheduleShape {
                hosts: network.hosts.clone(),
                ..shape.clone()
            });
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

/// The path leads from the start to the end without a gap.
#[track_caller]
fn assert_path(simulation: &Simulation) {
    let mut clock_s = 0.0;
    for segment in &simulation.path {
        assert!(
            (segment.start_s - clock_s).abs() <= 1e-9 * simulation.time_s,
            "{segment:?} does not begin at {clock_s}"
        );
        assert!(segment.end_s > segment.start_s, "{segment:?}");
        assert_ne!(segment.activity, Activity::Blocked);
        clock_s = segment.end_s;
    }
    assert!((clock_s - simulation.time_s).abs() <= 1e-9 * simulation.time_s);
    let total: f64 = simulation
        .path_totals()
        .parts
        .iter()
        .map(|part| part.total_s)
        .sum();
    assert!((total - simulation.time_s).abs() <= 1e-9 * simulation.time_s);
}

#[test]
fn the_critical_path_adds_up_to_the_time() {
    everywhere(|schedule, network| {
        for slots in [1, 4] {
            let slots = NonZeroUsize::new(slots).unwrap();
            let network = Network {
                slots,
                ..network.clone()
            };
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
    assert!(
        simulation
            .path
            .iter()
            .any(|segment| matches!(segment.to, Some((_, Class::Inter))))
    );
    // No round is faster than a frame between the hosts.
    assert!(simulation.time_s > 7.0 * (1e-5 + 1e-5));
    for nic in &simulation.nics {
        assert_eq!(
            (nic.frames_sent, nic.bytes_sent, nic.bytes_received),
            (14, 14_000, 14_000)
        );
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
                assert!(
                    pair[0].end_s <= pair[1].start_s + slack,
                    "{schedule}: {pair:?}"
                );
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

#[test]
fn hosts_of_other_ranks_are_refused() {
    let ring = schedule(Collective::AllReduce, Algorithm::Ring, unchunked(4, 8));
    let network = Network::one_host(world(3), LINK);
    let error = simulate(&ring, DType::F32, &network, Detail::Totals).unwrap_err();
    let world_size = world(4);
    assert_eq!(
        error,
        SimulateError::HostsLength {
            given: 3,
            world_size
        }
    );
}

#[test]
fn a_cost_that_is_no_time_is_refused() {
    let ring = schedule(Collective::AllReduce, Algorithm::Ring, unchunked(4, 8));
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let network = Network::one_host(world(4), Link::new(1e-6, bad));
        let error = simulate(&ring, DType::F32, &network, Detail::Totals).unwrap_err();
        assert!(error.to_string().starts_with("s_per_byte is "), "{error}");
    }
}

#[test]
fn a_plan_that_waits_for_ever_names_the_rank() {
    let nothing = || vec![vec![], vec![], vec![]];
    let stuck = |rank: u32, steps: Vec<Step>| {
        let mut lists = nothing();
        lists[rank as usize] = steps;
        by_hand(lists, Hosts::one(world(3)), 4).unwrap_err()
    };
    let (rank, peer) = (Rank::new(2), Rank::new(1));
    let error = stuck(2, take(1, 10).to_vec());
    assert_eq!(error, SimulateError::Stuck { rank, step: 0 });
    let error = stuck(2, vec![put(0, 1), Step::Release { peer }]);
    assert_eq!(error, SimulateError::Stuck { rank, step: 1 });
    // One frame more than there are slots, to a rank that takes none.
    let error = stuck(2, vec![put(0, 1); 5]);
    assert_eq!(error, SimulateError::Stuck { rank, step: 4 });
}

#[test]
fn a_plan_with_too_many_steps_is_refused_before_it_is_built() {
    let sizes = Sizes {
        ranks: 1024,
        count: 1 << 22,
        chunk: 1024,
    };
    let one_shot = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
    let network = Network::one_host(world(1024), LINK);
    let error = simulate(&one_shot, DType::F32, &network, Detail::Totals).unwrap_err();
    assert!(
        matches!(error, SimulateError::TooManySteps { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("larger chunks"), "{error}");
}

#[test]
fn folds_are_charged_by_the_link_of_each_frame() {
    // Rank 0 folds a frame of its own host and one of another into its data.
    let peers = [1, 2].map(Rank::new);
    let mut steps: Vec<Step> = peers.map(|peer| Step::Wait { peer }).to_vec();
    steps.push(Step::Reduce {
        target: ElemRange::up_to(1000),
        sources: Box::new([
            Source::Own,
            Source::Inbox(peers[0]),
            Source::Inbox(peers[1]),
        ]),
        stage: Stage::Final,
    });
    steps.extend(peers.map(|peer| Step::Release { peer }));
    let lists = vec![steps, vec![put(0, 1000)], vec![put(0, 1000)]];
    let sizes = unchunked(3, 1000);
    let plan = Plan::with_steps(schedule(BROADCAST, Algorithm::Binomial, sizes), lists);
    let inter = Link {
        fold_s_per_byte: 7e-9,
        ..LINK
    };
    let network = Network::new(hosts(3, 2), LINK, inter);
    let simulation = simulate_plan(&plan, DType::U8, &network, Detail::Totals).unwrap();
    assert_close(simulation.time_s, 2e-6 + 0.25e-6 + 7e-6);
}
