//! Ranks with unequal shares of the data that end together: the listing on agreement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

// ANCHOR: imports
use bonfire::collective::{InterruptWatch, Proposal};
// ANCHOR_END: imports
use bonfire::prelude::*;

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> anyhow::Result<()> {
    let group = world.group();
    // Rank r has r + 3 batches.
    let mut batches = 0..world.rank().get() + 3;
    let (mut steps, mut saved) = (0, 0);
    let mut save = || saved += 1;
    // ANCHOR: agreed
    let interrupted = Arc::new(AtomicBool::new(false));
    let noticed = Arc::clone(&interrupted);
    // Ctrl-C or SIGTERM.
    let _watch = InterruptWatch::start(move |_| noticed.store(true, Ordering::Relaxed))?;
    loop {
        let batch = batches.next();
        let agreed = group.agree(Proposal {
            stop: interrupted.load(Ordering::Relaxed),
            checkpoint: steps == 2,
            out_of_data: batch.is_none(),
        })?;
        let is_last = agreed.stop.is_some() || agreed.out_of_data.is_some();
        if is_last || agreed.checkpoint.is_some() {
            save();
        }
        if is_last {
            break;
        }
        steps += 1; // Train with the batch here.
    }
    // ANCHOR_END: agreed
    println!("{steps} steps, saved {saved} times");
    Ok(())
}
