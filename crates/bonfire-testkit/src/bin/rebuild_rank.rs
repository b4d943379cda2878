//! One rank of a job of four that goes on without those it loses:
//! `rebuild-rank TRANSPORT FEWEST survivors|everybody [DEATH...]`. Without a launcher's environment it
//! is the launcher.
//!
//! Each `RANK@STEP+MS` is the death of a rank in a step, or so many milliseconds after it: a rank that
//! has lost another by then dies while it rebuilds its group. With `rejoin` as the last word the
//! process takes the place of a lost rank. Prints how it ended.

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

use bonfire_collective::{
    CollectiveError, GroupOptions, ProcessGroup, Rank, RebuildError, RebuildOptions, Rebuilt,
    ReduceOp, WaitFor, WorldSize,
};
use bonfire_launch::{AgentOptions, detect_rank};
use bonfire_testkit::Watchdog;

/// Steps of the job.
const STEPS: u64 = 40;

type BoxError = Box<dyn std::error::Error>;

/// The death of a rank.
struct Death {
    rank: u32,
    step: u64,
    delay: Duration,
}

struct Arguments {
    group: GroupOptions,
    rebuild: RebuildOptions,
    deaths: Vec<Death>,
    rejoins: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Arguments, BoxError> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let rejoins = words.last().is_some_and(|word| word == "rejoin");
    words.truncate(words.len() - usize::from(rejoins));
    let [transport, fewest, wait_for, deaths @ ..] = &words[..] else {
        return Err("usage: rebuild-rank TRANSPORT FEWEST WAIT_FOR [DEATH...]".into());
    };
    let death = |word: &String| -> Result<Death, BoxError> {
        let (rank, rest) = word.split_once('@').ok_or("a death is RANK@STEP+MS")?;
        let (step, delay) = rest.split_once('+').ok_or("a death is RANK@STEP+MS")?;
        Ok(Death {
            rank: rank.parse()?,
            step: step.parse()?,
            delay: Duration::from_millis(delay.parse()?),
        })
    };
    Ok(Arguments {
        group: GroupOptions {
            transport: Some(transport.parse()?),
            timeout: Duration::from_secs(60),
            ..GroupOptions::default()
        },
        rebuild: RebuildOptions {
            min_world: WorldSize::new(fewest.parse()?)?,
            wait_for: match wait_for.as_str() {
                "everybody" => WaitFor::Everybody,
                _ => WaitFor::Survivors,
            },
            // Longer than any wait here, but for that for a rank that died on its way.
            join_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(90),
        },
        deaths: deaths.iter().map(death).collect::<Result<_, _>>()?,
        rejoins,
    })
}

fn run() -> Result<(), BoxError> {
    let _watchdog = Watchdog::start("rebuild-rank", Duration::from_secs(150));
    let arguments = arguments()?;
    let Some(env) = detect_rank()? else {
        return launch(&arguments);
    };
    let mut step = 0;
    let mut generation = 0;
    let mut group = if arguments.rejoins {
        let rebuilt = ProcessGroup::rejoin(&env, arguments.group.clone(), &arguments.rebuild)?;
        generation = rebuilt.generation;
        resume(&rebuilt, &mut step)?;
        rebuilt.group
    } else {
        ProcessGroup::connect(&env, arguments.group.clone())?
    };
    while step < STEPS {
        if !arguments.rejoins {
            meet_fate(&arguments.deaths, env.rank, step);
        }
        match add_up(&group) {
            Ok(()) => step += 1,
            Err(error) if error.blames_another(group.rank()) => {
                let rebuilt = go_on(&group, &arguments.rebuild, &mut step)?;
                generation = rebuilt.generation;
                group = rebuilt.group;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let members: Vec<u32> = group.members().iter().map(|rank| rank.get()).collect();
    println!(
        "rank {} of {members:?} in generation {generation}",
        group.rank()
    );
    Ok(())
}

fn launch(arguments: &Arguments) -> Result<(), BoxError> {
    let options = AgentOptions {
        args: std::env::args_os().skip(1).collect(),
        nproc_per_node: NonZeroU32::new(4).ok_or("four is not zero")?,
        min_nproc_per_node: NonZeroU32::new(arguments.rebuild.min_world.get()),
        ..AgentOptions::new(std::env::current_exe()?)
    };
    Ok(options.run()?)
}

/// Rebuilds the group until its ranks have agreed on where they go on.
fn go_on(
    group: &ProcessGroup,
    options: &RebuildOptions,
    step: &mut u64,
) -> Result<Rebuilt, BoxError> {
    let mut rebuilt = group.rebuild(options)?;
    while let Err(error) = resume(&rebuilt, step) {
        if !error.blames_another(rebuilt.group.rank()) {
            return Err(error.into());
        }
        rebuilt = rebuilt
            .group
            .rebuild(options)
            .map_err(|error: RebuildError| error)?;
    }
    Ok(rebuilt)
}

/// A rank may have finished a step that another has not; those that come new have no state.
fn resume(rebuilt: &Rebuilt, step: &mut u64) -> Result<(), CollectiveError> {
    let is_new = rebuilt.newcomers.contains(&rebuilt.group.rank());
    let mut state = [if is_new { u64::MAX } else { *step }];
    rebuilt.group.all_reduce(&mut state, ReduceOp::Min)?;
    let donor = rebuilt.donor().expect("somebody has survived");
    let mut state = [state[0]];
    rebuilt.group.broadcast(&mut state, donor)?;
    *step = state[0];
    Ok(())
}

/// One step: a small operation and one that is large enough for the ranks' own memory, both checked.
fn add_up(group: &ProcessGroup) -> Result<(), CollectiveError> {
    let own = group.world_rank(group.rank()).get() + 1;
    let sum: u32 = group.members().iter().map(|rank| rank.get() + 1).sum();
    for len in [3, 100_000] {
        let mut data = group.buffer::<u32>(len)?;
        data.fill(own);
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        assert!(
            data.iter().all(|element| *element == sum),
            "{} is not {sum}",
            data[0]
        );
    }
    Ok(())
}

fn meet_fate(deaths: &[Death], me: Rank, step: u64) {
    // Whoever is to die does so before the job is over, however fast the others are.
    while step + 1 == STEPS && deaths.iter().any(|death| death.rank == me.get()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for death in deaths
        .iter()
        .filter(|death| death.rank == me.get() && death.step == step)
    {
        if death.delay.is_zero() {
            // As by SIGKILL: no destructor runs.
            std::process::abort();
        }
        let delay = death.delay;
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            std::process::abort();
        });
    }
}
