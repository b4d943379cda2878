//! Decisions at set-up, one line each, on the error stream behind this process's rank.

use std::fmt;
use std::io::{self, IsTerminal};

use bonfire_collective::RankEnv;
use bonfire_launch::LauncherOutput;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The variable that chooses what is logged, in the syntax of `tracing-subscriber`'s `EnvFilter`.
const FILTER_VARIABLE: &str = "BONFIRE_LOG";

/// With this nothing is logged, and the place of the process's log is left free.
const OFF: &str = "off";

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
    if std::env::var(FILTER_VARIABLE).is_ok_and(|filter| filter == OFF) {
        return;
    }
    let filter =
        EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(FILTER_DEFAULT));
    let format = Format::default().without_time().with_target(false);
    // An error means that the program logs in its own way, which is its right.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .event_format(Prefixed {
            prefix: prefix.to_owned(),
            format,
        })
        .try_init();
}

/// A format with something before each line.
struct Prefixed<F> {
    prefix: String,
    format: F,
}

impl<S, N, F> FormatEvent<S, N> for Prefixed<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(&self.prefix)?;
        self.format.format_event(context, writer, event)
    }
}
