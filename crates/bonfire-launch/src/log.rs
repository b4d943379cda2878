//! What programs log, on the error stream: a line for each event, behind what the program puts before it.
//!
//! Spans are left out; nobody in this project opens any.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;

use crate::environment::draws_on;

/// The variable that chooses what is logged: a level, or levels of targets, as in `warn,bonfire=debug`.
const FILTER_VARIABLE: &str = "BONFIRE_LOG";
/// With this nothing is logged, and the place of the process's log is left free.
const OFF: &str = "off";

/// Logs to the error stream, unless the program has set up its own logging, or will. Without the variable
/// `BONFIRE_LOG`, or where it makes no sense, that is what `default` lets through.
pub fn log_to_stderr(prefix: &str, default: &str) {
    let chosen = std::env::var(FILTER_VARIABLE);
    if chosen.as_deref() == Ok(OFF) {
        return;
    }
    let targets = chosen.ok().and_then(|targets| targets.parse().ok());
    let lines = Lines {
        targets: targets.unwrap_or_else(|| default.parse().expect("the default is well-formed")),
        prefix: prefix.to_owned(),
        is_colored: draws_on(&io::stderr()),
    };
    // An error means that the program logs in its own way, which is its right.
    let _ = tracing::subscriber::set_global_default(lines);
}

struct Lines {
    targets: Targets,
    prefix: String,
    is_colored: bool,
}

impl Lines {
    fn line(&self, event: &Event<'_>) -> String {
        let level = *event.metadata().level();
        let mut line = self.prefix.clone();
        // Writing to a string cannot fail.
        let _ = if self.is_colored {
            write!(line, "\x1b[{}m{level:>5}\x1b[0m", color(level))
        } else {
            write!(line, "{level:>5}")
        };
        event.record(&mut Fields(&mut line));
        line.push('\n');
        line
    }
}

fn color(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        Level::TRACE => 35,
    }
}

/// The message, and `name=value` for everything else.
struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.targets.would_enable(metadata.target(), metadata.level())
    }

    fn event(&self, event: &Event<'_>) {
        // In one call, so that lines of several threads stay whole. A failure cannot be reported.
        let _ = io::stderr().write_all(self.line(event).as_bytes());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps the lines of what `targets` lets through.
    fn logged(targets: &str, work: impl FnOnce()) -> Vec<String> {
        struct Kept(Lines, Arc<Mutex<Vec<String>>>);
        impl Subscriber for Kept {
            fn enabled(&self, metadata: &Metadata<'_>) -> bool {
                self.0.enabled(metadata)
            }
            fn event(&self, event: &Event<'_>) {
                self.1.lock().unwrap().push(self.0.line(event));
            }
            fn new_span(&self, attributes: &Attributes<'_>) -> Id {
                self.0.new_span(attributes)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }
        let lines = Arc::default();
        let kept = Lines {
            targets: targets.parse().unwrap(),
            prefix: "[rank 3] ".to_owned(),
            is_colored: false,
        };
        tracing::subscriber::with_default(Kept(kept, Arc::clone(&lines)), work);
        Arc::into_inner(lines).unwrap().into_inner().unwrap()
    }

    #[test]
    fn a_line_has_the_prefix_the_level_the_message_and_the_fields() {
        let lines = logged("info", || {
            let _span = tracing::info_span!("around", step = 7).entered();
            tracing::info!(rank = 3, device = "cpu", bytes = %"4 KiB", "device chosen");
        });
        let expected = "[rank 3]  INFO device chosen rank=3 device=\"cpu\" bytes=4 KiB\n";
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn levels_are_those_of_targets() {
        let lines = logged("warn,bonfire=info", || {
            tracing::info!(target: "bonfire_train::world", "ours");
            tracing::debug!(target: "bonfire_train::world", "too fine");
            tracing::info!(target: "cubecl", "theirs");
            tracing::warn!(target: "cubecl", "their warning");
        });
        let expected = ["[rank 3]  INFO ours\n", "[rank 3]  WARN their warning\n"];
        assert_eq!(lines, expected);
    }
}
