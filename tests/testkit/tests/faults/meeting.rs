//! Ranks that cannot meet, and the errors that they get.

use std::time::Duration;

use bonfire_collective::{
    CollectiveError, ConnectError, GroupOptions, JobToken, OptionError, ProcessGroup, StoreError,
    TcpStoreServer,
};
use bonfire_testkit::{env_of, try_connected};

fn meet(
    settings: [(u32, GroupOptions); 2],
    tokens: [JobToken; 2],
) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &tokens[0]).unwrap();
    let ranks = settings.into_iter().zip(tokens);
    let ranks = ranks.map(|((rank, options), token)| (env_of(rank, 2, &server, &token), options));
    try_connected(ranks.collect())
}

fn connect_error(result: &Result<ProcessGroup, CollectiveError>) -> &ConnectError {
    match result {
        Err(CollectiveError::Connect(error)) => error,
        other => panic!("expected an error of set-up, got {other:?}"),
    }
}

fn hurried() -> GroupOptions {
    GroupOptions::default().with_startup_timeout(Duration::from_millis(700))
}

#[test]
fn ranks_with_different_settings_learn_what_differs() {
    let token = JobToken::random().unwrap();
    let options = GroupOptions::default();
    let other = options.clone().with_chunk_bytes(128);
    for result in meet([(0, options), (1, other)], [token.clone(), token]) {
        let error = connect_error(&result);
        assert!(matches!(error, ConnectError::Disagree { what: "chunk_bytes", .. }), "{error}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let token = JobToken::random().unwrap();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let result = ProcessGroup::connect(&env_of(1, 3, &server, &token), hurried());
    let ConnectError::Missing { missing, .. } = connect_error(&result) else {
        panic!("{result:?}");
    };
    assert_eq!(missing.iter().map(|rank| rank.get()).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn two_processes_cannot_be_one_rank() {
    let token = JobToken::random().unwrap();
    let results = meet([(0, hurried()), (0, hurried())], [token.clone(), token]);
    assert!(results.iter().any(|result| {
        matches!(connect_error(result), ConnectError::RankTaken { rank } if rank.get() == 0)
    }));
}

#[test]
fn a_rank_of_another_job_is_refused() {
    let tokens = [JobToken::random().unwrap(), JobToken::random().unwrap()];
    let results = meet([(0, hurried()), (1, hurried())], tokens);
    assert!(matches!(connect_error(&results[0]), ConnectError::Missing { .. }));
    assert!(matches!(
        connect_error(&results[1]),
        ConnectError::Store(StoreError::WrongToken { .. })
    ));
}

#[test]
fn an_impossible_transport_or_chunk_is_refused() {
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &JobToken::empty()).unwrap();
    let env = env_of(0, 1, &server, &JobToken::empty());
    let tiny = hurried().with_chunk_bytes(1);
    let result = ProcessGroup::connect(&env, tiny.clone());
    assert!(matches!(
        connect_error(&result),
        ConnectError::Option(OptionError::ChunkBytes { found: 1 })
    ));
    let one = bonfire_collective::WorldSize::new(1).unwrap();
    assert!(ProcessGroup::local(one, tiny).is_err());
}
