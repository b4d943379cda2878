//! A small training that launches itself: `training-rank TRANSPORT MISFORTUNE SEED FOLDER`.
//!
//! Without a launcher's environment it is the launcher. As a rank it trains the model of
//! `bonfire_testkit::endings` until its data, a misfortune of the seed, or Ctrl-C ends it. Checkpoints
//! go to the folder, whose file `go` starts the training.

mod training;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, RankEnv};
use bonfire_launch::{AgentOptions, LaunchError, PEER_FAILED_EXIT_CODE, detect_rank};
use bonfire_testkit::Watchdog;
use bonfire_testkit::endings::{Misfortune, Scenario, now};

use training::Training;

/// Far beyond what an operation takes, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Where only a rank's silence shows the misfortune: a few beats, far before the deadline of an operation.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(4);

/// Longer than any judge waits.
const LIMIT: Duration = Duration::from_secs(100);

type BoxError = Box<dyn std::error::Error>;

struct Arguments {
    transport: String,
    scenario: Scenario,
    folder: PathBuf,
}

fn main() -> ExitCode {
    let ended = arguments().and_then(|arguments| match detect_rank()? {
        Some(env) => train(&env, arguments),
        None => launch(&arguments.scenario),
    });
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn arguments() -> Result<Arguments, BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [transport, misfortune, seed, folder] = &arguments[..] else {
        return Err("usage: training-rank TRANSPORT MISFORTUNE SEED FOLDER".into());
    };
    let misfortune: Misfortune = misfortune.parse()?;
    Ok(Arguments {
        transport: transport.clone(),
        scenario: Scenario::of_seed(misfortune, seed.parse()?),
        folder: PathBuf::from(folder),
    })
}

fn launch(scenario: &Scenario) -> Result<ExitCode, BoxError> {
    let options = AgentOptions {
        args: std::env::args_os().skip(1).collect(),
        nproc_per_node: NonZeroU32::new(scenario.world_size).ok_or("a job has ranks")?,
        ..AgentOptions::new(std::env::current_exe()?)
    };
    match options.run() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("error: {error}");
            Ok(ExitCode::from(LaunchError::exit_code(&error)))
        }
    }
}

fn train(env: &RankEnv, arguments: Arguments) -> Result<ExitCode, BoxError> {
    let _watchdog = Watchdog::start("training-rank", LIMIT);
    let options = GroupOptions::default()
        .with_transport(Some(arguments.transport.parse()?))
        .with_timeout(TIMEOUT)
        .with_heartbeat_timeout(match arguments.scenario.misfortune {
            Misfortune::Stop => Some(HEARTBEAT_TIMEOUT),
            _ => GroupOptions::default().heartbeat_timeout,
        });
    let group = ProcessGroup::connect(env, options)?;
    let mut training = Training::new(&group, arguments.scenario, arguments.folder);
    let Err(error) = training.run() else {
        return Ok(ExitCode::SUCCESS);
    };
    // As `bonfire::launch` does it.
    group.abort(&error.to_string());
    let failure = group.failure();
    if failure.is_some_and(|failure| failure.blames_another(group.rank())) {
        eprintln!("heard at {:.6}: {error}", now().as_secs_f64());
        std::process::exit(PEER_FAILED_EXIT_CODE.into());
    }
    eprintln!("error: {error}");
    std::process::exit(1);
}
