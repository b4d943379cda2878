//! What can be done to a job.

use std::time::Duration;

use crate::simulation::ProcessId;

/// Something that goes wrong at a set time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process ends, as by SIGKILL: its host closes its connections.
    Kill(ProcessId),
    /// A process does not run, as after SIGSTOP, for a while or for ever. Its host keeps serving
    /// it: connections stay open and take what fits their buffers.
    Stop {
        process: ProcessId,
        /// How long; for ever if that is not said.
        span: Option<Duration>,
    },
    /// Nothing passes between the hosts of one side and all others, for a while or for ever.
    Cut {
        /// A bit for each host of the side.
        side: u64,
        /// How long; for ever if that is not said.
        span: Option<Duration>,
    },
    /// All connections between two hosts break at once, as by a firewall that lost its state.
    Reset([usize; 2]),
    /// A bit of what is sent next between two hosts is turned over, whatever it belongs to, as
    /// where a switch spoils a packet and makes a new checksum for it.
    Flip([usize; 2]),
}
