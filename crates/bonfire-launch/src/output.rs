//! What ranks print: on the launcher's screen line by line, and in files. Rank 0 may draw on the terminal.

mod error_dedup;
mod held;
mod lines;
mod logs;
mod relay;
mod screen;
mod terminal;

pub use self::logs::{LogOptions, StreamChoice, StreamChoiceError, Streams};

pub(crate) use self::error_dedup::ErrorDedup;
#[cfg(feature = "clap")]
pub(crate) use self::logs::Sink;
pub(crate) use self::logs::{LogPlace, Logs};
pub(crate) use self::relay::{Relay, Tail};
pub(crate) use self::screen::{Channel, Screen};
pub(crate) use self::terminal::{ARTIST, TerminalWatch, open, spawn};
