//! Ranks on several hosts, which are network namespaces of this machine: the conformance suite over
//! a real network, and what the others hear when a host is lost. Without root or `ip`, the tests say
//! so and do nothing.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use std::time::Duration;

use bonfire_testkit::{Job, Network, Shape, Watchdog};

/// Far beyond what any of these takes, also where the loss of a host takes 15 s to be noticed.
const LIMIT: Duration = Duration::from_secs(240);

/// Small enough that the longest data takes many chunks and wraps around the slots.
const CHUNK_BYTES: &str = "320";

/// A network for the test called `name`, or a word about why there is none.
fn network(name: &str, hosts: usize, shape: Shape) -> Option<Network> {
    match Network::new(hosts, shape) {
        Ok(network) => Some(network),
        Err(reason) => {
            eprintln!("skipped: {name} needs network namespaces (root and iproute2): {reason}");
            None
        }
    }
}

/// Runs the suite with a rank on each of `hosts` and expects one digest.
fn check_conformance(name: &str, shape: Shape, hosts: &[usize], args: &[&str]) {
    let _watchdog = Watchdog::start(name, LIMIT);
    let count = hosts.iter().max().unwrap() + 1;
    let Some(network) = network(name, count, shape) else {
        return;
    };
    let program = Path::new(env!("CARGO_BIN_EXE_conformance-rank"));
    let ranks = network.start(program, args, hosts);
    let digests: Vec<Vec<String>> = ranks
        .into_iter()
        .map(|rank| {
            let end = rank.end();
            assert!(end.status.success(), "{}: {:?}", end.status, end.stderr);
            end.stdout
        })
        .collect();
    assert_eq!(digests[0].len(), 1, "one digest, got {digests:?}");
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

#[test]
fn ranks_on_three_hosts_conform() {
    let args = ["tcp", CHUNK_BYTES];
    check_conformance("three hosts", Shape::Plain, &[0, 1, 2], &args);
}

#[test]
fn ranks_share_memory_within_a_host_and_use_tcp_between_hosts() {
    let args = ["auto", CHUNK_BYTES];
    check_conformance("two by two", Shape::Plain, &[0, 0, 1, 1], &args);
}

#[test]
fn ranks_across_a_slow_network_conform() {
    let args = ["auto", "4096"];
    check_conformance("a slow network", Shape::Slow, &[0, 1], &args);
}

#[test]
fn ranks_conform_over_tls_between_hosts_and_memory_within() {
    let args = ["auto+hosts", CHUNK_BYTES];
    check_conformance("TLS between hosts", Shape::Plain, &[0, 0, 1], &args);
    let args = ["tcp:2+all", "262144", "large"];
    check_conformance("TLS everywhere", Shape::Plain, &[0, 0, 1], &args);
}

#[test]
fn two_level_plans_conform_across_hosts() {
    let args = ["auto", CHUNK_BYTES, "hierarchical"];
    check_conformance("two levels", Shape::Plain, &[0, 0, 1, 1], &args);
}

#[test]
fn the_chain_conforms_across_hosts() {
    let args = ["auto", CHUNK_BYTES, "chain"];
    check_conformance("the chain", Shape::Plain, &[0, 0, 1, 1], &args);
}

/// By default, whatever the number of ranks of a host: S up the chain and S down, and the headers.
#[test]
fn an_all_reduce_crosses_between_hosts_once_each_way() {
    let name = "bytes between hosts";
    let _watchdog = Watchdog::start(name, LIMIT);
    let Some(network) = network(name, 2, Shape::Plain) else {
        return;
    };
    // On a busy machine ranks may measure links so slow that the fewest bytes are not the fastest.
    for attempt in 1.. {
        let before = [0, 1].map(|host| network.bytes_sent(host));
        fastest_sum(&network, "auto", &[0, 0, 0, 0, 1, 1, 1, 1]);
        // Four sums of 16 MiB; what ranks say to each other while they meet is small beside it.
        let sent = [0, 1].map(|host| {
            let bytes = network.bytes_sent(host) - before[host];
            bytes as f64 / f64::from(4 << 24)
        });
        eprintln!("hosts send {sent:.3?} S per all-reduce");
        assert!(sent.iter().all(|sent| *sent >= 1.0), "{sent:?}");
        if sent.iter().all(|sent| *sent <= 1.05) {
            break;
        }
        assert!(attempt < 20, "the default sends more than S each way");
    }
}

/// The milliseconds of a large sum between two hosts, over so many streams.
fn sum_over(network: &Network, streams: u32) -> f64 {
    fastest_sum(network, &format!("tcp:{streams}"), &[0, 1])
}

/// The milliseconds of the fastest of four sums of 16 MiB.
fn fastest_sum(network: &Network, way: &str, hosts: &[usize]) -> f64 {
    let program = Path::new(env!("CARGO_BIN_EXE_rate-rank"));
    let ranks = network.start(program, &[way, "16", "3"], hosts);
    let fastest = ranks.into_iter().map(|rank| {
        let end = rank.end();
        assert!(end.status.success(), "{}: {:?}", end.status, end.stderr);
        end.stdout[0].parse::<f64>().unwrap()
    });
    fastest.fold(0.0, f64::max)
}

#[test]
fn several_streams_take_several_paths() {
    let name = "streams over paths";
    let _watchdog = Watchdog::start(name, LIMIT);
    let Some(network) = network(name, 2, Shape::Paths) else {
        return;
    };
    let one = sum_over(&network, 1);
    // 16 MiB go each way over the only path of 200 Mbit/s.
    let least = (16 << 20) as f64 * 8.0 / 200e6 * 1e3;
    assert!(one > least * 0.9, "{one} ms: the paths are wider than they should be");
    // What one path alone could not do needs more than one. Nothing is asked of a busy machine but
    // to be idle enough for that once.
    for attempt in 1.. {
        let four = sum_over(&network, 4);
        eprintln!(
            "all-reduce of 16 MiB between two hosts, 200 Mbit/s per connection: {one:.0} ms over \
             one stream, {four:.0} ms over four, {:.2} times as fast",
            one / four
        );
        if four < least * 0.9 {
            break;
        }
        assert!(attempt < 20, "four streams take no more than one path");
    }
}

/// Ranks 0 and 1 are on hosts of their own, 2 and 3 on the last, where rank 3 never answers. When
/// that host is lost, ranks 0 and 1 must name one of its ranks.
fn check_loss(name: &str, lose: impl Fn(&Network)) {
    let _watchdog = Watchdog::start(name, LIMIT);
    let Some(network) = network(name, 3, Shape::Plain) else {
        return;
    };
    let program = Path::new(env!("CARGO_BIN_EXE_fault-rank"));
    let ranks = network.start(program, &["auto", "hang"], &[0, 1, 2, 2]);
    assert_eq!(ranks[3].next_line(), "hanging");
    lose(&network);
    let survivors = ranks.into_iter().take(2);
    for (rank, end) in survivors.map(Job::end).enumerate() {
        assert_eq!(end.status.code(), Some(3), "rank {rank}: {:?}", end.stderr);
        let said = end.stdout.join("\n");
        assert!(
            said.contains("heard: rank 2 failed") || said.contains("heard: rank 3 failed"),
            "rank {rank}: {said}"
        );
    }
}

#[test]
fn a_host_whose_link_goes_down_is_named_by_all_others() {
    check_loss("a link goes down", |network| network.cut(2));
}

#[test]
fn a_host_whose_processes_are_killed_is_named_by_all_others() {
    check_loss("a host is killed", |network| network.kill(2));
}

#[test]
fn hosts_that_cannot_reach_each_other_are_named_in_a_matrix_on_every_rank() {
    let name = "hosts apart";
    let _watchdog = Watchdog::start(name, LIMIT);
    let Some(network) = network(name, 3, Shape::Plain) else {
        return;
    };
    network.part(1, 2);
    let program = Path::new(env!("CARGO_BIN_EXE_conformance-rank"));
    let ranks = network.start(program, &["auto", CHUNK_BYTES], &[0, 1, 1, 2]);
    for (rank, end) in ranks.into_iter().map(Job::end).enumerate() {
        let said = end.stderr.join("\n");
        assert!(!end.status.success(), "rank {rank} went on");
        assert!(
            said.contains("host 10.77.0.2 (rank 1) cannot reach host 10.77.0.3 (rank 3)"),
            "rank {rank}: {said}"
        );
        let rows: Vec<&String> =
            end.stderr.iter().filter(|line| line.starts_with("  10.")).collect();
        assert_eq!(rows.len(), 3, "rank {rank}: {said}");
        assert_eq!(rows[0].matches("  ok").count(), 2, "rank {rank}: {said}");
        assert_eq!(rows[1].matches("  ok").count(), 1, "rank {rank}: {said}");
    }
}

/// The namespaces of this process that are still there.
fn left_behind(network: &str) -> Vec<String> {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten();
    names
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(network))
        .collect()
}

#[test]
fn a_network_leaves_nothing_behind_even_after_a_panic() {
    let _watchdog = Watchdog::start("clean-up", LIMIT);
    let Some(network) = network("clean-up", 2, Shape::Plain) else {
        return;
    };
    let name = network.name().to_owned();
    assert_eq!(left_behind(&name).len(), 3, "two hosts and a switch");
    let sleepers = network.start(Path::new("/bin/sleep"), &["200"], &[0, 1]);
    let panicking = std::panic::AssertUnwindSafe(move || {
        let _owned = network;
        panic!("a test fails (wanted by this test)");
    });
    assert!(std::panic::catch_unwind(panicking).is_err());
    assert_eq!(left_behind(&name), Vec::<String>::new());
    for sleeper in sleepers {
        assert!(!sleeper.end().status.success(), "it was not killed");
    }
}
