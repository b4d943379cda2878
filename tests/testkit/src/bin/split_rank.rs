//! One rank of a job of four that splits its group: `split-rank TRANSPORT SCENARIO`.
//!
//! - `conform`: halves by even and odd rank, in reverse order; prints the digest of the conformance
//!   suite in the half.
//! - `death`: rank 3 dies; prints, for the world and two smaller groups, `ok` or the error.
//! - `many`: splits again and again; prints how many descriptors that left open.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bonfire_collective::{CollectiveError, GroupOptions, ProcessGroup, Rank, ReduceOp};
use bonfire_launch::rank_from_env;
use bonfire_testkit::{Watchdog, conformance};

/// Longer than any test waits: an error from this timeout would be the wrong one.
const TIMEOUT: Duration = Duration::from_secs(150);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let _watchdog = Watchdog::start("split-rank", Duration::from_secs(200));
    let mut args = std::env::args().skip(1);
    let (Some(transport), Some(scenario)) = (args.next(), args.next()) else {
        return Err("usage: split-rank TRANSPORT SCENARIO".into());
    };
    let options = GroupOptions::default()
        .with_transport(Some(transport.parse()?))
        .with_timeout(TIMEOUT)
        .with_chunk_bytes(320);
    let world = ProcessGroup::connect(&rank_from_env()?, options)?;
    match scenario.as_str() {
        "conform" => conform(&world),
        "death" => death(&world),
        "many" => many(&world),
        other => Err(format!("unknown scenario {other:?}").into()),
    }
}

fn conform(world: &ProcessGroup) -> Outcome {
    let me = world.rank().get();
    let half = world.split(Some(me % 2), -i64::from(me))?;
    let half = half.ok_or("every rank has a color")?;
    let digest = conformance::check_all(&half, conformance::Bits::Canonical);
    println!("{digest:016x}");
    Ok(())
}

fn death(world: &ProcessGroup) -> Outcome {
    let me = world.rank().get();
    // Ranks 0 and 1, and ranks 2 and 3 in reverse, so that the dead one is rank 0 there.
    let pair = world.split(Some(me / 2), -i64::from(me))?;
    let pair = pair.ok_or("every rank has a color")?;
    let first_three = [0, 1, 2].map(Rank::new);
    let others = world.subgroup(&first_three)?;
    let detached = world.detached().subgroup(&first_three)?;
    sum(&pair)?;
    // The others may still be in it when rank 3, which is through, dies.
    let met = world.barrier();
    if me == 3 {
        met?;
        // As by SIGKILL: no destructor runs.
        std::process::abort();
    }
    println!("world: {}", ending(world));
    println!("pair: {}", if me == 2 { ending(&pair) } else { text(sum(&pair)) });
    let others = others.ok_or("this rank is in the list")?;
    println!("others: {}", text(sum(&others)));
    let detached = detached.ok_or("this rank is in the list")?;
    let twice = sum(&detached).and_then(|()| sum(&detached));
    println!("detached: {}", text(twice));
    Ok(())
}

/// The error of a group that is about to fail.
fn ending(group: &ProcessGroup) -> String {
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Err(error) = sum(group) {
            return error.to_string();
        }
    }
    "goes on".to_owned()
}

fn text(result: Result<(), CollectiveError>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "ok".to_owned())
}

fn sum(group: &ProcessGroup) -> Result<(), CollectiveError> {
    let mut data = vec![1_u32; 10_000];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    assert!(data.iter().all(|element| *element == group.world_size().get()));
    Ok(())
}

fn many(world: &ProcessGroup) -> Outcome {
    let me = world.rank().get();
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    world.barrier()?;
    let before = descriptors()?;
    for round in 0..40_u32 {
        let part = world.split(Some((me ^ round) & 1), i64::from(round))?;
        sum(&part.ok_or("every rank has a color")?)?;
    }
    println!("{}", descriptors()? as i64 - before as i64);
    Ok(())
}
