//! Ranks that do not belong together return errors with their numbers.

use std::io::Write;
use std::net::TcpStream;

use super::*;
use crate::options::builds::{Build, Builds};
use crate::options::place::StoreHost;
use bonfire_plan::WorldSize;

/// Far more than a refusal takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A rank of a world of two at a store.
pub(super) fn env_of(rank: u32, server: &TcpStoreServer, token: &JobToken) -> RankEnv {
    RankEnv {
        rank: Rank::new(rank),
        world_size: WorldSize::new(2).unwrap(),
        local_rank: rank,
        local_world_size: 2,
        master_addr: server.local_addr().ip().to_string(),
        master_port: server.local_addr().port(),
        job_token: token.clone(),
        agent_store: StoreHost::Agent,
        job_id: String::new(),
        restart_count: 0,
        host_id: None,
        launcher_id: None,
        settings: crate::EnvSettings::default(),
    }
}

fn options() -> GroupOptions {
    GroupOptions { startup_timeout: TIMEOUT, ..GroupOptions::default() }
}

fn serve_store(token: &JobToken) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), token).unwrap()
}

#[test]
fn a_rank_of_an_earlier_attempt_is_refused_by_name() {
    let token = JobToken::random().unwrap();
    let server = serve_store(&token);
    let stale = env_of(1, &server, &token);
    server.store().add(RESTARTS_KEY, 1).unwrap();
    let error = meet(&stale, &options()).err().unwrap();
    let is_stale = matches!(error, ConnectError::StaleAttempt { restart_count: 0, current: 1, .. });
    assert!(is_stale, "{error}");
    assert!(error.to_string().contains("rank 1 of attempt 0"), "{error}");
}

#[test]
fn a_rank_that_waits_while_the_others_begin_again_is_refused_too() {
    let token = JobToken::random().unwrap();
    let server = serve_store(&token);
    let stale = env_of(1, &server, &token);
    let error = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| meet(&stale, &options()).err().unwrap());
        // It has come, and waits for rank 0.
        server.store().get("attempt/0/address/1", TIMEOUT).unwrap();
        server.store().add(RESTARTS_KEY, 1).unwrap();
        waiting.join().unwrap()
    });
    assert!(matches!(error, ConnectError::StaleAttempt { .. }), "{error}");
}

#[test]
fn the_ranks_of_the_next_attempt_meet_in_the_same_store() {
    let token = JobToken::random().unwrap();
    let server = serve_store(&token);
    for restart_count in 0..3 {
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let env = RankEnv { restart_count, ..env_of(rank, &server, &token) };
                scope.spawn(move || meet(&env, &options()).unwrap().topology.hosts().len());
            }
        });
        server.store().add(RESTARTS_KEY, 1).unwrap();
    }
}

/// What rank 0 says of a rank 1 with these settings.
fn error_of(other: Settings, options: &GroupOptions) -> String {
    let token = JobToken::random().unwrap();
    let server = serve_store(&token);
    let home = Home {
        token: token.clone(),
        host: HostId::of_this_process(None),
        interface: server.local_addr(),
        inspection: None,
        ranks: 1,
    };
    let (_listeners, address) = home.listen().unwrap();
    let other = Card { settings: other, address };
    server.store().set("attempt/0/address/1", &other.encode()).unwrap();
    let error = meet(&env_of(0, &server, &token), options).err().unwrap();
    error.to_string()
}

#[test]
fn a_rank_of_another_version_is_named() {
    let message = error_of(Settings::new(&options()).of_version("0.0.9"), &options());
    let ours = env!("CARGO_PKG_VERSION");
    assert!(
        message.contains(&format!("rank 0 has version {ours}, but rank 1 has 0.0.9")),
        "{message}"
    );
}

#[test]
fn a_rank_of_another_build_is_named_with_both_programs() {
    let text = |options: &GroupOptions| {
        let other = Settings::new(options).of_build(Build::called("/old/train", "1-2"));
        error_of(other, options)
    };
    let message = text(&options());
    let own = std::env::current_exe().unwrap();
    for part in [
        &format!("rank 0 runs {} (build ", own.display()),
        "but rank 1 runs /old/train (build 1-2)",
        "BONFIRE_BUILDS=any",
    ] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
    let message = text(&GroupOptions {
        builds: Builds::Any,
        startup_timeout: Duration::from_millis(300),
        ..options()
    });
    assert!(!message.contains("build"), "{message}");
}

#[test]
fn jobs_with_different_names_never_meet_though_they_share_a_token() {
    let token = JobToken::random().unwrap();
    let server = serve_store(&token.for_job("one"));
    let stranger = RankEnv { job_id: "two".to_owned(), ..env_of(0, &server, &token) };
    let options =
        GroupOptions { startup_timeout: Duration::from_millis(300), ..GroupOptions::default() };
    let error = meet(&stranger, &options).err().unwrap();
    let ConnectError::Store(StoreError::WrongToken { .. } | StoreError::Unreachable { .. }) = error
    else {
        panic!("{error}");
    };
}

#[test]
fn strangers_at_a_rank_s_door_keep_no_rank_out() {
    let token = JobToken::random().unwrap();
    let server = serve_store(&token);
    let on_host = |rank: u32| RankEnv {
        host_id: Some(format!("host {rank}")),
        ..env_of(rank, &server, &token)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| meet(&on_host(0), &options()).unwrap());
        let card = server.store().get("attempt/0/address/0", TIMEOUT).unwrap();
        let door = Card::decode(Rank::new(0), &card).unwrap().address.tcp;
        let mut strangers: Vec<TcpStream> = Vec::new();
        for number in 0..1000_usize {
            let mut stranger = TcpStream::connect(door).unwrap();
            match number % 3 {
                // Says nothing.
                0 => {}
                // Sends what is no handshake.
                1 => stranger.write_all(&[number as u8; 200]).unwrap(),
                // Stops within it.
                _ => stranger.write_all(&[number as u8; 40]).unwrap(),
            }
            strangers.push(stranger);
        }
        let second = scope.spawn(|| meet(&on_host(1), &options()).unwrap());
        for rank in [first, second] {
            assert_eq!(rank.join().unwrap().topology.hosts().len(), 2);
        }
    });
}

#[test]
fn too_few_open_files_are_named_before_anybody_connects() {
    check_open_files(WorldSize::new(2).unwrap()).unwrap();
    let error = check_open_files(WorldSize::new(u32::MAX).unwrap()).unwrap_err();
    let text = error.to_string();
    for part in ["takes 12884901882 open files", "`ulimit -n`"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_deadline_without_end_is_no_panic() {
    let deadline = Deadline::after(Duration::MAX);
    assert!(deadline.left() > Duration::from_secs(1 << 30));
}
