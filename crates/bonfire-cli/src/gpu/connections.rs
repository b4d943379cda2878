//! How many queues the driver has for the streams of a process: read from the environment when the driver is
//! loaded, and so to be said before the program starts.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use bonfire_gpu::CONNECTIONS_VARIABLE;

/// As many as there can be: ranks that are threads of one process and share a device share its queues, and two
/// streams in one queue wait for each other.
pub(crate) const MOST: (&str, &str) = (CONNECTIONS_VARIABLE, "32");

/// Executes this program again in place of itself, with the same arguments and as many queues as there can be,
/// unless the environment says how many.
pub(crate) fn want_most() -> anyhow::Result<()> {
    if env::var_os(MOST.0).is_some() {
        return Ok(());
    }
    let program = env::current_exe().context("cannot find the path of this program")?;
    let error = Command::new(program).args(env::args_os().skip(1)).env(MOST.0, MOST.1).exec();
    Err(error).context("cannot start this program again")
}
