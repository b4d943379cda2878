//! Measures an all-reduce of two ranks beside the limit of memory, in one run.
//!
//! `memory --rounds 5`: in place beside two threads that add two buffers in place, and from one buffer to another
//! beside two threads that write the sums by streaming stores; ranks as threads and as processes, with their buffers
//! in the memory of the group. A round measures everything once; it prints the median over the rounds, of times and of
//! the ratio within a round.

#![forbid(unsafe_code)]

use std::fs;
use std::time::Instant;

use anyhow::{Context, ensure};
use bonfire_collective::{GroupOptions, ProcessGroup, ReduceOp};
use bonfire_launch::rank_from_env;
use bonfire_testkit::limits::{Rotation, in_place_sum, streamed_sum};
use bonfire_testkit::{Estimate, local, processes};
use clap::Parser;

const SIZES: [usize; 3] = [4 << 20, 16 << 20, 64 << 20];

/// The value of every element, on all ranks.
const VALUE: f32 = 1.5;

#[derive(Debug, Parser)]
struct Args {
    /// Measurements of each kind
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// What a process that is a rank measures
    #[arg(long, hide = true, num_args = 2)]
    rank: Option<Vec<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    InPlace,
    Apart,
}

/// A median time, and how much of the memory was in huge pages.
#[derive(Clone, Copy, Debug)]
struct Measured {
    seconds: f64,
    huge_mib: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some([bytes, apart]) = args.rank.as_deref() {
        let form = if *apart == 1 { Form::Apart } else { Form::InPlace };
        let group = ProcessGroup::connect(&rank_from_env()?, GroupOptions::default())?;
        let measured = measure(&group, *bytes, form)?;
        println!("{} {}", measured.seconds, measured.huge_mib);
        return Ok(());
    }
    println!("form         MiB  ranks      loop GB/s  all-reduce GB/s  ratio  huge pages MiB");
    for form in [Form::InPlace, Form::Apart] {
        for bytes in SIZES {
            for ranks in ["threads", "processes"] {
                row(form, bytes, ranks, args.rounds)?;
            }
        }
    }
    Ok(())
}

fn row(form: Form, bytes: usize, ranks: &str, rounds: usize) -> anyhow::Result<()> {
    let (mut limits, mut reached, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut huge_mib = 0;
    for _ in 0..rounds {
        let limit = match form {
            Form::InPlace => in_place_sum(bytes, Rotation::default()),
            Form::Apart => streamed_sum(bytes, Rotation::default()),
        };
        let measured = match ranks {
            "threads" => of_threads(bytes, form)?,
            _ => of_processes(bytes, form)?,
        };
        let gb_per_s = bytes as f64 / measured.seconds / 1e9;
        huge_mib = measured.huge_mib;
        limits.push(limit.median);
        reached.push(gb_per_s);
        ratios.push(gb_per_s / limit.median);
    }
    let [limit, reached, ratio] = [limits, reached, ratios].map(|it| Estimate::of(it).median);
    let form = if form == Form::InPlace { "in place" } else { "apart" };
    println!(
        "{form:<9} {:>6}  {ranks:<9} {limit:>10.1} {reached:>16.1}  {ratio:>5.2}  {huge_mib:>14}",
        bytes >> 20
    );
    Ok(())
}

fn of_threads(bytes: usize, form: Form) -> anyhow::Result<Measured> {
    let body = |group: ProcessGroup| measure(&group, bytes, form);
    let mut measured = local(2, GroupOptions::default(), body);
    measured.swap_remove(0)
}

fn of_processes(bytes: usize, form: Form) -> anyhow::Result<Measured> {
    let apart = usize::from(form == Form::Apart).to_string();
    let program = std::env::current_exe()?;
    let outputs = processes(&program, &["--rank", &bytes.to_string(), &apart], 2);
    let said = String::from_utf8_lossy(&outputs[0].stdout);
    let failed = || String::from_utf8_lossy(&outputs[0].stderr).into_owned();
    let (seconds, huge) = said.trim().split_once(' ').with_context(failed)?;
    Ok(Measured { seconds: seconds.parse()?, huge_mib: huge.parse()? })
}

fn measure(group: &ProcessGroup, bytes: usize, form: Form) -> anyhow::Result<Measured> {
    let count = bytes / size_of::<f32>();
    let buffers = (Rotation::default().bytes / bytes).max(2);
    let mut input = group.buffer::<f32>(buffers * count)?;
    let apart = if form == Form::Apart { buffers * count } else { 0 };
    let mut output = group.buffer::<f32>(apart)?;
    input.fill(VALUE);
    let operations = ((2 << 30) / bytes).max(10);
    let mut times = Vec::with_capacity(operations);
    for operation in 0..operations + 1 {
        let start = operation % buffers * count;
        let input = &mut input[start..start + count];
        group.barrier()?;
        let started = Instant::now();
        match form {
            Form::InPlace => group.all_reduce(input, ReduceOp::Mean)?,
            Form::Apart => {
                group.all_reduce_into(input, &mut output[start..start + count], ReduceOp::Mean)?;
            }
        }
        times.push(started.elapsed().as_secs_f64());
    }
    let wrong = |data: &[f32]| data.iter().filter(|element| **element != VALUE).count();
    ensure!(wrong(&input) == 0 && wrong(&output) == 0, "a wrong result");
    Ok(Measured {
        // The first plans.
        seconds: Estimate::of(times.split_off(1)).median,
        huge_mib: huge_mib()?,
    })
}

fn huge_mib() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let of = |line: &str| -> Option<u64> {
        let (name, kib) = line.split_once(':')?;
        let counted = matches!(name, "AnonHugePages" | "ShmemPmdMapped");
        kib.trim().strip_suffix(" kB").filter(|_| counted)?.parse().ok()
    };
    Ok(text.lines().filter_map(of).sum::<u64>() >> 10)
}
