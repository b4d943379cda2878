//! Every operation of a group: operation x world x transport x size, with ranks as threads.
//!
//! `cargo bench -p bonfire-testkit --bench collectives`, and with a filter for a part of it, such as
//! `-- all_reduce/shm/2`. For ranks as processes, verified random data and the columns of nccl-tests,
//! use `bonfire bench`.

#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::time::{Duration, Instant};

use bonfire_collective::{CollectiveError, GroupOptions, ProcessGroup, Rank};
use bonfire_collective::{ReduceOp, TransportKind};
use bonfire_testkit::{connected, local};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Sizes of a message in bytes: whole blocks of whole elements for every world.
const SIZES: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 16 << 20];
const WORLDS: [u32; 2] = [2, 4];
const TRANSPORTS: [TransportKind; 4] = [
    TransportKind::Local,
    TransportKind::Shm,
    TransportKind::Unix,
    TransportKind::Tcp,
];

/// Buffers rotate through this much memory, so that large messages do not live in the caches.
const ROTATE_BYTES: usize = 64 << 20;

/// But through no more of them than this.
const BUFFERS_MAX: usize = 32;

/// The value of each element, of every input and of every result: the mean of equal values is that value, so the data
/// never grows.
const VALUE: f32 = 1.0;

type Run = fn(&ProcessGroup, &mut [f32], &mut [f32]) -> Result<(), CollectiveError>;

#[derive(Clone, Copy)]
struct Operation {
    name: &'static str,
    run: Run,
}

const OPERATIONS: [Operation; 9] = [
    Operation {
        name: "all_reduce",
        run: |group, message, _| group.all_reduce(message, ReduceOp::Mean),
    },
    Operation {
        name: "reduce_scatter",
        run: |group, message, result| {
            let own = block(group, message.len());
            group.reduce_scatter_into(message, &mut result[..own], ReduceOp::Mean)
        },
    },
    Operation {
        name: "all_gather",
        run: |group, message, result| {
            let own = block(group, message.len());
            group.all_gather_into(&message[..own], result)
        },
    },
    Operation {
        name: "broadcast",
        run: |group, message, _| group.broadcast(message, ROOT),
    },
    Operation {
        // The others are left with a part of the fold: of a mean, that would be a sum.
        name: "reduce",
        run: |group, message, _| group.reduce(message, ROOT, ReduceOp::Max),
    },
    Operation {
        name: "gather",
        run: |group, message, result| {
            let (own, all) = (block(group, message.len()), of_root(group, result.len()));
            group.gather_into(&message[..own], &mut result[..all], ROOT)
        },
    },
    Operation {
        name: "scatter",
        run: |group, message, result| {
            let (own, all) = (block(group, message.len()), of_root(group, message.len()));
            group.scatter_into(&message[..all], &mut result[..own], ROOT)
        },
    },
    Operation {
        name: "all_to_all",
        run: |group, message, result| group.all_to_all_into(message, result),
    },
    Operation {
        name: "exchange",
        run: |group, message, result| {
            let peer = Rank::new(group.rank().get() ^ 1);
            group.exchange(peer, message, result)
        },
    },
];

/// The rank that has the data, or gets it.
const ROOT: Rank = Rank::new(0);

fn of_root(group: &ProcessGroup, count: usize) -> usize {
    if group.rank() == ROOT { count } else { 0 }
}

fn block(group: &ProcessGroup, count: usize) -> usize {
    count / group.world_size().len()
}

type Buffers = (Vec<f32>, Vec<f32>);

fn buffers(bytes: usize) -> Vec<Buffers> {
    let count = bytes / size_of::<f32>();
    let wanted = ROTATE_BYTES.div_ceil(bytes.max(1)).clamp(2, BUFFERS_MAX);
    (0..wanted)
        .map(|_| (vec![VALUE; count], vec![VALUE; count]))
        .collect()
}

/// The time of `iters` operations on rank 0, after one off the clock, without set-up.
fn timed(
    operation: Operation,
    transport: TransportKind,
    world: (u32, usize),
    iters: u64,
) -> Duration {
    let (world_size, bytes) = world;
    let body = |group: ProcessGroup| {
        let mut buffers = buffers(bytes);
        let rotation = buffers.len();
        let mut once = |index: usize| {
            let (message, result) = &mut buffers[index % rotation];
            (operation.run)(&group, message, result).expect("no rank fails");
        };
        once(0);
        let started = Instant::now();
        (0..iters as usize).for_each(&mut once);
        let elapsed = started.elapsed();
        let right = |element: &f32| *element == VALUE;
        let all_right = |(message, result): &Buffers| message.iter().chain(result).all(right);
        assert!(
            buffers.iter().all(all_right),
            "a wrong result of {}",
            operation.name
        );
        elapsed
    };
    let options = GroupOptions::default();
    let times = match transport {
        TransportKind::Local => local(world_size, options, body),
        other => {
            let transport = Some(other);
            connected(world_size, options.with_transport(transport), body)
        }
    };
    times[0]
}

fn messages(criterion: &mut Criterion) {
    for operation in OPERATIONS {
        for world_size in WORLDS {
            for transport in TRANSPORTS {
                let name = format!("{}/{transport}/{world_size}", operation.name);
                let mut group = criterion.benchmark_group(name);
                for bytes in SIZES {
                    group.throughput(Throughput::Bytes(bytes as u64));
                    group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                        let world = (world_size, bytes);
                        bencher.iter_custom(|iters| timed(operation, transport, world, iters));
                    });
                }
                group.finish();
            }
        }
    }
}

fn barriers(criterion: &mut Criterion) {
    let barrier = Operation {
        name: "barrier",
        run: |group, _, _| group.barrier(),
    };
    let mut group = criterion.benchmark_group(barrier.name);
    for world_size in WORLDS {
        for transport in TRANSPORTS {
            group.bench_function(BenchmarkId::new(transport.name(), world_size), |bencher| {
                bencher.iter_custom(|iters| timed(barrier, transport, (world_size, 0), iters));
            });
        }
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
}

criterion_group!(name = benches; config = short(); targets = messages, barriers);
criterion_main!(benches);
