//! Links over several streams: the same results, the same traffic, and one end for all of them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::time::Duration;

use bonfire_collective::{
    Algorithm, CollectiveError, ConnectError, EnvSettings, GroupOptions, JobToken, ProcessGroup,
    Rank, RankEnv, ReduceOp, TcpStoreServer, shard_range,
};
use bonfire_plan::Collective;
use bonfire_testkit::conformance::{Bits, check_all, check_large};
use bonfire_testkit::{
    Watchdog, connected, env_of, local, on_hosts, over, processes, try_connected,
};

/// Far beyond what any of these takes.
const LIMIT: Duration = Duration::from_secs(240);

fn one_digest(digests: Vec<u64>) -> u64 {
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:x?}");
    digests[0]
}

fn check_world(world_size: u32) {
    let program = Path::new(env!("CARGO_BIN_EXE_conformance-rank"));
    let expected =
        one_digest(local(world_size, GroupOptions::default(), |group| check_large(&group)));
    for way in ["tcp:1", "tcp:2", "tcp:4", "tcp:16", "tcp:4t", "tcp:2t+all"] {
        let digests = connected(world_size, over(way).unwrap(), |group| check_large(&group));
        assert_eq!(one_digest(digests), expected, "threads over {way}");
    }
    for way in ["tcp:2", "tcp:4", "tcp:4t"] {
        let chunk_bytes = GroupOptions::default().chunk_bytes.to_string();
        let digests = processes(program, &[way, &chunk_bytes, "large"], world_size)
            .into_iter()
            .map(|output| {
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {errors}", output.status);
                let text = String::from_utf8(output.stdout).unwrap();
                u64::from_str_radix(text.trim(), 16).unwrap()
            });
        assert_eq!(one_digest(digests.collect()), expected, "processes, {way}");
    }
}

#[test]
fn two_ranks_get_the_same_bits_over_any_number_of_streams() {
    check_world(2);
}

#[test]
fn three_ranks_get_the_same_bits_over_any_number_of_streams() {
    check_world(3);
}

#[test]
fn every_operation_conforms_over_streams() {
    let expected =
        one_digest(local(2, GroupOptions::default(), |group| check_all(&group, Bits::Canonical)));
    for way in ["tcp:2", "tcp:4", "tcp:4t", "tcp:4t+all"] {
        let digests = connected(2, over(way).unwrap(), |group| check_all(&group, Bits::Canonical));
        assert_eq!(one_digest(digests), expected, "{way}");
    }
}

#[test]
fn every_algorithm_conforms_over_streams() {
    // Another is used between hosts, whose ranks have no memory in common.
    for &algorithm in Algorithm::ALL.iter().filter(|&&other| other != Algorithm::ZeroCopy) {
        for way in ["auto:3", "auto:3t"] {
            // Chunks of two pieces, so that many frames are under way.
            let forced =
                over(way).unwrap().with_algorithm(Some(algorithm)).with_chunk_bytes(32 << 10);
            let uses =
                on_hosts(&["a", "b", "a", "b"], forced, |group| uses_of(&group, algorithm, way));
            assert!(uses.iter().all(|uses| *uses > 0), "{algorithm} is not used");
        }
    }
}

/// How many of the collectives in which four ranks take part alike have the algorithm, which each that has it uses.
fn uses_of(group: &ProcessGroup, algorithm: Algorithm, way: &str) -> usize {
    let (me, root, mut uses) = (group.rank(), Rank::new(1), 0);
    let of_rank = |rank: u32| (0..200_003).map(move |index: i32| index + rank as i32);
    let (mine, every_rank) = (of_rank(me.get()).collect::<Vec<_>>(), 0..4);
    let mut check = |collective: Collective, found: Vec<i32>, expected: Vec<i32>| {
        assert!(found == expected, "{collective} by {algorithm}, {way}");
        if Algorithm::candidates(collective).contains(&algorithm) {
            assert_eq!(group.last_algorithm(), Some(algorithm), "{collective}");
            uses += 1;
        }
    };
    let sum: Vec<i32> = (0..200_003).map(|index| 4 * index + 6).collect();
    let mut data = mine.clone();
    group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
    check(Collective::AllReduce, data, sum.clone());
    let shard = shard_range(mine.len(), group.world_size(), me).as_range();
    let found = group.reduce_scatter(&mine, ReduceOp::Sum).unwrap();
    check(Collective::ReduceScatter, found, sum[shard].to_vec());
    let found = group.all_gather(&mine).unwrap();
    check(Collective::AllGather, found, every_rank.clone().flat_map(of_rank).collect());
    let mut data = mine.clone();
    group.broadcast(&mut data, root).unwrap();
    check(Collective::Broadcast { root }, data, of_rank(1).collect());
    let mut data = mine.clone();
    group.reduce(&mut data, root, ReduceOp::Sum).unwrap();
    let (found, expected) = if me == root { (data, sum) } else { (Vec::new(), Vec::new()) };
    check(Collective::Reduce { root }, found, expected);
    let found = group.gather(&mine, root).unwrap().unwrap_or_default();
    let expected = every_rank.clone().flat_map(of_rank).filter(|_| me == root).collect();
    check(Collective::Gather { root }, found, expected);
    let mut data: Vec<i32> = every_rank.clone().flat_map(of_rank).collect();
    group.all_to_all(&mut data).unwrap();
    check(Collective::AllToAll, data, every_rank.flat_map(|_| of_rank(me.get())).collect());
    group.barrier().unwrap();
    check(Collective::Barrier, Vec::new(), Vec::new());
    uses
}

#[test]
fn streams_change_nothing_of_the_traffic() {
    let traffic = ["tcp:1", "tcp:4"].map(|way| {
        let options = over(way).unwrap().with_algorithm(Some(Algorithm::Ring));
        connected(2, options, |group| {
            let mut data = vec![1.0_f32; 300_000];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            group.all_reduce(&mut data[..9], ReduceOp::Sum).unwrap();
            group.traffic()
        })
    });
    assert_eq!(traffic[0], traffic[1]);
    assert_eq!(traffic[0][0].payload_bytes_sent, 300_000 * 4 + 9 * 4);
}

/// Two ranks with a number of streams each: by the program, and by the environment.
fn meet(given: [(u32, Option<u32>); 2]) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let token = JobToken::random().unwrap();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let ranks = (0..).zip(given).map(|(rank, (in_code, streams_per_link))| {
        let env = RankEnv {
            settings: EnvSettings { streams_per_link, ..EnvSettings::default() },
            ..env_of(rank, 2, &server, &token)
        };
        let options = over("tcp")
            .unwrap()
            .with_startup_timeout(Duration::from_secs(60))
            .with_streams_per_link(in_code);
        (env, options)
    });
    try_connected(ranks.collect())
}

#[test]
fn ranks_with_different_numbers_are_both_named() {
    let _watchdog = Watchdog::start("different numbers of streams", LIMIT);
    for (rank, result) in meet([(2, None), (2, Some(3))]).into_iter().enumerate() {
        let Err(CollectiveError::Connect(error)) = result else {
            panic!("{result:?}");
        };
        let [mine, theirs] = [[2, 3], [3, 2]][rank];
        let said = format!(
            "rank {rank} has streams_per_link (BONFIRE_STREAMS) {mine}, but rank {} has {theirs}",
            1 - rank
        );
        assert!(matches!(*error, ConnectError::Disagree { .. }), "{error}");
        assert!(error.to_string().starts_with(&said), "{error}");
    }
}

#[test]
fn the_environment_goes_before_the_program() {
    let _watchdog = Watchdog::start("streams by the environment", LIMIT);
    for result in meet([(1, Some(3)), (3, None)]) {
        result.unwrap();
    }
}

#[test]
fn an_impossible_number_is_refused() {
    for found in [0, 17] {
        let options = GroupOptions::default().with_streams_per_link(found);
        let one = bonfire_collective::WorldSize::new(1).unwrap();
        let error = ProcessGroup::local(one, options).unwrap_err().to_string();
        assert!(error.contains(&format!("1 to 16, got {found}")), "{error}");
    }
}

#[test]
fn the_end_of_one_stream_is_the_end_of_its_link_and_names_its_ranks() {
    for way in ["tcp:4", "tcp:4t"] {
        check_cut(way);
    }
}

fn check_cut(way: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_fault-rank"));
    let ranks = processes(program, &[way, "cut"], 3);
    let said: Vec<_> = ranks.iter().map(|output| String::from_utf8_lossy(&output.stdout)).collect();
    let cut = said[2].lines().find_map(|line| line.strip_prefix("cuts "));
    let (own, peer) = cut.and_then(|ports| ports.split_once(' ')).unwrap();
    let other_end = format!("has {peer} {own}");
    let has_it = |rank: &usize| said[*rank].lines().any(|line| line == other_end);
    let other = (0..2).find(has_it).unwrap();
    for (rank, output) in ranks.iter().enumerate() {
        let said = &said[rank];
        assert_eq!(output.status.code(), Some(3), "rank {rank}: {said}");
        // Each of the two sees the other end it; all are notified of the first.
        assert!(
            [other, 2].iter().any(|end| said.contains(&format!("heard: rank {end} failed"))),
            "rank {rank}, and the link is that of 2 and {other}: {said}"
        );
        assert!(said.contains("it closed its link"), "rank {rank}: {said}");
    }
}
