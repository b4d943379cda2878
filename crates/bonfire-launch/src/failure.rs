//! Which rank failed first, and how to say so.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

/// The exit code of a worker that failed only because another rank did, so that the agent does not
/// take it for the culprit. It is `EX_TEMPFAIL` of `sysexits.h`.
pub const PEER_FAILED_EXIT_CODE: u8 = 75;
/// The end of such a worker.
pub(crate) const PEER_FAILED: Exit = Exit::Code(PEER_FAILED_EXIT_CODE as i32);
/// How much later an end may be noticed than one that it caused: the kernel notifies peers while
/// the process still ends, and each end is noticed by a thread of its own, which needs a core.
const NOTICE_MAX: Duration = Duration::from_millis(1500);

/// How a process ended, or why it had to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By the signal of this number.
    Signal(i32),
    /// Not by itself: it was stopped, as by SIGSTOP, and had to be ended.
    Stopped,
    /// Not by itself: the others waited for it in vain.
    Late,
    /// It called another operation than the others.
    Disagreed {
        /// The other rank, where one stands against one.
        with: Option<Rank>,
    },
}

/// The rank that brought the job down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailure {
    /// The number of that rank.
    pub rank: Rank,
    /// Its process id, if it is known. The process has ended.
    pub process_id: Option<u32>,
    /// The host, when the job has several.
    pub host: Option<String>,
    /// How the rank's process ended.
    pub exit: Exit,
    /// The last lines that it wrote to its standard error, oldest first.
    pub last_lines: Vec<String>,
}

/// The end of one rank that was not a success, or that came too early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadEnd {
    /// Which of this host's ranks.
    pub(crate) local_rank: usize,
    pub(crate) exit: Exit,
    pub(crate) at: Instant,
}

impl Exit {
    pub(crate) fn of_failure(status: ExitStatus) -> Option<Self> {
        if status.success() {
            return None;
        }
        // Without a signal there is a code; a status that had neither would not be an end.
        Some(status.signal().map_or_else(|| Self::Code(status.code().unwrap_or(1)), Self::Signal))
    }

    /// The exit code with which a shell would report this end; never 0.
    pub fn code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code & 0xff,
            Self::Signal(signal) => 128 + signal,
            Self::Stopped => 128 + SIGSTOP,
            Self::Late | Self::Disagreed { .. } => 1,
        };
        u8::try_from(code).ok().filter(|&code| code != 0).unwrap_or(1)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PEER_FAILED => write!(
                formatter,
                "exited with code {PEER_FAILED_EXIT_CODE}, because another rank failed or left the job"
            ),
            Self::Code(0) => formatter.write_str("ended while the other ranks still needed it"),
            Self::Code(code) => write!(formatter, "exited with code {code}"),
            Self::Stopped => formatter.write_str(
                "was stopped, so the others waited in vain (by SIGSTOP, a debugger, or a read from \
                 the terminal?)",
            ),
            Self::Late => formatter.write_str(
                "did not come where the others waited for it, and was ended; see above what it did instead",
            ),
            Self::Disagreed { with: None } => {
                formatter.write_str("called another operation than the others; see above which")
            }
            Self::Disagreed { with: Some(other) } => write!(
                formatter,
                "and rank {other} called different operations, and nobody can tell which of them is right; see \
                 above which"
            ),
            Self::Signal(signal) => {
                write!(
                    formatter,
                    "was killed by signal {signal} ({})",
                    signal_name(signal)
                )?;
                formatter.write_str(match signal {
                    SIGKILL => ", possibly because the host ran out of memory (see dmesg)",
                    SIGBUS => ", possibly because shared memory ran out (see df /dev/shm)",
                    _ => "",
                })
            }
        }
    }
}

impl JobFailure {
    /// Which process it was, and how it ended, in one line.
    pub fn summary(&self) -> String {
        let process = self.process_id.map(|id| format!("process {id}"));
        let host = self.host.as_ref().map(|host| format!("on {host}"));
        let place: Vec<String> = process.into_iter().chain(host).collect();
        let place =
            if place.is_empty() { String::new() } else { format!(" ({})", place.join(" ")) };
        format!("rank {}{place} {}", self.rank, self.exit)
    }
}

impl fmt::Display for JobFailure {
    /// The verdict, and below it the rank's last lines, so that its error is the last thing said.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "root cause: {}", self.summary())?;
        if !self.last_lines.is_empty() {
            write!(formatter, "; its last lines:")?;
        }
        for line in &self.last_lines {
            write!(formatter, "\n  [rank {}] {line}", self.rank)?;
        }
        Ok(())
    }
}

impl std::error::Error for JobFailure {}

/// The end that most likely caused the others.
///
/// The earliest does, with three corrections. A rank that says that it failed because of a peer did not cause
/// anything. A rank killed from outside is the culprit even when it was noticed last: its peers see its connections
/// break before the kernel has taken the process apart. And where all blame a peer, the culprit is one that has not
/// failed itself: it was stopped, or ended, `early`, as if all were done.
pub(crate) fn root_cause(ends: &[BadEnd], early: Option<BadEnd>) -> Option<BadEnd> {
    let first = ends.iter().map(|end| end.at).min()?;
    let early = early.filter(|early| early.at <= first + NOTICE_MAX);
    ends.iter()
        .copied()
        .chain(early)
        .min_by_key(|end| (suspicion(end.exit), end.at, end.local_rank))
}

/// 0 for the most suspect kind of end.
pub(crate) fn suspicion(exit: Exit) -> u8 {
    match exit {
        Exit::Signal(SIGKILL | SIGTERM | SIGINT | SIGHUP | SIGQUIT | SIGXCPU) => 0,
        PEER_FAILED => 4,
        Exit::Code(0) => 3,
        Exit::Stopped | Exit::Late => 2,
        Exit::Signal(_) | Exit::Code(_) | Exit::Disagreed { .. } => 1,
    }
}

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGSTOP: i32 = 19;
const SIGXCPU: i32 = 24;

/// The signals of Linux that end a process; the numbers are the same on all its common machines.
const SIGNAL_NAMES: [(i32, &str); 22] = [
    (SIGHUP, "SIGHUP"),
    (SIGINT, "SIGINT"),
    (SIGQUIT, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (SIGBUS, "SIGBUS"),
    (8, "SIGFPE"),
    (SIGKILL, "SIGKILL"),
    (10, "SIGUSR1"),
    (11, "SIGSEGV"),
    (12, "SIGUSR2"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (SIGTERM, "SIGTERM"),
    (16, "SIGSTKFLT"),
    (SIGXCPU, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (26, "SIGVTALRM"),
    (27, "SIGPROF"),
    (29, "SIGIO"),
    (31, "SIGSYS"),
];

pub(crate) fn signal_name(signal: i32) -> &'static str {
    SIGNAL_NAMES
        .iter()
        .find(|(number, _)| *number == signal)
        .map_or("a real-time signal", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The local rank found guilty among ends 1 ms apart, in order of time.
    fn guilty(exits: &[Exit]) -> usize {
        let start = Instant::now();
        let ends: Vec<BadEnd> = (0_u64..)
            .zip(exits)
            .enumerate()
            .map(|(local_rank, (ms, &exit))| BadEnd {
                local_rank,
                exit,
                at: start + Duration::from_millis(ms),
            })
            .collect();
        root_cause(&ends, None).unwrap().local_rank
    }

    #[test]
    fn the_first_failure_is_the_cause() {
        assert_eq!(guilty(&[Exit::Code(3), Exit::Code(1), Exit::Signal(6)]), 0);
        assert_eq!(guilty(&[Exit::Signal(11), Exit::Code(1)]), 0);
    }

    #[test]
    fn a_killed_rank_is_the_cause_even_when_noticed_last() {
        assert_eq!(guilty(&[Exit::Code(1), Exit::Code(101), Exit::Signal(SIGKILL)]), 2);
    }

    #[test]
    fn a_rank_that_blames_a_peer_is_not_the_cause() {
        assert_eq!(guilty(&[PEER_FAILED, Exit::Code(1), PEER_FAILED]), 1);
        assert_eq!(guilty(&[PEER_FAILED, PEER_FAILED]), 0);
    }

    #[test]
    fn a_stopped_rank_is_the_cause_if_all_others_blame_a_peer() {
        assert_eq!(guilty(&[PEER_FAILED, PEER_FAILED, Exit::Stopped]), 2);
        assert_eq!(guilty(&[PEER_FAILED, Exit::Code(1), Exit::Stopped]), 1);
    }

    #[test]
    fn a_rank_that_ends_too_early_is_the_cause_if_all_others_blame_a_peer() {
        let start = Instant::now();
        let end = |ms, local_rank, exit| BadEnd {
            local_rank,
            exit,
            at: start + Duration::from_millis(ms),
        };
        let blaming = end(1, 0, PEER_FAILED);
        let cause = |ends: &[BadEnd], early| root_cause(ends, Some(early)).unwrap().local_rank;
        assert_eq!(cause(&[blaming], end(0, 3, Exit::Code(0))), 3);
        // Its end may be noticed later, but one that comes much later only heeded the failure.
        assert_eq!(cause(&[blaming], end(20, 3, Exit::Code(0))), 3);
        assert_eq!(cause(&[blaming], end(2_000, 3, Exit::Code(0))), 0);
        let stopped = end(3_000, 2, Exit::Stopped);
        assert_eq!(cause(&[blaming, stopped], end(0, 3, Exit::Code(0))), 2);
        let own = end(2, 1, Exit::Code(5));
        assert_eq!(cause(&[blaming, own], end(0, 3, Exit::Code(0))), 1);
        assert!(root_cause(&[], Some(end(0, 3, Exit::Code(0)))).is_none());
    }

    #[test]
    fn exit_codes_are_those_of_a_shell_and_never_zero() {
        assert_eq!(Exit::Code(3).code(), 3);
        assert_eq!(Exit::Code(256).code(), 1);
        assert_eq!(Exit::Signal(SIGKILL).code(), 137);
        assert_eq!(Exit::Signal(11).code(), 139);
        assert_eq!(Exit::Stopped.code(), 147);
    }

    #[test]
    fn the_report_ends_with_the_rank_s_own_words() {
        let failure = JobFailure {
            rank: Rank::new(2),
            process_id: Some(77),
            host: None,
            exit: Exit::Signal(SIGKILL),
            last_lines: vec!["loading".to_owned(), "error: no data".to_owned()],
        };
        assert_eq!(
            failure.to_string(),
            "root cause: rank 2 (process 77) was killed by signal 9 (SIGKILL), possibly because \
             the host ran out of memory (see dmesg); its last lines:\n  [rank 2] loading\n  \
             [rank 2] error: no data"
        );
    }
}
