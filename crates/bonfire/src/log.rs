//! Logs decisions at set-up, one line each, to the error stream, with this process's rank.

use bonfire_collective::RankEnv;
use bonfire_launch::LauncherOutput;

/// Bonfire's decisions, and the warnings of all other crates.
const FILTER_DEFAULT: &str = "warn,bonfire=info";

/// The prefix of each line of this process: its rank, unless there is one rank only or the launcher adds it.
pub(crate) fn prefix(env: Option<&RankEnv>) -> String {
    match (env, LauncherOutput::detect()) {
        (Some(env), LauncherOutput::Direct) if env.world_size.get() > 1 => {
            format!("[rank {}] ", env.rank)
        }
        _ => String::new(),
    }
}

/// Logs to the error stream, unless the program sets up its own logging.
pub(crate) fn to_stderr(prefix: &str) {
    bonfire_launch::log_to_stderr(prefix, FILTER_DEFAULT);
}
