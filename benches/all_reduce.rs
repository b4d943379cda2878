//! All-reduce in place: size x world x transport, with ranks as threads.
//!
//! `cargo bench -p bonfire-benches --bench all_reduce`. For ranks as processes, and for the columns
//! of nccl-tests, use `bonfire bench all-reduce`.

#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::time::{Duration, Instant};

use bonfire_collective::{GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use bonfire_testkit::{connected, local};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SIZES_BYTES: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 16 << 20];
const TRANSPORTS: [TransportKind; 4] = [
    TransportKind::Local,
    TransportKind::Shm,
    TransportKind::Unix,
    TransportKind::Tcp,
];

/// Buffers rotate through this much memory, so that no size lives in the caches.
const ROTATE_BYTES: usize = 64 << 20;

/// The time of `iters` operations on rank 0, after a barrier, without set-up.
fn timed(transport: TransportKind, world_size: u32, bytes: usize, iters: u64) -> Duration {
    let body = |group: ProcessGroup| {
        let buffers = ROTATE_BYTES.div_ceil(bytes).clamp(2, 32);
        let mut buffers = vec![vec![1.0_f32; bytes / size_of::<f32>()]; buffers];
        let rotation = buffers.len();
        let mut reduce = |index: usize| {
            // The mean of equal values is that value, so the data never grows.
            let done = group.all_reduce(&mut buffers[index % rotation], ReduceOp::Mean);
            done.expect("no rank fails");
        };
        reduce(0);
        let started = Instant::now();
        (0..iters as usize).for_each(&mut reduce);
        let elapsed = started.elapsed();
        assert!(
            buffers.iter().flatten().all(|element| *element == 1.0),
            "a wrong result"
        );
        elapsed
    };
    let options = GroupOptions::default();
    let times = match transport {
        TransportKind::Local => local(world_size, options, body),
        other => connected(
            world_size,
            GroupOptions {
                transport: Some(other),
                ..options
            },
            body,
        ),
    };
    times[0]
}

fn all_reduce(criterion: &mut Criterion) {
    for world_size in [2, 4] {
        for transport in TRANSPORTS {
            let mut group =
                criterion.benchmark_group(format!("all_reduce/{transport}/{world_size}"));
            group
                .sample_size(10)
                .measurement_time(Duration::from_secs(2));
            for bytes in SIZES_BYTES {
                group.throughput(Throughput::Bytes(bytes as u64));
                group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                    bencher.iter_custom(|iters| timed(transport, world_size, bytes, iters));
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
