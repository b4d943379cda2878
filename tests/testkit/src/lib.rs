//! What the tests of Bonfire share: ranks as threads or processes, a conformance suite for every
//! transport, independent oracles, and watchdogs.
//!
//! For tests only: nothing a user runs depends on this crate.

#![allow(missing_docs, reason = "for the tests of this workspace alone")]
#![forbid(unsafe_code)]

pub mod conformance;
mod console;
pub mod endings;
mod estimate;
mod host;
mod job;
pub mod limits;
pub mod oracle;
mod ranks;
mod readers;
mod scope;
mod watchdog;
mod way;

pub use console::{Console, ConsoleEnd, script_is_missing};
pub use estimate::Estimate;
pub use host::{Network, Shape, SmallDisk, Unavailable};
pub use job::{
    Job, JobEnd, OwnPort, Signal, again, assert_gone, is_running, measured, of_another_launcher,
    print_figure, signal_process, task, wait_until_gone, wait_until_stopped,
};
pub use ranks::{
    assert_each_says, connected, env_of, local, meeting, on_hosts, processes, try_connected,
};
pub use readers::{
    CommandLine, Scalar, assert_understood, command_lines, read_by_safetensors, read_by_tensorboard,
};
pub use scope::{is_full, some};
pub use watchdog::Watchdog;
pub use way::{UnknownWay, over};
