//! Measures the cost of heartbeats, as a share of a step.
//!
//! `watching --blocks 10`: two ranks, which are threads that meet as processes do, run blocks of steps, one block with
//! heartbeats and the next without. A step has a fixed amount of work, so the time of the watching threads shows in
//! it. Prints every block's median step time, and the processor time of the watching threads.

#![forbid(unsafe_code)]

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bonfire_collective::{GroupOptions, ReduceOp};
use bonfire_testkit::{Estimate, connected};
use clap::Parser;

#[derive(Debug, Parser)]
struct Args {
    /// Blocks of each kind
    #[arg(long, default_value_t = 10)]
    blocks: usize,

    /// Length of a block
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,

    /// What a step computes, in microseconds of an undisturbed core
    #[arg(long, default_value_t = 2000)]
    compute_us: u64,

    /// What a step reduces
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    step: Duration,
    /// Processor time of one rank's watching thread, as a share of the time.
    watching: f64,
}

fn main() {
    let args = Args::parse();
    let with = GroupOptions::default();
    let without = GroupOptions::default().with_heartbeat_timeout(None);
    let rounds = rounds_in(Duration::from_micros(args.compute_us));
    let mut blocks = (Vec::new(), Vec::new());
    for _ in 0..args.blocks {
        blocks.0.push(run(&args, rounds, with.clone()));
        blocks.1.push(run(&args, rounds, without.clone()));
    }
    let steps = |blocks: &[Block]| -> Vec<f64> {
        blocks.iter().map(|block| block.step.as_secs_f64() * 1e6).collect()
    };
    let (on, off) = (steps(&blocks.0), steps(&blocks.1));
    let ratios: Vec<f64> = on.iter().zip(&off).map(|(on, off)| on / off).collect();
    println!("step with heartbeats, us:    {}", Estimate::of(on.clone()));
    println!("step without heartbeats, us: {}", Estimate::of(off.clone()));
    println!("ratio, pair by pair:         {}", Estimate::of(ratios));
    for (name, blocks) in [("with", &blocks.0), ("without", &blocks.1)] {
        let shares = blocks.iter().map(|block| block.watching * 100.0).collect();
        println!("control thread, {name} heartbeats, % of a core: {}", Estimate::of(shares));
    }
}

fn run(args: &Args, rounds: u64, options: GroupOptions) -> Block {
    let length = Duration::from_secs_f64(args.seconds);
    let blocks = connected(2, options, |group| {
        let mut data =
            group.buffer::<f32>(args.bytes / size_of::<f32>()).expect("memory for a buffer");
        let mut steps = Vec::new();
        let (began, watched) = (Instant::now(), watching_time());
        loop {
            let started = Instant::now();
            group.progress(steps.len() as u64);
            compute(rounds);
            group.all_reduce(&mut data[..], ReduceOp::Mean).expect("nothing fails");
            let mut end = [u8::from(began.elapsed() >= length)];
            group.all_reduce(&mut end, ReduceOp::Max).expect("nothing fails");
            steps.push(started.elapsed());
            if end == [1] {
                break;
            }
        }
        let watching = watching_time().saturating_sub(watched).as_secs_f64();
        steps.sort();
        Block {
            step: steps[steps.len() / 2],
            // Of both ranks, which are threads of this process.
            watching: watching / 2.0 / began.elapsed().as_secs_f64(),
        }
    });
    blocks[0]
}

fn compute(rounds: u64) {
    let mut sum = 0_u64;
    for number in 0..1000 * rounds {
        sum = black_box(sum.wrapping_mul(31).wrapping_add(number));
    }
    black_box(sum);
}

/// Number of rounds that run in `time`: the most of several tries, because others compute, too.
fn rounds_in(time: Duration) -> u64 {
    const TRIES: usize = 20;
    const ROUNDS: u64 = 1000;
    let tries = (0..TRIES).map(|_| {
        let started = Instant::now();
        compute(ROUNDS);
        started.elapsed()
    });
    let shortest = tries.min().expect("there are tries");
    (ROUNDS as f64 * time.div_duration_f64(shortest)).ceil() as u64
}

/// Processor time of all control threads of this process, from what the scheduler counts.
fn watching_time() -> Duration {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Duration::ZERO;
    };
    let time = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let counted = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanos = counted.split(' ').next()?.parse().ok()?;
        name.starts_with("bonfire-ctl").then(|| Duration::from_nanos(nanos))
    };
    tasks.flatten().filter_map(time).sum()
}
