//! Building, proving and printing a plan.

// ANCHOR: all
use std::num::NonZeroUsize;

use bonfire::collective::plan::{
    Algorithm, Collective, Hosts, Partition, Schedule, ScheduleShape, check,
};
use bonfire::collective::{Rank, WorldSize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let one = NonZeroUsize::MIN;
    let world_size = WorldSize::new(4)?;
    let schedule = Schedule::new(ScheduleShape {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring,
        world_size,
        count: 1000,
        chunk_elems_max: NonZeroUsize::new(4096).ok_or("a chunk has elements")?,
        partition: Partition::Balanced,
        hosts: Hosts::one(world_size),
    })?;
    // Runs all ranks on symbols: right, complete, free of deadlock with one slot per pair.
    let report = check(&schedule, one)?;
    println!("rounds: {}", report.cost.rounds());
    for step in schedule.steps(Rank::new(0)) {
        println!("{step}");
    }
    Ok(())
}
// ANCHOR_END: all
