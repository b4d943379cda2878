//! Groups whose connections are encrypted: the same results, and clear words where ranks differ.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use bonfire_collective::{
    CollectiveError, ConnectError, EnvSettings, GroupOptions, JobToken, ProcessGroup, RankEnv,
    ReduceOp, StoreError, TcpStoreServer, Tls,
};
use bonfire_testkit::conformance::{Bits, check_all, check_large};
use bonfire_testkit::{Watchdog, connected, env_of, local, on_hosts, over, try_connected};

/// Far beyond what any of these takes.
const LIMIT: Duration = Duration::from_secs(240);

fn one_digest(digests: Vec<u64>) -> u64 {
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:x?}");
    digests[0]
}

#[test]
fn every_operation_conforms_over_tls() {
    let body = |group| check_all(&group, Bits::Canonical);
    for (world_size, chunk_bytes) in [(2, 320), (3, 320), (2, 256 << 10)] {
        let options = over("tcp+all").unwrap().with_chunk_bytes(chunk_bytes);
        let expected = one_digest(local(world_size, options.clone(), body));
        assert_eq!(one_digest(connected(world_size, options, body)), expected);
    }
}

#[test]
fn large_data_conforms_over_tls_and_several_streams() {
    let expected = one_digest(local(3, GroupOptions::default(), |group| check_large(&group)));
    for way in ["tcp+all", "tcp:3+all"] {
        let digests = connected(3, over(way).unwrap(), |group| check_large(&group));
        assert_eq!(one_digest(digests), expected, "{way}");
    }
}

#[test]
fn ranks_of_one_host_stay_unencrypted_among_themselves() {
    // Ranks 0 and 2 meet in shared memory, both meet rank 1 over TLS; so do the parts of the group.
    let sums = on_hosts(&["a", "b", "a"], over("auto+hosts").unwrap(), |group| {
        let part = group.split(Some(0), -i64::from(group.rank().get()));
        let part = part.unwrap().unwrap();
        let mut data = vec![part.rank().get() + 1; 100_000];
        part.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        group.all_reduce(&mut data, ReduceOp::Max).unwrap();
        data
    });
    assert!(sums.iter().flatten().all(|sum| *sum == 6));
}

/// Two ranks with different options of TLS, by the environment if at all.
fn meet(
    server_tls: Tls,
    given: [(Tls, Option<Tls>); 2],
) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let token = JobToken::random().unwrap();
    let any_port = "127.0.0.1:0".parse().unwrap();
    let server = TcpStoreServer::bind_with(any_port, &token, server_tls).unwrap();
    let ranks = (0..).zip(given).map(|(rank, (in_code, tls))| {
        let env = RankEnv {
            settings: EnvSettings { tls, ..EnvSettings::default() },
            ..env_of(rank, 2, &server, &token)
        };
        let options =
            over("tcp").unwrap().with_startup_timeout(Duration::from_secs(60)).with_tls(in_code);
        (env, options)
    });
    try_connected(ranks.collect())
}

#[test]
fn ranks_that_differ_are_both_named() {
    let _watchdog = Watchdog::start("ranks that differ in TLS", LIMIT);
    for result in meet(Tls::Off, [(Tls::Hosts, None), (Tls::Off, None)]) {
        let Err(CollectiveError::Connect(error)) = result else {
            panic!("{result:?}");
        };
        assert!(matches!(*error, ConnectError::Disagree { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("tls (--tls or BONFIRE_TLS)"), "{said}");
        assert!(said.contains("rank 0") && said.contains("rank 1"), "{said}");
    }
}

#[test]
fn a_rank_that_differs_from_the_store_learns_what_to_do() {
    let _watchdog = Watchdog::start("a store that differs in TLS", LIMIT);
    for result in meet(Tls::Off, [(Tls::All, None), (Tls::All, None)]) {
        let Err(CollectiveError::Connect(error)) = result else {
            panic!("{result:?}");
        };
        let differs = matches!(&*error, ConnectError::Store(StoreError::TlsDiffers { .. }));
        assert!(differs, "{error}");
        assert!(error.to_string().contains("the launcher and all ranks"));
    }
}

#[test]
fn the_environment_goes_before_the_program() {
    let _watchdog = Watchdog::start("TLS by the environment", LIMIT);
    for result in meet(Tls::All, [(Tls::Off, Some(Tls::All)), (Tls::All, None)]) {
        result.unwrap();
    }
}

#[test]
fn tls_without_a_token_is_refused() {
    let _watchdog = Watchdog::start("TLS without a token", LIMIT);
    let token = JobToken::empty();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    for tls in [Tls::Hosts, Tls::All] {
        let options = GroupOptions::default().with_tls(tls);
        let error = ProcessGroup::connect(&env_of(0, 1, &server, &token), options).unwrap_err();
        let CollectiveError::Connect(error) = error else {
            panic!("{error}");
        };
        assert!(matches!(*error, ConnectError::NoToken), "{error}");
    }
}
