//! Plans that nothing disturbs take their textbook formulas.

use super::*;

/// The estimate leaves out what overlaps, and what frames wait for at ports, which is most where ranks send in turn.
/// Zero-copy plans send no frames with data.
#[test]
fn every_plan_takes_about_what_is_estimated() {
    let costs = LinkCosts { alpha_s: LINK.latency_s, beta_s_per_byte: LINK.s_per_byte };
    let gamma_s_per_byte = LINK.fold_s_per_byte;
    let figures = LinkFigures { intra_host: costs, inter_host: costs, gamma_s_per_byte };
    for ranks in [2, 4, 16] {
        let kinds = all_kinds(ranks).into_iter();
        for (collective, algorithm) in kinds.filter(|kind| kind.1 != Algorithm::ZeroCopy) {
            let count = possible_count(collective, ranks, ranks * ranks * 1000);
            let sizes = unchunked(ranks, count);
            let seen = time_s(collective, algorithm, sizes);
            let form = estimate(&shape(collective, algorithm, sizes), DType::U8, &figures);
            let ratio = seen / form;
            assert!((0.8..4.0).contains(&ratio), "{collective} by {algorithm}: {seen} for {form}");
        }
    }
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
    let link = Link { overhead_s: 1e-7, copy_s_per_byte: 0.5e-9, ..LINK };
    let (ranks, shard) = (8, 1000.0);
    let network = Network::one_host(world(ranks), link);
    let ring = schedule(Collective::AllReduce, Algorithm::Ring, unchunked(ranks, 8000));
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
        let seen =
            time_s(Collective::AllReduce, Algorithm::ZeroCopy, unchunked(ranks, ranks * 1000));
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
            let seen = time_s(collective, Algorithm::OneShot, unchunked(ranks, ranks * 1000));
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
    let free = |link| Link { fold_s_per_byte: 0.0, ..link };
    let network = Network::new(hosts, free(LINK), free(SLOW));
    let simulation = simulate(&two_levels, DType::U8, &network, Detail::Totals).unwrap();
    let share = |parts: usize| (parts as f64 - 1.0) / parts as f64 * bytes;
    let within = 1e-6 + share(per_host) * 1e-9;
    let between = 1e-5 + share(host_count) * 1e-8;
    // Agents of blocks of their own host wait for one latency less, and share the card with the others when these come.
    let expected = 2.0 * (within + between);
    assert!(
        (simulation.time_s / expected - 1.0).abs() < 0.05,
        "{} for {expected}",
        simulation.time_s
    );
}

/// Both ways between two hosts are full: what a chain takes is S over the slow link, and the first
/// item up and the last one down.
#[test]
fn a_chain_keeps_both_ways_between_hosts_busy() {
    let (ranks, per_host, chunks) = (8, 4, 50);
    let sizes = Sizes { ranks, count: ranks * chunks * 1000, chunk: 1000 };
    let hosts = hosts(ranks, per_host);
    let chain = schedule_of(ScheduleShape {
        hosts: hosts.clone(),
        ..shape(Collective::AllReduce, Algorithm::Chain, sizes)
    });
    let network = Network::new(hosts, LINK, SLOW);
    let simulation = simulate(&chain, DType::U8, &network, Detail::Totals).unwrap();
    let bytes = (ranks * chunks * 1000) as f64;
    for nic in &simulation.nics {
        assert_eq!((nic.bytes_sent as f64, nic.bytes_received as f64), (bytes, bytes));
    }
    let item = per_host as f64 * 1000.0;
    let expected = 2.0 * 1e-5 + (bytes + item) * 1e-8;
    assert!(
        (simulation.time_s / expected - 1.0).abs() < 0.02,
        "{} for {expected}",
        simulation.time_s
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
        let seen = time_s(Collective::Barrier, Algorithm::Dissemination, unchunked(ranks, 0));
        assert_close(seen, rounds * 1e-6);
    }
}

/// A ring sends a chunk only when it has taken the one before.
#[test]
fn every_chunk_of_a_ring_pays_the_latency() {
    let (ranks, chunks) = (4, 20);
    let sizes = Sizes { chunk: 50_000, ..unchunked(ranks, ranks * chunks * 50_000) };
    let (frames, share) = (2.0 * 3.0 * chunks as f64, 3.0 * 20.0 * 50_000.0);
    let expected = frames * 1e-6 + 2.0 * share * 1e-9 + share * 0.25e-9;
    assert_close(time_s(Collective::AllReduce, Algorithm::Ring, sizes), expected);
}

#[test]
fn folds_are_charged_by_the_link_of_each_frame() {
    // Rank 0 folds a frame of its own host and one of another into its data.
    let peers = [1, 2].map(Rank::new);
    let mut steps: Vec<Step> = peers.map(|peer| Step::Wait { peer }).to_vec();
    steps.push(Step::Reduce {
        target: ElemRange::up_to(1000),
        sources: Box::new([Source::Own, Source::Inbox(peers[0]), Source::Inbox(peers[1])]),
        stage: Stage::Final,
    });
    steps.extend(peers.map(|peer| Step::Release { peer }));
    let lists = vec![steps, vec![put(0, 1000)], vec![put(0, 1000)]];
    let sizes = unchunked(3, 1000);
    let plan = Plan::with_steps(schedule(BROADCAST, Algorithm::Binomial, sizes), lists);
    let inter = Link { fold_s_per_byte: 7e-9, ..LINK };
    let network = Network::new(hosts(3, 2), LINK, inter);
    let simulation = simulate_plan(&plan, DType::U8, &network, Detail::Totals).unwrap();
    assert_close(simulation.time_s, 2e-6 + 0.25e-6 + 7e-6);
}

/// The first payload of a frame that goes with its header arrives sooner than one that does not.
#[test]
fn a_long_frame_pays_for_its_second_transfer() {
    let link = Link { short_bytes: 16, long_latency_s: 4e-7, ..LINK };
    for (bytes, latency_s) in [(1, 1e-6), (16, 1e-6), (17, 1.4e-6), (1000, 1.4e-6)] {
        let network = Network::one_host(world(2), link);
        let schedule = schedule(BROADCAST, Algorithm::Binomial, unchunked(2, bytes));
        let simulation = simulate(&schedule, DType::U8, &network, Detail::Totals).unwrap();
        assert_close(simulation.time_s, latency_s + bytes as f64 * 1e-9);
        let path: f64 = (simulation.path.iter())
            .filter(|segment| segment.activity == Activity::Latency)
            .map(|segment| segment.end_s - segment.start_s)
            .sum();
        assert_close(path, latency_s);
    }
}
