//! What a rank is started with.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bonfire_collective::RankEnv;
use bonfire_plan::Rank;

use super::AgentOptions;
use super::meeting::Meeting;
use crate::environment::{GROUP_RANK, GROUP_WORLD_SIZE, MAX_RESTARTS, NODE_RANK, rank_variables};
use crate::error::LaunchError;
use crate::ranks::cores;

/// The variable that sizes the thread pool of Burn's CPU backends.
const RAYON_NUM_THREADS: &str = "RAYON_NUM_THREADS";

/// The variable of glibc's allocator. Other C libraries do not look at it.
const GLIBC_TUNABLES: &str = "GLIBC_TUNABLES";

/// Keeps what a step frees for the next one. Left alone, glibc gives tensors back to the kernel, which clears new pages
/// for those of the next step. The first is its limit, above which memory is given back all the same.
const KEEPS_MEMORY: &str =
    "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824";

/// The program of a rank, with all that the environment says about its place in the job.
pub(super) fn command(options: &AgentOptions, meeting: &Meeting, place: &RankEnv) -> Command {
    let mut command = Command::new(&options.program);
    command.args(&options.args).stdin(Stdio::null());
    command.envs(rank_variables(place));
    for variable in [NODE_RANK, GROUP_RANK] {
        command.env(variable, meeting.node_rank().to_string());
    }
    command.env(GROUP_WORLD_SIZE, meeting.nnodes().to_string());
    command.env(MAX_RESTARTS, options.max_restarts.to_string());
    if std::env::var_os(RAYON_NUM_THREADS).is_none() {
        let threads = (cores().get() / options.nproc_per_node).max(1);
        command.env(RAYON_NUM_THREADS, threads.to_string());
    }
    if std::env::var_os(GLIBC_TUNABLES).is_none() {
        command.env(GLIBC_TUNABLES, KEEPS_MEMORY);
    }
    command
}

/// What kept it from starting.
pub(super) fn spawn_error(program: &OsString, rank: Rank, source: io::Error) -> LaunchError {
    let program = PathBuf::from(program);
    match source.kind() {
        io::ErrorKind::NotFound => LaunchError::NoProgram { program },
        _ => LaunchError::Spawn {
            program,
            rank: rank.get(),
            source,
        },
    }
}
