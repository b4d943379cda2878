//! One rank that measures how fast large sums are: `rate-rank WAY MIB ROUNDS`, where the way is as in
//! [`bonfire_testkit::over`]. Prints the milliseconds of the fastest round.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bonfire_collective::{ProcessGroup, ReduceOp};
use bonfire_launch::rank_from_env;
use bonfire_testkit::{Watchdog, over};

fn main() -> ExitCode {
    match run() {
        Ok(fastest) => {
            println!("{}", fastest.as_secs_f64() * 1e3);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Duration, Box<dyn std::error::Error>> {
    let _watchdog = Watchdog::start("rate-rank", Duration::from_secs(200));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [way, mib, rounds] = &args[..] else {
        return Err("usage: rate-rank WAY MIB ROUNDS".into());
    };
    let (count, rounds): (usize, u32) = (mib.parse::<usize>()? << 18, rounds.parse()?);
    let group = ProcessGroup::connect(&rank_from_env()?, over(way)?)?;
    let mut data = vec![1.0_f32; count];
    let mut fastest = Duration::MAX;
    for _ in 0..=rounds {
        data.fill(1.0);
        group.barrier()?;
        let began = Instant::now();
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        group.barrier()?;
        fastest = fastest.min(began.elapsed());
    }
    let expected = group.world_size().get() as f32;
    if data.iter().any(|value| *value != expected) {
        return Err("the sum is wrong".into());
    }
    Ok(fastest)
}
