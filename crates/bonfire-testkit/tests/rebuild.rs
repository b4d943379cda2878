//! Groups that go on after they have lost ranks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use bonfire_collective::{
    GroupOptions, JobToken, ProcessGroup, Rank, RebuildError, RebuildOptions, Rebuilt, ReduceOp,
    StoreHost, TcpStoreServer, TransportKind, WaitFor, WorldSize,
};
use bonfire_launch::rank_variables;
use bonfire_testkit::conformance::{Bits, check_all};
use bonfire_testkit::{Job, connected, env_of, local};

const GROUP: u32 = 4;

fn options() -> GroupOptions {
    GroupOptions {
        timeout: Duration::from_secs(60),
        ..GroupOptions::default()
    }
}

fn patient() -> RebuildOptions {
    RebuildOptions {
        // No wait of these tests lasts so long.
        join_timeout: Duration::from_secs(60),
        ..RebuildOptions::default()
    }
}

/// The same body on threads over local memory, and on threads that meet as processes do.
fn everywhere<R: Send>(
    world_size: u32,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<(String, Vec<R>)> {
    let mut results = vec![("local".to_owned(), local(world_size, options(), &body))];
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let options = GroupOptions {
            transport: Some(transport),
            ..options()
        };
        results.push((transport.to_string(), connected(world_size, options, &body)));
    }
    results
}

/// Returns when no rank is in an operation any more. A rank that is lost behind a barrier alone may be lost
/// before another has seen that barrier's end, and fails it there.
fn meet(group: &ProcessGroup, all: &Barrier) {
    group.barrier().unwrap();
    all.wait();
}

/// This rank is lost to the others.
fn panic_with(group: ProcessGroup) {
    let broken = std::panic::AssertUnwindSafe(move || {
        let _owned = group;
        panic!("an index is out of bounds (wanted by this test)");
    });
    std::panic::catch_unwind(broken).unwrap_err();
}

fn members(group: &ProcessGroup) -> Vec<u32> {
    group.members().iter().map(|rank| rank.get()).collect()
}

#[test]
fn three_of_four_go_on_and_are_a_group_like_any_other() {
    let expected = local(3, options(), |group| check_all(&group, Bits::Canonical))[0];
    let together = Barrier::new(GROUP as usize);
    for (transport, ranks) in everywhere(GROUP, |group| {
        meet(&group, &together);
        if group.rank().get() == 1 {
            panic_with(group);
            return None;
        }
        let error = group.barrier().unwrap_err();
        assert!(error.blames_another(group.rank()), "{error}");
        let Rebuilt {
            group: new,
            generation,
            newcomers,
        } = group.rebuild(&patient()).unwrap();
        assert_eq!((generation, newcomers), (1, vec![]));
        assert!(group.barrier().is_err(), "the old group stays failed");
        drop(group);
        let half = new.split(Some(new.rank().get() % 2), 0).unwrap().unwrap();
        let half = members(&half);
        Some((
            new.rank().get(),
            members(&new),
            half,
            check_all(&new, Bits::Canonical),
        ))
    }) {
        let all = vec![0, 2, 3];
        let expected = [
            Some((0, all.clone(), vec![0, 3], expected)),
            None,
            Some((1, all.clone(), vec![2], expected)),
            Some((2, all, vec![0, 3], expected)),
        ];
        assert_eq!(ranks, expected, "{transport}");
    }
}

#[test]
fn a_group_can_be_rebuilt_again_and_again() {
    for (transport, ranks) in everywhere(GROUP, |mut group| {
        let me = group.rank().get();
        for lost in [3, 0, 2] {
            if me == lost {
                panic_with(group);
                return None;
            }
            while group.barrier().is_ok() {}
            let rebuilt = group.rebuild(&patient()).unwrap();
            group = rebuilt.group;
            let mut sum = [group.world_rank(group.rank()).get()];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum[0], members(&group).iter().sum::<u32>());
        }
        Some(members(&group))
    }) {
        assert_eq!(ranks, [None, Some(vec![1]), None, None], "{transport}");
    }
}

#[test]
fn too_few_ranks_are_the_same_error_on_all() {
    let options = RebuildOptions {
        min_world: WorldSize::new(3).unwrap(),
        ..patient()
    };
    let together = Barrier::new(3);
    for (transport, ranks) in everywhere(3, |group| {
        meet(&group, &together);
        if group.rank().get() == 0 {
            panic_with(group);
            return None;
        }
        while group.barrier().is_ok() {}
        Some(group.rebuild(&options).unwrap_err())
    }) {
        for error in ranks.into_iter().flatten() {
            let RebuildError::TooFew { present, .. } = &error else {
                panic!("{transport}: {error}");
            };
            assert_eq!(*present, [1, 2].map(Rank::new), "{transport}");
            assert!(error.to_string().contains("last checkpoint"), "{error}");
        }
    }
}

#[test]
fn who_comes_too_late_is_told_so() {
    let short = RebuildOptions {
        join_timeout: Duration::from_millis(500),
        ..patient()
    };
    for (transport, ranks) in everywhere(3, |group| {
        let me = group.rank().get();
        if me == 1 {
            group.abort("the disk is full");
            let late = group.rebuild(&short);
            assert_eq!(late.unwrap().group.world_size().get(), 2);
            return true;
        }
        while group.barrier().is_ok() {}
        if me == 2 {
            thread::sleep(Duration::from_secs(3));
        }
        match group.rebuild(&short) {
            Ok(rebuilt) => members(&rebuilt.group) == [0, 1],
            Err(RebuildError::LeftBehind { rank, generation }) => {
                (rank.get(), generation) == (2, 1)
            }
            Err(error) => panic!("{error}"),
        }
    }) {
        assert_eq!(ranks, [true; 3], "{transport}");
    }
}

#[test]
fn a_rank_rebuilds_once_at_a_time_and_only_the_group_of_the_job() {
    for (transport, ranks) in everywhere(2, |group| {
        let part = group.split(Some(0), 0).unwrap().unwrap();
        let of_part = matches!(part.rebuild(&patient()), Err(RebuildError::Part { .. }));
        if group.rank().get() == 1 {
            // The other waits for this rank, and meanwhile cannot begin again.
            thread::sleep(Duration::from_millis(500));
            return of_part && group.rebuild(&patient()).is_ok();
        }
        let begun = Barrier::new(2);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                begun.wait();
                group.rebuild(&patient())
            });
            begun.wait();
            thread::sleep(Duration::from_millis(100));
            let second = group.rebuild(&patient());
            let results = [first.join().unwrap(), second];
            let busy = |result: &&Result<_, _>| matches!(result, Err(RebuildError::Busy));
            let well = results.iter().filter(|result| result.is_ok()).count();
            of_part && well == 1 && results.iter().filter(busy).count() == 1
        })
    }) {
        assert_eq!(ranks, [true; 2], "{transport}");
    }
}

#[test]
fn without_a_store_there_is_nowhere_to_meet() {
    let token = JobToken::random().unwrap();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let env = env_of(0, 1, &server, &token);
    let group = ProcessGroup::connect(&env, options()).unwrap();
    drop(server);
    let hurried = RebuildOptions {
        join_timeout: Duration::from_millis(300),
        ..RebuildOptions::default()
    };
    let error = group.rebuild(&hurried).unwrap_err();
    assert!(matches!(error, RebuildError::StoreGone(_)), "{error}");
    assert!(error.to_string().contains("last checkpoint"), "{error}");

    // Here rank 0 serves it, until all are connected.
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let mut env = env_of(0, 1, &server, &token);
    drop(server);
    env.agent_store = StoreHost::RankZero;
    let group = ProcessGroup::connect(&env, options()).unwrap();
    let error = group.rebuild(&hurried).unwrap_err();
    assert!(matches!(error, RebuildError::NoStore), "{error}");
    let error = ProcessGroup::rejoin(&env, options(), &hurried).unwrap_err();
    assert!(matches!(error, RebuildError::NoStore), "{error}");
}

#[test]
fn every_generation_has_a_number_of_its_own() {
    let token = JobToken::random().unwrap();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let env = env_of(0, 1, &server, &token);
    let group = ProcessGroup::connect(&env, options()).unwrap();
    let mut numbers = vec![group.number()];
    let mut group = group;
    for generation in 1..4 {
        let rebuilt = group.rebuild(&patient()).unwrap();
        assert_eq!(rebuilt.generation, generation);
        group = rebuilt.group;
        numbers.push(group.number());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}

/// A job of processes.
struct Processes {
    token: JobToken,
    server: TcpStoreServer,
    arguments: Vec<String>,
}

impl Processes {
    fn new(transport: &str, fewest: u32, wait_for: &str, deaths: &[String]) -> Self {
        let token = JobToken::random().unwrap();
        let words = [
            transport.to_owned(),
            fewest.to_string(),
            wait_for.to_owned(),
        ];
        Self {
            server: TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap(),
            token,
            arguments: words.into_iter().chain(deaths.iter().cloned()).collect(),
        }
    }

    fn start(&self, rank: u32, more: &[&str]) -> Child {
        let env = env_of(rank, GROUP, &self.server, &self.token);
        Command::new(Path::new(env!("CARGO_BIN_EXE_rebuild-rank")))
            .args(&self.arguments)
            .args(more)
            .envs(rank_variables(&env))
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn start_all(&self) -> Vec<Child> {
        (0..GROUP).map(|rank| self.start(rank, &[])).collect()
    }
}

/// What the process printed, or nothing if it died.
fn said(child: Child) -> Option<String> {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.code().map(|_| text.trim().to_owned())
}

/// All who are left say that they are the same group.
fn check_deaths(deaths: &[&str], left: &[u32]) {
    for transport in ["shm", "tcp"] {
        let deaths: Vec<String> = deaths.iter().map(|death| (*death).to_owned()).collect();
        let job = Processes::new(transport, 2, "survivors", &deaths);
        let said: Vec<Option<String>> = job.start_all().into_iter().map(said).collect();
        for (rank, said) in (0..GROUP).zip(&said) {
            let Some(place) = left.iter().position(|one| *one == rank) else {
                assert_eq!(*said, None, "{transport}, {deaths:?}");
                continue;
            };
            let expected = format!("rank {place} of {left:?} in generation ");
            let said = said.as_deref().unwrap();
            assert!(
                said.starts_with(&expected),
                "{transport}, {deaths:?}: {said}"
            );
        }
    }
}

#[test]
fn processes_go_on_without_one_of_them() {
    check_deaths(&["2@7+0"], &[0, 1, 3]);
    check_deaths(&["0@1+0"], &[1, 2, 3]);
}

#[test]
fn processes_go_on_without_two_that_die_at_once() {
    check_deaths(&["1@5+0", "2@5+0"], &[0, 3]);
    check_deaths(&["0@5+0", "3@5+0"], &[1, 2]);
}

#[test]
fn a_process_that_dies_while_the_others_rebuild_costs_another_round() {
    for delay in [1, 3, 6, 10, 20, 40] {
        check_deaths(&["2@5+0", &format!("1@5+{delay}")], &[0, 3]);
    }
}

#[test]
fn a_process_that_is_started_anew_takes_its_place_and_gets_the_state() {
    for transport in ["shm", "tcp"] {
        let job = Processes::new(transport, 4, "everybody", &["2@7+0".to_owned()]);
        let mut children = job.start_all();
        assert_eq!(said(children.remove(2)), None);
        children.insert(2, job.start(2, &["rejoin"]));
        for (rank, child) in children.into_iter().enumerate() {
            let expected = format!("rank {rank} of [0, 1, 2, 3] in generation 1");
            assert_eq!(said(child).unwrap(), expected, "{transport}");
        }
    }
}

#[test]
fn the_launcher_lets_the_others_go_on_while_they_are_enough() {
    let program = env!("CARGO_BIN_EXE_rebuild-rank");
    let run = |deaths: &[&str]| {
        let arguments = [&["shm", "2", "survivors"], deaths].concat();
        Job::start(Command::new(program).args(arguments)).end()
    };
    let mut end = run(&["2@7+0"]);
    assert!(end.status.success(), "{:?}", end.stderr);
    end.stdout.sort();
    let said =
        |rank: u32, place: u32| format!("[rank {rank}] rank {place} of [0, 1, 3] in generation 1");
    assert_eq!(end.stdout, [said(0, 0), said(1, 1), said(3, 2)]);

    // The last is alone, which is too few.
    let end = run(&["2@7+0", "0@9+0", "1@9+0"]);
    assert_eq!(end.status.code(), Some(1), "{:?}", end.stdout);
    let verdict = end.stdout.last().unwrap();
    assert!(verdict.starts_with("error: root cause: rank "), "{verdict}");
    assert!(verdict.contains("SIGABRT"), "{verdict}");
}

#[test]
fn nobody_rejoins_alone() {
    let token = JobToken::random().unwrap();
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), &token).unwrap();
    let hurried = RebuildOptions {
        wait_for: WaitFor::Everybody,
        timeout: Duration::from_millis(500),
        ..RebuildOptions::default()
    };
    let error = ProcessGroup::rejoin(&env_of(1, 2, &server, &token), options(), &hurried);
    let error = error.unwrap_err();
    assert!(
        matches!(error, RebuildError::GaveUp { rounds: 1, .. }),
        "{error}"
    );
}
