//! What goes over the links is what the plan says, to the byte.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use bonfire_collective::{Algorithm, GroupOptions, ProcessGroup, ReduceOp, Traffic, TransportKind};
use bonfire_testkit::{connected, local};

/// Odd on purpose: the chunks of a shard are not equally long.
const CHUNK_BYTES: usize = 320;

/// The traffic of `operation` alone, on every rank and over every transport.
fn traffic_of(
    world_size: u32,
    algorithm: Algorithm,
    operation: impl Fn(&ProcessGroup) + Sync,
) -> Vec<(String, Vec<Traffic>)> {
    let body = |group: ProcessGroup| {
        // Before: not zero, and not counted below.
        group.barrier().unwrap();
        let before = group.traffic();
        operation(&group);
        let after = group.traffic();
        let mut alone = after;
        alone.frames_sent -= before.frames_sent;
        alone.frames_received -= before.frames_received;
        alone.payload_bytes_sent -= before.payload_bytes_sent;
        alone.payload_bytes_received -= before.payload_bytes_received;
        alone
    };
    let options = |transport| {
        GroupOptions::default()
            .with_algorithm(Some(algorithm))
            .with_chunk_bytes(CHUNK_BYTES)
            .with_transport(transport)
    };
    let mut all = vec![("local".to_owned(), local(world_size, options(None), body))];
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        let ranks = connected(world_size, options(Some(transport)), body);
        all.push((transport.to_string(), ranks));
    }
    all
}

#[test]
fn a_ring_sends_each_byte_the_least_number_of_times() {
    for world_size in [1, 2, 3, 4] {
        let ranks = u64::from(world_size);
        let count = 12 * 500;
        let bytes = count * size_of::<f32>() as u64;
        let all = traffic_of(world_size, Algorithm::Ring, |group| {
            let mut data = vec![1.0_f32; count as usize];
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        });
        for (transport, traffic) in all {
            for (rank, traffic) in traffic.iter().enumerate() {
                let expected = 2 * (ranks - 1) * bytes / ranks;
                let what = format!("rank {rank} of {ranks} over {transport}: {traffic:?}");
                assert_eq!(traffic.payload_bytes_sent, expected, "{what}");
                assert_eq!(traffic.payload_bytes_received, expected, "{what}");
                assert_eq!(traffic.frames_sent, traffic.frames_received, "{what}");
                let chunks = (bytes / ranks).div_ceil(CHUNK_BYTES as u64);
                assert_eq!(traffic.frames_sent, 2 * (ranks - 1) * chunks, "{what}");
            }
        }
    }
}

#[test]
fn one_shot_sends_everything_to_everybody() {
    for (transport, traffic) in traffic_of(3, Algorithm::OneShot, |group| {
        group.all_reduce(&mut [1_i64; 10], ReduceOp::Max).unwrap();
    }) {
        for traffic in traffic {
            assert_eq!(traffic.payload_bytes_sent, 2 * 80, "{transport}");
            assert_eq!(traffic.payload_bytes_received, 2 * 80, "{transport}");
            assert_eq!(traffic.frames_sent, 2, "{transport}");
        }
    }
}

#[test]
fn a_barrier_carries_no_payload() {
    for (transport, traffic) in traffic_of(4, Algorithm::Ring, |group| group.barrier().unwrap()) {
        for traffic in traffic {
            assert_eq!(traffic.payload_bytes_sent, 0, "{transport}");
            assert_eq!(traffic.payload_bytes_received, 0, "{transport}");
            assert_eq!((traffic.frames_sent, traffic.frames_received), (2, 2), "{transport}");
        }
    }
}
