//! A program that launches itself and then does what its first argument says, for the tests of what
//! becomes of a job. It trains nothing: the ranks only communicate.

use std::path::PathBuf;
use std::time::Duration;
use std::{mem, process, thread};

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
    println!("pid {}", process::id());
    let role = std::env::args().nth(1).context("the first argument is a role")?;
    if let Some(whose) = role.strip_prefix("said-by-") {
        let is_wrong = whose == "all" || world.rank() == CULPRIT;
        all_or_none(&world, ensure_right(is_wrong))?;
    }
    if role == "forget" {
        return forget(&world);
    }
    for step in 0_u32.. {
        let is_culprit = world.rank() == CULPRIT && step == STEPS;
        match role.as_str() {
            "finish" if step == STEPS => return Ok(()),
            "error" if is_culprit => bail!("step {step}: no more data"),
            "panic" if is_culprit => panic!("step {step}: index out of range"),
            "exit" if is_culprit => process::exit(3),
            "abort" if is_culprit => process::abort(),
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

/// The culprit never drops one of its handles and ends; the others work on in a group of their own.
fn forget(world: &World) -> anyhow::Result<()> {
    let is_culprit = world.rank() == CULPRIT;
    let mut culprit = [if is_culprit { process::id() } else { 0 }];
    world.group().broadcast(&mut culprit, CULPRIT)?;
    let color = Some(u32::from(is_culprit));
    let own = world.group().split(color, 0)?.context("every rank has a color")?;
    if is_culprit {
        mem::forget((world.group().clone(), own));
        return Ok(());
    }
    let folder = PathBuf::from(format!("/proc/{}", culprit[0]));
    let mut steps_after_its_end = 0;
    while steps_after_its_end < STEPS {
        let is_gone = !folder.exists();
        let mut ended = [u32::from(is_gone)];
        own.all_reduce(&mut ended, ReduceOp::Min)?;
        steps_after_its_end += ended[0];
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn ensure_right(is_wrong: bool) -> anyhow::Result<()> {
    ensure!(!is_wrong, "the options contradict each other");
    Ok(())
}
