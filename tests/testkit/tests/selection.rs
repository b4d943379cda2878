//! Which algorithm an operation uses, as far as a program can see: in results, and in errors.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use bonfire_collective::{
    Algorithm, AlgorithmOverrides, CollectiveError, ConnectError, EnvSettings, FoldOrder,
    GroupOptions, JobToken, ProcessGroup, RankEnv, ReduceOp, TcpStoreServer, TransportKind,
    shard_range,
};
use bonfire_testkit::conformance::{Bits, check_all};
use bonfire_testkit::{Watchdog, connected, env_of, local, on_hosts, some, try_connected};

fn options(order: FoldOrder) -> GroupOptions {
    GroupOptions::default()
        .with_timeout(Duration::from_secs(100))
        .with_chunk_bytes(320)
        .with_order(order)
}

fn one_digest(digests: &[u64]) -> u64 {
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:x?}");
    digests[0]
}

#[test]
fn all_ranks_agree_when_any_order_will_do() {
    for &world_size in some(&[3, 2, 4], 1) {
        let body = |group| check_all(&group, Bits::AnyOrder);
        one_digest(&local(world_size, options(FoldOrder::Any), body));
        for transport in [TransportKind::Shm, TransportKind::Tcp] {
            let options = options(FoldOrder::Any).with_transport(Some(transport));
            one_digest(&connected(world_size, options, body));
        }
    }
}

#[test]
fn several_hosts_give_the_bits_of_one() {
    let body = |group| check_all(&group, Bits::Canonical);
    let expected = one_digest(&local(4, options(FoldOrder::Canonical), body));
    let arrangements = [["a", "b", "a", "b"], ["a", "a", "b", "b"], ["a", "b", "c", "c"]];
    for hosts in some(&arrangements, 1) {
        let digests = on_hosts(hosts, options(FoldOrder::Canonical), body);
        assert_eq!(one_digest(&digests), expected, "{hosts:?}");
        let any =
            on_hosts(hosts, options(FoldOrder::Any), |group| check_all(&group, Bits::AnyOrder));
        one_digest(&any);
    }
}

#[test]
fn every_algorithm_conforms_between_hosts() {
    let newest_first: Vec<Algorithm> = Algorithm::ALL.iter().rev().copied().collect();
    for &algorithm in some(&newest_first, 1) {
        let forced = options(FoldOrder::Canonical).with_algorithm(Some(algorithm));
        let digests = on_hosts(&["a", "b", "a"], forced, |group| check_all(&group, Bits::AnyOrder));
        one_digest(&digests);
    }
}

/// Sums of f32 by the chain, also where it visits a host twice.
#[test]
fn the_chain_of_hosts_gives_the_bits_of_one() {
    let bits = |group: &ProcessGroup, sums: &[f32]| {
        let mut data: Vec<f32> = (0..50_000_u32)
            .map(|index| 1.0 / (1 + index + 7 * group.rank().get()) as f32)
            .collect();
        group.all_reduce(&mut data, ReduceOp::Mean).unwrap();
        let mut shards = data.clone();
        shards.extend(sums);
        group.reduce_scatter_in_place(&mut shards, ReduceOp::Sum).unwrap();
        let shard = shard_range(shards.len(), group.world_size(), group.rank()).as_range();
        let values = data.iter().chain(&shards[shard]);
        values.map(|value| value.to_bits()).collect::<Vec<u32>>()
    };
    let sums = vec![0.1; 777];
    let expected = local(5, options(FoldOrder::Canonical), |group| bits(&group, &sums));
    for hosts in [["a", "a", "b", "b", "b"], ["a", "b", "b", "a", "c"]] {
        let forced = options(FoldOrder::Canonical).with_algorithm(Some(Algorithm::Chain));
        let found = on_hosts(&hosts, forced, |group| {
            let bits = bits(&group, &sums);
            assert_eq!(group.last_algorithm(), Some(Algorithm::Chain));
            bits
        });
        assert!(found == expected, "{hosts:?}");
    }
}

/// The algorithm of an all-reduce, which an error of ranks that disagree tells.
fn algorithm_of_all_reduce(group: &ProcessGroup) -> Algorithm {
    let mut data = vec![1.0_f32; 100 + group.rank().index()];
    let result = group.all_reduce(&mut data, ReduceOp::Sum);
    let error = result.and_then(|()| group.barrier()).unwrap_err();
    let CollectiveError::Mismatch(mismatch) = error else {
        panic!("{error}");
    };
    mismatch.operation.algorithm
}

/// Two ranks whose environments ask for algorithms.
fn meet(
    overrides: [&str; 2],
    algorithm: Option<Algorithm>,
) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let _watchdog = Watchdog::start("two ranks with algorithms", Duration::from_secs(100));
    let token = JobToken::random().unwrap();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let ranks = (0..).zip(overrides).map(|(rank, overrides)| {
        let env = RankEnv {
            settings: EnvSettings {
                overrides: overrides.parse().unwrap(),
                ..EnvSettings::default()
            },
            ..env_of(rank, 2, &server, &token)
        };
        let options = options(FoldOrder::Canonical)
            .with_algorithm(algorithm)
            .with_startup_timeout(Duration::from_secs(20));
        (env, options)
    });
    try_connected(ranks.collect())
}

#[test]
fn the_environment_goes_before_the_program() {
    for (overrides, in_code, expected) in [
        ("all_reduce=ring", None, Algorithm::Ring),
        ("all_reduce=ring", Some(Algorithm::OneShot), Algorithm::Ring),
        ("one_shot,all_reduce=two_shot", None, Algorithm::TwoShot),
        ("all_gather=ring", Some(Algorithm::TwoShot), Algorithm::TwoShot),
    ] {
        let groups = meet([overrides, overrides], in_code);
        std::thread::scope(|scope| {
            for group in groups {
                let group = group.unwrap();
                scope.spawn(move || {
                    assert_eq!(algorithm_of_all_reduce(&group), expected, "{overrides}");
                });
            }
        });
    }
}

#[test]
fn ranks_must_be_given_the_same() {
    for result in meet(["ring", "one_shot"], None) {
        let Err(CollectiveError::Connect(error)) = result else {
            panic!("{result:?}");
        };
        let what = "BONFIRE_ALGORITHM";
        assert!(
            matches!(&*error, ConnectError::Disagree { what: said, .. } if *said == what),
            "{error}"
        );
    }
}

#[test]
fn parts_do_as_the_environment_says_too() {
    let options =
        options(FoldOrder::Canonical).with_overrides("ring".parse::<AlgorithmOverrides>().unwrap());
    let used = local(4, options, |world| {
        // The error that tells the algorithm would end the other half, too.
        let half = world.detached().split(Some(world.rank().get() % 2), 0).unwrap().unwrap();
        algorithm_of_all_reduce(&half)
    });
    assert_eq!(used, [Algorithm::Ring; 4]);
}

#[test]
fn ranks_that_measure_meet_others_that_do_something_else() {
    // The first sum of floats measures the links; a barrier has nothing to choose.
    let errors = connected(3, options(FoldOrder::Canonical), |world| {
        let result = match world.rank().get() {
            1 => world.barrier(),
            _ => world.all_reduce(&mut [1.0_f32; 50], ReduceOp::Sum),
        };
        result.and_then(|()| world.barrier()).unwrap_err()
    });
    for error in errors {
        let CollectiveError::Mismatch(mismatch) = error else {
            panic!("{error}");
        };
        let names = [&mismatch.operation, &mismatch.other_operation]
            .map(|operation| operation.collective.name());
        assert!(names.contains(&"barrier") && names.contains(&"all_reduce"));
    }
}
