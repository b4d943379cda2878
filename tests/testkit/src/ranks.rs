//! Ranks as threads and as processes.

use std::fmt::Display;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bonfire_collective::{
    CollectiveError, EnvSettings, GroupOptions, JobToken, ProcessGroup, Rank, RankEnv, StoreHost,
    TcpStoreServer, Tls, WorldSize,
};
use bonfire_launch::rank_variables;

use crate::Watchdog;

/// Far beyond what any test takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs `body` once per rank on threads that share a local group; the results in rank order.
///
/// # Panics
/// If a rank panics.
pub fn local<R: Send>(
    world_size: u32,
    options: GroupOptions,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let world_size = WorldSize::new(world_size).expect("tests use worlds of one rank and more");
    let groups = ProcessGroup::local(world_size, options).expect("a local group needs no set-up");
    on_threads(groups, body)
}

/// Runs `body` once per rank on threads, each of which joins the group as a process would: through a
/// store on TCP, with the transport that `options` name.
///
/// # Panics
/// If a rank cannot connect or panics.
pub fn connected<R: Send>(
    world_size: u32,
    options: GroupOptions,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let token = JobToken::random().expect("the operating system has random bytes");
    let server = store(&token, options.tls);
    let ranks: Vec<u32> = (0..world_size).collect();
    on_threads(ranks, |rank| {
        let env = env_of(rank, world_size, &server, &token);
        body(ProcessGroup::connect(&env, options.clone()).expect("the rank connects"))
    })
}

/// Ranks that meet, each with what its environment and its program say; what each of them comes to.
///
/// # Panics
/// If a rank panics.
pub fn try_connected(
    ranks: Vec<(RankEnv, GroupOptions)>,
) -> Vec<Result<ProcessGroup, CollectiveError>> {
    on_threads(ranks, |(env, options)| ProcessGroup::connect(&env, options))
}

/// Ranks that meet through a store of this test, each with options of its own; what each comes to.
///
/// # Panics
/// If a rank panics.
pub fn meeting(options: Vec<GroupOptions>) -> Vec<Result<ProcessGroup, CollectiveError>> {
    let token = JobToken::random().expect("the operating system has random bytes");
    let server = store(&token, Tls::Off);
    let world_size = u32::try_from(options.len()).expect("tests use few ranks");
    let env = |rank| env_of(rank, world_size, &server, &token);
    try_connected((0..world_size).map(env).zip(options).collect())
}

/// As [`connected`], with ranks that say which host they are on: one name per rank. Ranks on
/// different hosts use TCP, though all of them are here.
///
/// # Panics
/// If a rank cannot connect or panics.
pub fn on_hosts<R: Send>(
    hosts: &[&str],
    options: GroupOptions,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let token = JobToken::random().expect("the operating system has random bytes");
    let server = store(&token, options.tls);
    let world_size = u32::try_from(hosts.len()).expect("tests use few ranks");
    on_threads((0..world_size).zip(hosts).collect(), |(rank, host)| {
        let env = RankEnv {
            host_id: Some((*host).to_owned()),
            ..env_of(rank, world_size, &server, &token)
        };
        body(ProcessGroup::connect(&env, options.clone()).expect("the rank connects"))
    })
}

/// Asserts that the error of each rank has all of these parts.
///
/// # Panics
/// If one has not.
#[track_caller]
pub fn assert_each_says<E: Display>(errors: impl IntoIterator<Item = E>, parts: &[&str]) {
    for error in errors {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
    }
}

/// The environment of one rank on this host.
pub fn env_of(rank: u32, world_size: u32, server: &TcpStoreServer, token: &JobToken) -> RankEnv {
    RankEnv {
        rank: Rank::new(rank),
        world_size: WorldSize::new(world_size).expect("tests use worlds of one rank and more"),
        local_rank: rank,
        local_world_size: world_size,
        master_addr: server.local_addr().ip().to_string(),
        master_port: server.local_addr().port(),
        job_token: token.clone(),
        agent_store: StoreHost::Agent,
        job_id: String::new(),
        restart_count: 0,
        host_id: None,
        launcher_id: None,
        settings: EnvSettings::default(),
    }
}

/// Runs `program args` once per rank as real processes with the variables of a launcher set; the
/// outputs in rank order.
///
/// # Panics
/// If a process cannot be started.
pub fn processes(program: &Path, args: &[&str], world_size: u32) -> Vec<Output> {
    let _watchdog = Watchdog::start(&program.display().to_string(), LIMIT);
    let token = JobToken::random().expect("the operating system has random bytes");
    let server = store(&token, Tls::Off);
    let start = |rank: u32| -> Child {
        let env = env_of(rank, world_size, &server, &token);
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(rank_variables(&env));
        command.spawn().expect("the program of the test exists")
    };
    let children: Vec<Child> = (0..world_size).map(start).collect();
    let wait = |child: Child| child.wait_with_output().expect("an own child can be waited for");
    children.into_iter().map(wait).collect()
}

fn store(token: &JobToken, tls: Tls) -> TcpStoreServer {
    let any_port = "127.0.0.1:0".parse().expect("an address");
    TcpStoreServer::bind_with(any_port, token, tls).expect("a free port on loopback")
}

fn on_threads<I: Send, R: Send>(items: Vec<I>, body: impl Fn(I) -> R + Sync) -> Vec<R> {
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let _watchdog = Watchdog::start(&name, LIMIT);
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || body(item))).collect();
        // Join all before any panic continues, so that the first one does not hide the others.
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        results.into_iter().map(|result| result.expect("a rank panicked; see above")).collect()
    })
}
