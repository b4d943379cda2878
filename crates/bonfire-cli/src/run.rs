//! `bonfire run`: starts the ranks of a job on this host. `bonfire scaling` does so with several numbers of them.

mod scaling;

use std::env;
use std::ffi::OsString;

use bonfire_launch::LaunchFlags;
use clap::{Arg, Args};

pub(crate) use scaling::ScalingArgs;

/// Flags of torchrun that are not there, with their older spelling, and what to do instead.
const OF_TORCHRUN: [(&str, &str, &str); 9] = [
    ("module", "", AS_IT_IS),
    ("no-python", "no_python", AS_IT_IS),
    ("run-path", "run_path", AS_IT_IS),
    ("rdzv-conf", "rdzv_conf", IN_THE_PROGRAM),
    ("monitor-interval", "monitor_interval", NOTHING),
    ("start-method", "start_method", NOTHING),
    ("role", "", NOTHING),
    ("local-addr", "local_addr", NOTHING),
    ("local-ranks-filter", "local_ranks_filter", NOTHING),
];

const AS_IT_IS: &str =
    "leave it out: what follows the flags is started as it is, so a module is `python -m MODULE`";

const IN_THE_PROGRAM: &str =
    "leave it out: GroupOptions in the program say how long its ranks wait to meet";

const NOTHING: &str = "leave it out: there is nothing like it here";

/// Start a program as several ranks, on this host or as this host's part of a larger job.
///
/// Each rank gets the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and more. Its output is printed line by line behind its
/// rank. When one rank fails, the others are ended, and what the failed rank said comes last.
#[derive(Debug, Args)]
// The letters are torchrun's. All of them are the launcher's here: the program's flags come after it.
#[command(mut_arg("redirects", |arg| arg.short('r')), mut_arg("tee", |arg| arg.short('t')))]
#[command(args(of_torchrun()))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    launch: LaunchFlags,
    /// The program of every rank
    program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Each is an error that says what to do.
fn of_torchrun() -> impl Iterator<Item = Arg> {
    OF_TORCHRUN.into_iter().map(|(name, older, advice)| {
        let arg = Arg::new(name)
            .long(name)
            .aliases(Some(older).filter(|older| !older.is_empty()))
            .hide(true)
            .value_parser(move |_: &str| Err::<String, _>(advice));
        match name {
            "module" => arg.short('m'),
            _ => arg,
        }
    })
}

pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    if let Some(hosts) = args.launch.other_hosts()? {
        let program = env::current_exe()?;
        let arguments: Vec<_> = env::args_os().skip(1).collect();
        return Ok(hosts.run(program.as_os_str(), &arguments)?);
    }
    let count = args.launch.rank_count()?.resolve()?;
    let options = args.launch.options(args.program, args.args, count)?;
    Ok(options.run()?)
}
