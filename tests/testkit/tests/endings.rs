//! Jobs into which something goes wrong: all ranks come to an agreed end, the culprit is named last,
//! and nothing is left.
//!
//! A few seeds of each kind; `BONFIRE_SEEDS=N` runs N of them, `BONFIRE_SEED=n` only one.

use std::path::Path;
use std::time::Duration;

use bonfire_testkit::endings::{Ending, Misfortune, Scenario, run};

/// Seeds that run without `BONFIRE_SEEDS`.
const SEEDS: u64 = 2;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is no number")))
}

/// Runs the seeds of one misfortune over shared memory and over TCP, and says how long the ends took.
fn check(misfortune: Misfortune) {
    let program = Path::new(env!("CARGO_BIN_EXE_training-rank"));
    let seeds = match number("BONFIRE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BONFIRE_SEEDS").unwrap_or(SEEDS),
    };
    for transport in ["shm", "tcp"] {
        let mut endings = Vec::new();
        for seed in seeds.clone() {
            let scenario = Scenario::of_seed(misfortune, seed);
            match run(program, transport, &scenario) {
                Ok(ending) => endings.push(ending),
                Err(wrong) => panic!(
                    "{misfortune} over {transport}, {scenario:?}: {wrong}\nto see it again: \
                     BONFIRE_SEED={seed} cargo test -p bonfire-testkit --test endings"
                ),
            }
        }
        report(misfortune, transport, &endings);
    }
}

fn report(misfortune: Misfortune, transport: &str, endings: &[Ending]) {
    let times = || endings.iter().filter_map(|ending| ending.times);
    let [detection, end] = [
        times().map(|times| times.to_detection).collect(),
        times().map(|times| times.to_the_end).collect(),
    ]
    .map(spread);
    let runs = endings.len();
    println!(
        "{misfortune} over {transport}: {runs} runs; heard after {detection}; gone {end} later"
    );
}

/// The median and the largest, in milliseconds.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let ms = |time: &Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    match times.last() {
        Some(last) => format!("{} (at most {})", ms(&times[times.len() / 2]), ms(last)),
        None => "-".to_owned(),
    }
}

#[test]
fn an_unreadable_sample_ends_the_job() {
    check(Misfortune::DatasetError);
}

#[test]
fn a_panic_in_the_model_ends_the_job() {
    check(Misfortune::Panic);
}

#[test]
fn an_early_stop_is_an_end_after_the_same_step_for_all() {
    check(Misfortune::EarlyStop);
}

#[test]
fn the_shortest_share_of_the_data_ends_the_job() {
    check(Misfortune::OneBatchFewer);
}

#[test]
fn a_rank_without_data_keeps_the_others_company() {
    check(Misfortune::OneBatchShadowed);
}

#[test]
fn a_rank_that_exits_too_early_is_named() {
    check(Misfortune::ExitZero);
}

#[test]
fn a_killed_rank_ends_the_job() {
    check(Misfortune::Kill);
}

#[test]
fn a_stopped_rank_ends_the_job() {
    check(Misfortune::Stop);
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    check(Misfortune::KillLauncher);
}

#[test]
fn ctrl_c_is_an_agreed_end_with_a_checkpoint() {
    check(Misfortune::Interrupt);
}
