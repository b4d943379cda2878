//! `bonfire run`: starts the ranks of a job on this host.

use bonfire_launch::{AgentOptions, LaunchError, LaunchFlags};
use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

/// Start a program as several ranks, on this host or as this host's part of a larger job.
///
/// Each rank gets the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and more. Its output is printed line by line behind its
/// rank. When one rank fails, the others are ended, and what the failed rank said comes last.
#[derive(Debug, Args)]
// The letters are torchrun's. All of them are the launcher's here: the program's flags come after it.
#[command(mut_arg("redirects", |arg| arg.short('r')), mut_arg("tee", |arg| arg.short('t')))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    launch: LaunchFlags,

    /// The program of every rank
    program: OsString,

    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs the job and reports how it ended.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    let error = match options(args) {
        Ok(options) => match options.run() {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => error.into(),
        },
        Err(error) => error,
    };
    eprintln!("error: {error:#}");
    ExitCode::from(error.downcast_ref().map_or(1, LaunchError::exit_code))
}

fn options(args: RunArgs) -> anyhow::Result<AgentOptions> {
    let count = args.launch.rank_count()?.resolve()?;
    Ok(args.launch.options(args.program, args.args, count)?)
}
