//! How long the simulator itself takes: large worlds, one core, the best and the median of runs.
//!
//! `cargo bench -p bonfire-plan --bench simulate`

use std::num::NonZeroUsize;
use std::time::Instant;

use bonfire_plan::simulate::{Detail, Link, Network, simulate};
use bonfire_plan::{
    Algorithm, Collective, DType, Hosts, Partition, Schedule, ScheduleShape, WorldSize,
};

const RUNS: usize = 5;
const RANKS: u32 = 1024;
/// That many `f32` are 100 MB.
const COUNT: usize = 25_000_000;

fn main() {
    println!(
        "{RANKS} ranks, {COUNT} elements of f32, one chunk per frame; {RUNS} runs on one core"
    );
    println!("algorithm          hosts    frames  simulated ms   best s  median s");
    for &algorithm in Algorithm::candidates(Collective::AllReduce) {
        for hosts in [1, 128, RANKS] {
            measure(algorithm, hosts);
        }
    }
}

fn measure(algorithm: Algorithm, host_count: u32) {
    let world_size = WorldSize::new(RANKS).expect("a world has ranks");
    let hosts = Hosts::new((0..RANKS).map(|rank| rank / (RANKS / host_count)).collect());
    let schedule = Schedule::new(ScheduleShape {
        collective: Collective::AllReduce,
        algorithm,
        world_size,
        count: COUNT,
        chunk_elems_max: NonZeroUsize::new(COUNT).expect("a chunk has elements"),
        partition: Partition::Balanced,
        hosts: hosts.clone(),
    });
    let Ok(schedule) = schedule else {
        println!("{algorithm:<18} has no such plan");
        return;
    };
    let network = Network::new(hosts, Link::new(3.4e-6, 1.0 / 370e9), Link::new(14e-6, 1.0 / 50e9));
    let mut seconds = Vec::with_capacity(RUNS);
    let mut last = None;
    for _ in 0..RUNS {
        let started = Instant::now();
        last = simulate(&schedule, DType::F32, &network, Detail::Totals).ok();
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let Some(simulation) = last else {
        println!("{algorithm:<18} cannot be simulated");
        return;
    };
    println!(
        "{algorithm:<18} {host_count:>5} {:>9} {:>13.3} {:>8.3} {:>9.3}",
        simulation.frames_sent_total(),
        simulation.time_s * 1e3,
        seconds[0],
        seconds[RUNS / 2],
    );
}
