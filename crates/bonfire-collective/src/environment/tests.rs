use std::collections::HashMap;

use super::*;

/// Parses a space-separated list of assignments.
fn parse(assignments: &str) -> Result<Option<RankEnv>, EnvError> {
    let values: HashMap<&str, &str> = assignments
        .split_whitespace()
        .map(|assignment| assignment.split_once('=').unwrap())
        .collect();
    RankEnv::detect_in(|variable| values.get(variable).map(OsString::from))
}

fn accepted(assignments: &str) -> RankEnv {
    parse(assignments).unwrap().expect("a worker's environment")
}

#[track_caller]
fn refused(assignments: &str, expected: &str) {
    let message = parse(assignments).unwrap_err().to_string();
    assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    assert!(!message.contains('\n'), "{message:?} is more than one line");
}

const MEETING: &str = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500";

#[test]
fn nothing_set_is_no_worker() {
    assert!(parse("").unwrap().is_none());
    assert!(parse(MEETING).unwrap().is_none());
    let token = format!("BONFIRE_JOB_TOKEN={}", "ab".repeat(32));
    assert!(parse(&token).unwrap().is_none());
}

#[test]
fn local_values_default_to_one_host() {
    let worker = accepted(&format!("RANK=3 WORLD_SIZE=4 {MEETING}"));
    assert_eq!((worker.rank.get(), worker.world_size.get()), (3, 4));
    assert_eq!((worker.local_rank, worker.local_world_size), (3, 4));
    assert_eq!(worker.master_addr, "127.0.0.1");
    assert_eq!(worker.master_port, 29500);
    assert!(worker.job_token.is_empty());
    assert_eq!(worker.agent_store, StoreHost::RankZero);
}

#[test]
fn local_rank_defaults_to_the_place_among_consecutive_ranks() {
    let worker = accepted(&format!("RANK=6 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 {MEETING}"));
    assert_eq!((worker.local_rank, worker.local_world_size), (2, 4));
}

#[test]
fn what_the_launcher_writes_is_what_the_worker_reads() {
    let written = RankEnv {
        rank: Rank::new(5),
        world_size: WorldSize::new(8).unwrap(),
        local_rank: 1,
        local_world_size: 4,
        master_addr: "node-0".to_owned(),
        master_port: 4242,
        job_token: JobToken::random().unwrap(),
        agent_store: StoreHost::Agent,
        job_id: "night run".to_owned(),
        restart_count: 2,
        host_id: Some("rack 7".to_owned()),
        overrides: "all_reduce=ring".parse().unwrap(),
    };
    let variables: HashMap<_, _> = written.variables().into_iter().collect();
    let read = RankEnv::from_lookup(|name| variables.get(name).map(OsString::from)).unwrap();
    assert_eq!(read.variables(), written.variables());
    assert_eq!((read.job_id.as_str(), read.restart_count), ("night run", 2));
    assert_eq!(read.host_id, written.host_id);
    assert_eq!(read.overrides, written.overrides);

    let silent = RankEnv {
        job_token: JobToken::empty(),
        agent_store: StoreHost::RankZero,
        host_id: None,
        overrides: AlgorithmOverrides::default(),
        ..written
    };
    let variables: HashMap<_, _> = silent.variables().into_iter().collect();
    let read = RankEnv::from_lookup(|name| variables.get(name).map(OsString::from)).unwrap();
    assert!(read.job_token.is_empty());
    assert_eq!(read.agent_store, StoreHost::RankZero);
}

#[test]
fn a_missing_variable_is_named() {
    refused(&format!("RANK=0 {MEETING}"), "WORLD_SIZE is not set");
    refused(&format!("WORLD_SIZE=1 {MEETING}"), "RANK is not set");
    refused(&format!("LOCAL_RANK=0 {MEETING}"), "RANK is not set");
    refused(
        "RANK=0 WORLD_SIZE=1 MASTER_PORT=1",
        "MASTER_ADDR is not set",
    );
    refused(
        "RANK=0 WORLD_SIZE=1 MASTER_ADDR=a",
        "MASTER_PORT is not set",
    );
}

#[test]
fn a_world_of_zero_is_refused() {
    refused(
        &format!("RANK=0 WORLD_SIZE=0 {MEETING}"),
        "WORLD_SIZE must be a whole number from 1",
    );
}

#[test]
fn a_rank_outside_its_world_is_refused() {
    refused(
        &format!("RANK=4 WORLD_SIZE=4 {MEETING}"),
        "RANK is 4, but WORLD_SIZE is 4",
    );
    refused(
        &format!("RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 {MEETING}"),
        "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2",
    );
    refused(
        &format!("RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=5 {MEETING}"),
        "LOCAL_WORLD_SIZE is 5, more than WORLD_SIZE",
    );
}

#[test]
fn text_that_is_no_number_is_shown() {
    refused(
        &format!("RANK=one WORLD_SIZE=4 {MEETING}"),
        "RANK must be a whole number",
    );
    refused(&format!("RANK=-1 WORLD_SIZE=4 {MEETING}"), "not \"-1\"");
    refused(&format!("RANK= WORLD_SIZE=4 {MEETING}"), "not \"\"");
    refused(
        &format!("RANK=0 WORLD_SIZE=99999999999 {MEETING}"),
        "not \"99999999999\"",
    );
}

#[test]
fn a_port_outside_its_range_is_refused() {
    for port in ["0", "65536", "http"] {
        refused(
            &format!("RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT={port}"),
            "MASTER_PORT must be a whole number from 1 to 65535",
        );
    }
}

#[test]
fn an_empty_address_is_refused() {
    refused(
        "RANK=0 WORLD_SIZE=1 MASTER_ADDR= MASTER_PORT=1",
        "MASTER_ADDR is empty",
    );
}

#[test]
fn a_bad_token_or_switch_is_refused() {
    let base = format!("RANK=0 WORLD_SIZE=1 {MEETING}");
    refused(
        &format!("{base} BONFIRE_JOB_TOKEN=secret"),
        "BONFIRE_JOB_TOKEN is wrong",
    );
    refused(
        &format!("{base} BONFIRE_AGENT_STORE=yes"),
        "BONFIRE_AGENT_STORE must be 0 or 1",
    );
}

#[test]
fn a_bad_host_or_algorithm_is_refused() {
    let base = format!("RANK=0 WORLD_SIZE=1 {MEETING}");
    refused(
        &format!("{base} BONFIRE_HOST_ID={}", "h".repeat(65)),
        "BONFIRE_HOST_ID has 65 bytes",
    );
    refused(
        &format!("{base} TORCHELASTIC_RUN_ID={}", "j".repeat(257)),
        "TORCHELASTIC_RUN_ID has 257 bytes",
    );
    refused(
        &format!("{base} TORCHELASTIC_RESTART_COUNT=twice"),
        "TORCHELASTIC_RESTART_COUNT must be a whole number",
    );
    refused(
        &format!("{base} BONFIRE_ALGORITHM=fast"),
        "BONFIRE_ALGORITHM is wrong",
    );
}
