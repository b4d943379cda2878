//! A program that launches itself and then does what its first argument says, for the tests of what
//! becomes of a job. It trains nothing: the ranks only communicate.

use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bonfire::collective::{Rank, ReduceOp};
use bonfire::{World, all_or_none};

/// The rank that misbehaves.
const CULPRIT: Rank = Rank::new(1);

/// Steps before it does.
const STEPS: u32 = 20;

fn main() -> bonfire::Result<()> {
    bonfire::launch(train)
}

fn train(world: World) -> anyhow::Result<()> {
    println!("pid {}", std::process::id());
    let role = std::env::args()
        .nth(1)
        .context("the first argument is a role")?;
    if let Some(whose) = role.strip_prefix("told-by-") {
        let is_wrong = whose == "all" || world.rank() == CULPRIT;
        all_or_none(&world, ensure_right(is_wrong))?;
    }
    for step in 0_u32.. {
        let is_culprit = world.rank() == CULPRIT && step == STEPS;
        match role.as_str() {
            "finish" if step == STEPS => return Ok(()),
            "error" if is_culprit => bail!("step {step}: no more data"),
            "panic" if is_culprit => panic!("step {step}: index out of range"),
            "exit" if is_culprit => std::process::exit(3),
            "abort" if is_culprit => std::process::abort(),
            "leave" if is_culprit => return Ok(()),
            "fail-alone" => bail!("no such file"),
            "finish" | "error" | "panic" | "exit" | "abort" | "leave" | "forever" => {}
            _ => bail!("no role {role}"),
        }
        let mut sum = [f64::from(world.rank().get() + step); 1000];
        world.group().all_reduce(&mut sum, ReduceOp::Sum)?;
        let ranks = world.world_size().get();
        let expected = f64::from(ranks * (ranks - 1) / 2 + ranks * step);
        assert_eq!(sum, [expected; 1000], "step {step}");
        if role == "forever" {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn ensure_right(is_wrong: bool) -> anyhow::Result<()> {
    ensure!(!is_wrong, "the options contradict each other");
    Ok(())
}
