//! Ranks that end together: because one cannot go on, was asked to end, or has no more data.

use std::env;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bonfire::prelude::*;
use bonfire::{InterruptWatch, Proposal, all_or_none};

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let path = env::args().nth(1).unwrap_or_default();
    // ANCHOR: told
    // A file that only some hosts have is an error of all ranks, and of one line.
    let text = all_or_none(&world, fs::read_to_string(path))?;
    // ANCHOR_END: told
    let (rank, ranks) = (world.rank().index(), world.world_size().len());
    let own = text.lines().skip(rank).step_by(ranks);
    let mut batches = own.filter_map(|line| line.parse::<f64>().ok());
    let mut sum = 0.0;
    // ANCHOR: agreed
    let interrupted = Arc::new(AtomicBool::new(false));
    let noticed = Arc::clone(&interrupted);
    // Ctrl-C, SIGTERM
    let _watch = InterruptWatch::start(move |_| noticed.store(true, Ordering::Relaxed))?;
    loop {
        let batch = batches.next();
        let agreed = world.group().agree(Proposal {
            stop: interrupted.load(Ordering::Relaxed),
            checkpoint: false,
            out_of_data: batch.is_none(),
        })?;
        if agreed.stop.is_some() || agreed.with_data.is_none() {
            break;
        }
        // A rank without data keeps the others company.
        let mut total = [batch.unwrap_or(0.0)];
        world.group().all_reduce(&mut total, ReduceOp::Sum)?;
        sum += total[0];
    }
    // ANCHOR_END: agreed
    if world.is_main() {
        println!("the sum is {sum}");
    }
    Ok(())
}
