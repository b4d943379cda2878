//! Decisions at set-up, one line each, on the error stream behind this process's rank.

use bonfire_collective::RankEnv;
use bonfire_launch::LauncherOutput;

/// Our own decisions, and the warnings of everything else.
const FILTER_DEFAULT: &str = "warn,bonfire=info";

/// What goes before each line of this process: its rank, unless there is one rank only or the
/// launcher puts it there.
pub(crate) fn prefix(env: Option<&RankEnv>) -> String {
    match (env, LauncherOutput::detect()) {
        (Some(env), LauncherOutput::Direct) if env.world_size.get() > 1 => {
            format!("[rank {}] ", env.rank)
        }
        _ => String::new(),
    }
}

/// Logs to the error stream, unless the program has set up its own logging, or will.
pub(crate) fn to_stderr(prefix: &str) {
    bonfire_launch::log_to_stderr(prefix, FILTER_DEFAULT);
}
