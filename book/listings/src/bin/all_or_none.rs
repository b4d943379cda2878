//! An error that one rank tells for all: the listing on ends by an error.

use std::env;
use std::fs;

use bonfire::all_or_none;
use bonfire::prelude::*;

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> bonfire::Result<()> {
    let path = env::args_os().nth(1).unwrap_or_default();
    // ANCHOR: report
    // A file that only some hosts have ends all ranks, with one line.
    let text = all_or_none(&world, fs::read_to_string(path))?;
    // ANCHOR_END: report
    println!("{} lines", text.lines().count());
    Ok(())
}
