//! Times the ring all-reduce of burn-collective 0.21 between threads, on Burn's CPU backend.
//!
//! `peer-burn-collective RANKS BYTES ITERATIONS WARMUP`; one JSON object on standard output. Every operation gets a
//! fresh input tensor, because it consumes it; making it and verifying every element of the result are off the clock.

#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use burn_backend::ops::FloatTensorOps;
use burn_backend::{TensorData, read_sync};
use burn_collective::{AllReduceStrategy, CollectiveConfig, PeerId, ReduceOperation};
use burn_collective::{all_reduce, register};
use burn_flex::Flex;

struct Report {
    seconds: Vec<f64>,
    wrong: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let &[ranks, bytes, iterations, warmup] = numbers.as_slice() else {
        return Err("usage: peer-burn-collective RANKS BYTES ITERATIONS WARMUP".into());
    };
    let count = bytes / size_of::<f32>();
    let line_up = Barrier::new(ranks);
    let reports: Vec<Report> = thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let line_up = &line_up;
                scope.spawn(move || run(rank, ranks, count, iterations + warmup, line_up))
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no rank panics");
        threads.into_iter().map(join).collect()
    });
    // An operation takes as long as its slowest rank.
    let times: Vec<String> = (warmup..warmup + iterations)
        .map(|index| {
            let slowest = reports.iter().map(|report| report.seconds[index]);
            format!("{:.3}", slowest.fold(0.0, f64::max) * 1e6)
        })
        .collect();
    let wrong: usize = reports.iter().map(|report| report.wrong).sum();
    println!(
        r#"{{"bytes": {bytes}, "ranks": {ranks}, "times_us": [{}], "wrong": {wrong}}}"#,
        times.join(", ")
    );
    Ok(())
}

fn run(rank: usize, ranks: usize, count: usize, operations: usize, line_up: &Barrier) -> Report {
    let me = PeerId::from(rank);
    let device = Default::default();
    let config = CollectiveConfig::default()
        .with_num_devices(ranks)
        .with_local_all_reduce_strategy(AllReduceStrategy::Ring);
    register::<Flex>(me, device, config).expect("all ranks register alike");
    let mut report = Report {
        seconds: Vec::with_capacity(operations),
        wrong: 0,
    };
    for operation in 0..operations {
        let data: Vec<f32> = (0..count)
            .map(|index| number(rank, index, operation))
            .collect();
        let tensor = Flex::float_from_data(TensorData::new(data, [count]), &device);
        line_up.wait();
        let started = Instant::now();
        let sum =
            all_reduce::<Flex>(me, tensor, ReduceOperation::Sum).expect("all ranks take part");
        report.seconds.push(started.elapsed().as_secs_f64());
        let sum = read_sync(Flex::float_into_data(sum)).expect("the backend is this host's memory");
        let sum = sum
            .as_slice::<f32>()
            .expect("a float tensor of Flex is of f32");
        report.wrong += (0..count)
            .filter(|&index| {
                let expected: f32 = (0..ranks).map(|rank| number(rank, index, operation)).sum();
                sum[index] != expected
            })
            .count();
    }
    report
}

/// A small integer that looks random: every sum of them is exact.
fn number(rank: usize, index: usize, operation: usize) -> f32 {
    let mixed = (index as u64 ^ (rank as u64) << 40 ^ (operation as u64) << 48)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 58) as f32
}
