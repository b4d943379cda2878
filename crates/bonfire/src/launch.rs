//! A program that is its own launcher.

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::num::NonZeroU32;

use bonfire_collective::{ProcessGroup, RankEnv, WorldSize};
use bonfire_launch::{LaunchError, PEER_FAILED_EXIT_CODE, detect_rank};
use bonfire_train::{LocalRank, World, require_devices};

use crate::args::LaunchArgs;
use crate::error::{BoxError, Error, Reporter, Result, with_causes};
use crate::log;
use crate::rank::{self, Fault};

/// The exit code of a worker that failed by itself.
const FAILED_EXIT_CODE: i32 = 1;

/// Trains on as many ranks as the command line's `--nproc` says, each a process of this program.
///
/// Code before this call in `main` runs in every process. Put work that is to be done once into `train`. If a signal
/// interrupts the process that starts the ranks, it exits here, once they have ended: with 130 after Ctrl-C.
///
/// Before `--` the command line has the launcher's flags and words of the program's; another flag is an error that
/// names the nearest one, and `--help` prints them. A program with its own flags takes them after `--`, or parses
/// all with clap and uses [`launch_with`], whose documentation has the details.
///
/// ```no_run
/// fn main() -> bonfire::Result<()> {
///     bonfire::launch(train)
/// }
///
/// fn train(world: bonfire::World) -> bonfire::Result<()> {
///     println!("rank {} of {} on {}", world.rank(), world.world_size(), world.device_name());
///     Ok(())
/// }
/// ```
pub fn launch<E: Into<BoxError>>(train: impl FnOnce(World) -> Result<(), E>) -> Result<()> {
    let args = LaunchArgs::from_arguments(env::args_os())?;
    launch_with(&args, train).inspect_err(|error| {
        if let Error::Launch(interrupted @ LaunchError::Interrupted { .. }) = error {
            let _ = writeln!(std::io::stderr(), "error: {interrupted}");
            std::process::exit(interrupted.exit_code().into());
        }
    })
}

/// Trains on as many ranks as `args` says, each a process of this program.
///
/// The process acts by its environment:
///
/// - Started by a launcher (this function in another process, `bonfire run`, torchrun, or whatever sets `RANK`,
///   `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`), it is one rank: it meets the others and calls `train`. If `train`
///   returns an error or panics, all other ranks get [`PeerFailed`](bonfire_collective::CollectiveError::PeerFailed),
///   the error is printed, and the process exits here: with code 1, or with 75 if another rank had failed before. An
///   error that [`all_or_none`](crate::all_or_none) gave to all ranks is printed by one of them.
/// - Otherwise, for one rank, it calls `train` right here, in a world of one.
/// - Otherwise it starts the ranks with its own arguments, prints their output, and returns when all
///   have ended; a failure of one ends all, and is the error returned.
///
/// All of these processes run the code before and after this function. With four ranks, what stands before it in
/// `main` runs five times: in the process that starts the ranks, and in each of them. Work that is to be done once,
/// such as a download, belongs into `train`, where [`World::is_main`] asks for rank 0 and a barrier lets the others
/// wait for it. A rank leaves its groups when `train` returns.
///
/// # Errors
/// The failure of `train`, or of the first rank that failed, or the reason why the ranks could not start.
pub fn launch_with<E: Into<BoxError>>(
    args: &LaunchArgs,
    train: impl FnOnce(World) -> Result<(), E>,
) -> Result<()> {
    let env = detect_rank()?;
    let prefix = log::prefix(env.as_ref());
    log::to_stderr(&prefix);
    if let Some(env) = env {
        work(&env, args, &prefix, train);
        return Ok(());
    }
    let program = || env::current_exe().map_err(Error::OwnPath);
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let flags = args.launch_flags();
    if let Some(hosts) = flags.other_hosts()? {
        return Ok(hosts.run(program()?.as_os_str(), &arguments)?);
    }
    let count = args.rank_count()?.resolve()?;
    let (kind, occupancy) = args.devices();
    // Reported once, here, and not by every rank.
    require_devices(kind, count.get(), occupancy)?;
    if count == NonZeroU32::MIN && !flags.need_agent() {
        return run_alone(args, train);
    }
    let options = flags.options(program()?, arguments, count)?;
    Ok(options.run()?)
}

/// Runs one rank among several processes. Returns if it succeeds.
fn work<E: Into<BoxError>>(
    env: &RankEnv,
    args: &LaunchArgs,
    prefix: &str,
    train: impl FnOnce(World) -> Result<(), E>,
) {
    let local = LocalRank { local_rank: env.local_rank, local_world_size: env.local_world_size };
    let group = match ProcessGroup::connect(env, args.group.clone()) {
        Ok(group) => group,
        Err(error) => fail(prefix, &error.into(), Fault::Own),
    };
    let (kind, occupancy) = args.devices();
    if let Err(failure) = rank::run(group.clone(), local, kind, occupancy, train) {
        fail(prefix, &failure.error, failure.fault);
    }
    // Burn keeps the graph of a pass that never ran backwards, and with it the groups of its layers.
    group.leave();
}

/// Ends this process. The system cleans up memory, connections and devices, and cannot block on a dead peer.
fn fail(prefix: &str, error: &Error, fault: Fault) -> ! {
    if Reporter::of(error).is_none() {
        // In one piece, because several ranks may share the stream; a closed one has no reader.
        let line = format!("{prefix}error: {}\n", with_causes(error));
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    std::process::exit(match fault {
        Fault::Own => FAILED_EXIT_CODE,
        Fault::Peer => PEER_FAILED_EXIT_CODE.into(),
    })
}

fn run_alone<E: Into<BoxError>>(
    args: &LaunchArgs,
    train: impl FnOnce(World) -> Result<(), E>,
) -> Result<()> {
    let local = LocalRank { local_rank: 0, local_world_size: 1 };
    let mut groups = ProcessGroup::local(WorldSize::ONE, args.group.clone())?;
    let group = groups.pop().expect("a world of one has one group");
    let (kind, occupancy) = args.devices();
    rank::run(group, local, kind, occupancy, train).map_err(|failure| failure.error)
}
