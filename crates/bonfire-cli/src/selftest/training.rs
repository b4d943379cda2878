//! Burn models on the GPUs: whether several ranks learn what one does, and what a step costs.

mod bound;
mod network;
mod pace;
mod parity;
mod place;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::Context as _;
use bonfire_collective::{ProcessGroup, RankEnv, WorldSize};
use bonfire_launch::detect_rank;
use bonfire_train::{DeviceKind, GradientRoute, LocalRank, World};

use super::SelftestArgs;
use super::conformance::launch;
use super::inventory::is_shared;
use super::part::Part;
use bound::Bound;
use network::Size;
use pace::{Pace, pace};
use parity::{Learnt, compare, learn};
use place::{Place, on_threads};

/// Kernels are compiled and chosen in the first steps.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Ranks as processes, of those that are asked for.
const PROCESSES_MAX: u32 = 4;

const ROUNDS: usize = 15;

/// What a step may cost through Bonfire where there is nothing to synchronise, over Burn's own.
const ALONE_MAX: f64 = 1.01;

/// What synchronisation may add to a step of two ranks.
const TWO_RANKS_MAX: f64 = 1.05;

/// What part of the communication of two ranks their computation must hide.
const OVERLAP_MIN: f64 = 0.90;

const PLACE: Place = Place { kind: DeviceKind::Cuda, timeout: TIMEOUT };

const WAYS: [(&str, GradientRoute); 2] =
    [("as chosen", GradientRoute::Auto), ("through the host", GradientRoute::Host)];

/// Ranks as threads and as processes against one rank with all their samples.
pub(super) fn parity(args: &SelftestArgs) -> anyhow::Result<()> {
    if let Some(env) = detect_rank()? {
        return parity_as_rank(&env);
    }
    let alone = alone()?;
    for &ranks in &args.ranks {
        let world_size = WorldSize::new(ranks)?;
        let learnt = |(name, route)| {
            let learnt = on_threads(&PLACE, world_size, |world| learn(world, route))?;
            Ok((name, learnt))
        };
        on_threads(&PLACE, world_size, choose_kernels)?;
        let ways: anyhow::Result<Vec<_>> = WAYS.into_iter().map(learnt).collect();
        print(&format!("{ranks} ranks as threads"), &ways?, &alone)?;
    }
    for &ranks in args.ranks.iter().filter(|ranks| **ranks <= PROCESSES_MAX) {
        launch(ranks, &Part::Training.arguments())?;
    }
    Ok(())
}

fn alone() -> anyhow::Result<Learnt> {
    let learn = |world: &World| learn(world, GradientRoute::Auto);
    let learnt = on_threads(&PLACE, WorldSize::new(1)?, learn)?;
    learnt.into_iter().next().context("there is one rank")
}

fn print(ranks: &str, ways: &[(&str, Vec<Learnt>)], alone: &Learnt) -> anyhow::Result<()> {
    let parity = compare(ways, alone)?;
    let ways = match parity.apart {
        0.0 => "the same bits on both ways".to_owned(),
        apart => format!("{apart:.1e} between both ways"),
    };
    println!(
        "{ranks}: {} parameters, the same bits on all of them, {ways}, {:.1e} from one rank",
        parity.parameters, parity.distance
    );
    Ok(())
}

fn world_of(env: &RankEnv) -> anyhow::Result<World> {
    let group = ProcessGroup::connect(env, PLACE.group_options())?;
    let local = LocalRank { local_rank: env.local_rank, local_world_size: env.local_world_size };
    PLACE.world(group, local)
}

/// Has Burn's kernels compiled and chosen. What runs while it measures them is not what it chooses, and may
/// round otherwise.
fn choose_kernels(world: &World) -> anyhow::Result<()> {
    learn(world, GradientRoute::Auto).map(drop)
}

fn parity_as_rank(env: &RankEnv) -> anyhow::Result<()> {
    let world = world_of(env)?;
    choose_kernels(&world)?;
    let mut ways = Vec::new();
    for (name, route) in WAYS {
        let own = learn(&world, route)?;
        let all = world.group().all_gather(&own.values)?;
        let ranks = all.chunks_exact(own.values.len());
        let learnt = ranks.map(|values| Learnt { values: values.to_vec() });
        ways.push((name, learnt.collect()));
    }
    if world.is_main() {
        let ranks = format!("{} ranks as processes", world.world_size());
        print(&ranks, &ways, &alone()?)?;
    }
    // Nobody leaves while rank 0 still compares.
    Ok(world.group().barrier()?)
}

/// Steps with and without synchronisation, of processes.
pub(super) fn steps(args: &SelftestArgs) -> anyhow::Result<()> {
    let size = if args.quick { Size::SMALL } else { Size::LARGE };
    if let Some(env) = detect_rank()? {
        return steps_as_rank(&env, size);
    }
    println!(
        "{} parameters in {} tensors, {} samples per rank, each of {} tokens",
        size.parameters(),
        size.tensors(),
        size.batch,
        size.tokens
    );
    println!(
        "{:>5} {:>9} {:>15} {:>7} {:>17} {:>8}",
        "ranks", "plain ms", "synchronised ms", "factor", "communication ms", "hidden %"
    );
    let mut ranks = vec![1];
    ranks.extend(args.ranks.iter().filter(|ranks| **ranks <= PROCESSES_MAX));
    let quick = args.quick.then(|| "--quick".to_owned());
    let arguments: Vec<String> = Part::Steps.arguments().into_iter().chain(quick).collect();
    ranks.into_iter().try_for_each(|ranks| launch(ranks, &arguments))
}

fn steps_as_rank(env: &RankEnv, size: Size) -> anyhow::Result<()> {
    let world = world_of(env)?;
    let pace = pace(&world, size, ROUNDS)?;
    if !world.is_main() {
        return Ok(());
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let communication = pace.communication.map(milliseconds);
    let figure = |(value, digits): (f64, usize)| format!("{value:.digits$}");
    let hidden = pace.overlap().map(|overlap| (overlap * 100.0, 1));
    let row = format!(
        "{:>5} {:>9.3} {:>15.3} {:>7.3} {:>17} {:>8}  {}",
        world.world_size(),
        milliseconds(pace.plain),
        milliseconds(pace.synchronised),
        pace.ratio,
        communication.map(|time| figure((time, 3))).unwrap_or_default(),
        hidden.map(figure).unwrap_or_default(),
        verdicts(&world, size, &pace)?.join(", "),
    );
    println!("{}", row.trim_end());
    Ok(())
}

/// Of the figures that something is asked of: those of the large network, where all ranks share one device.
fn verdicts(world: &World, size: Size, pace: &Pace) -> anyhow::Result<Vec<String>> {
    if size != Size::LARGE || !is_shared()? {
        return Ok(Vec::new());
    }
    let factor = |most| format!("factor {}", Bound::AtMost(most).of(pace.ratio));
    let hidden = |overlap| format!("hidden {}", Bound::AtLeast(OVERLAP_MIN).of(overlap));
    Ok(match world.world_size().get() {
        1 => vec![factor(ALONE_MAX)],
        2 => {
            let mut verdicts = vec![factor(TWO_RANKS_MAX)];
            verdicts.extend(pace.overlap().map(hidden));
            verdicts
        }
        _ => Vec::new(),
    })
}
