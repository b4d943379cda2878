//! Every transport against the conformance suite, with ranks as threads and as processes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;

use bonfire_collective::{Algorithm, Checksums, GroupOptions, TransportKind};
use bonfire_plan::{Collective, Order};
use bonfire_testkit::conformance::{Bits, check_all};
use bonfire_testkit::{connected, local, processes, some};

/// Small enough that the longest data takes many chunks and wraps around the slots.
const CHUNK_BYTES: usize = 320;

fn options() -> GroupOptions {
    GroupOptions::default().with_chunk_bytes(CHUNK_BYTES)
}

fn one_digest(digests: Vec<u64>) -> u64 {
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:x?}");
    digests[0]
}

fn threads(transport: TransportKind, world_size: u32) -> u64 {
    let body = |group| check_all(&group, Bits::Canonical);
    let options = options();
    one_digest(match transport {
        TransportKind::Local => local(world_size, options, body),
        other => connected(world_size, options.with_transport(Some(other)), body),
    })
}

fn in_processes(transport: TransportKind, world_size: u32) -> u64 {
    in_limited_processes("true", transport, world_size)
}

/// As [`in_processes`], with words of the shell before the program.
fn in_limited_processes(limits: &str, transport: TransportKind, world_size: u32) -> u64 {
    let program = env!("CARGO_BIN_EXE_conformance-rank");
    let script = format!("{limits}; exec {program} {} {CHUNK_BYTES}", transport.name());
    let digests =
        processes(Path::new("/bin/sh"), &["-c", &script], world_size).into_iter().map(|output| {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {errors}", output.status);
            let text = String::from_utf8(output.stdout).unwrap();
            u64::from_str_radix(text.trim(), 16).unwrap()
        });
    one_digest(digests.collect())
}

/// The digests of all transports for one world, which must be one.
fn all_transports_agree(world_size: u32) {
    let expected = threads(TransportKind::Local, world_size);
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        assert_eq!(threads(transport, world_size), expected, "threads over {transport}");
        assert_eq!(in_processes(transport, world_size), expected, "processes over {transport}");
    }
}

#[test]
fn one_rank_conforms_on_every_transport() {
    all_transports_agree(1);
}

#[test]
fn two_ranks_conform_and_agree_bit_for_bit_on_every_transport() {
    all_transports_agree(2);
}

#[test]
fn three_ranks_conform_and_agree_bit_for_bit_on_every_transport() {
    all_transports_agree(3);
}

#[test]
fn four_ranks_conform_and_agree_bit_for_bit_on_every_transport() {
    all_transports_agree(4);
}

/// Each rank maps the memory of all. One that has no addresses for that copies, and so do the others.
#[test]
fn ranks_whose_addresses_or_files_are_limited_copy_instead_of_sharing() {
    let expected = threads(TransportKind::Local, 4);
    let addresses_kib = bonfire_sys::memory_bytes() / 1024 * 5 / 2;
    for limits in [
        &format!("if [ $RANK = 2 ]; then ulimit -v {addresses_kib}; fi"),
        // Going beyond it is a signal.
        "ulimit -f 65536",
    ] {
        let found = in_limited_processes(limits, TransportKind::Shm, 4);
        assert_eq!(found, expected, "{limits}");
    }
}

#[test]
fn seven_local_ranks_conform() {
    threads(TransportKind::Local, 7);
}

#[test]
fn the_best_transport_is_found_without_being_named() {
    let digests = connected(2, options(), |group| check_all(&group, Bits::Canonical));
    assert_eq!(one_digest(digests), threads(TransportKind::Local, 2));
}

/// Chunks that a link of two streams divides, and others that it does not.
#[test]
fn frames_with_checksums_carry_the_same_bits() {
    for transport in [TransportKind::Unix, TransportKind::Tcp] {
        for (chunk_bytes, streams_per_link) in [(CHUNK_BYTES, 1), (64 << 10, 2)] {
            let options = |checksums| {
                GroupOptions::default()
                    .with_checksums(checksums)
                    .with_transport(Some(transport))
                    .with_chunk_bytes(chunk_bytes)
                    .with_streams_per_link(streams_per_link)
            };
            let digest = |checksums| {
                one_digest(connected(3, options(checksums), |group| {
                    check_all(&group, Bits::Canonical)
                }))
            };
            assert_eq!(digest(Checksums::All), digest(Checksums::Off), "{transport}");
        }
    }
}

#[test]
fn every_algorithm_conforms_when_forced() {
    for &algorithm in Algorithm::ALL {
        let bits = match algorithm.order(Collective::AllReduce) {
            Order::Canonical => Bits::Canonical,
            Order::Rounded | Order::Fixed => Bits::AnyOrder,
        };
        for &world_size in some(&[3, 2, 5], 1) {
            let forced = options().with_algorithm(Some(algorithm));
            one_digest(local(world_size, forced, |group| check_all(&group, bits)));
        }
    }
}

#[test]
fn chunks_do_not_change_the_bits() {
    let digests: Vec<u64> = [64, 320, 4096, 1 << 20]
        .into_iter()
        .map(|chunk_bytes| {
            let options = GroupOptions::default().with_chunk_bytes(chunk_bytes);
            one_digest(local(3, options, |group| check_all(&group, Bits::Canonical)))
        })
        .collect();
    one_digest(digests);
}
