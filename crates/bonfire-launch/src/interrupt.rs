//! Ctrl-C, SIGTERM and SIGHUP as a wish to stop, on which all ranks agree.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use bonfire_collective::{
    CollectiveError, Interrupt, InterruptWatch, ProcessGroup, Proposal, Rank,
};

use crate::failure::PEER_FAILED_EXIT_CODE;

/// One Ctrl-C can reach a process twice, through the terminal and through a launcher, and `timeout` sends its
/// SIGTERM to its child and to the child's group. What comes later than this is another.
const ECHO_MAX: Duration = Duration::from_secs(1);

/// Distinguishes a signal that arrived twice from another one.
#[derive(Debug, Default)]
pub(crate) struct Echoes {
    last: Option<Instant>,
}

impl Echoes {
    /// Whether the signal of this moment is an echo of the last one that was not.
    pub(crate) fn contain(&mut self, now: Instant) -> bool {
        let is_echo = self.last.is_some_and(|last| now.saturating_duration_since(last) <= ECHO_MAX);
        if !is_echo {
            self.last = Some(now);
        }
        is_echo
    }
}

/// While it lives, a first SIGINT, SIGTERM or SIGHUP is a wish to stop between two steps, and a second one ends
/// the process at once.
///
/// ```no_run
/// # use bonfire_collective::{CollectiveError, ProcessGroup};
/// # use bonfire_launch::StopRequest;
/// # fn train(group: &ProcessGroup, mut step: impl FnMut(usize)) -> Result<(), CollectiveError> {
/// let request = StopRequest::watch();
/// for index in 0..1000 {
///     if let Some(rank) = request.agreed(group)? {
///         println!("stopped before step {index}: rank {rank} was asked to"); // on all ranks
///         break;
///     }
///     step(index);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the signals are watched only while this lives"]
pub struct StopRequest {
    asked: Arc<AtomicU8>,
    _watch: Option<InterruptWatch>,
}

const NOT_ASKED: u8 = 0;

impl StopRequest {
    /// Starts to watch. Where somebody in this process does already, as another rank that is a
    /// thread of it, this rank learns of the wish from that one, when they agree.
    pub fn watch() -> Self {
        Self::watch_with(|_| {})
    }

    /// As [`watch`](Self::watch), and hands the first signal to `on_first`, on another thread.
    pub fn watch_with(mut on_first: impl FnMut(Interrupt) + Send + 'static) -> Self {
        let asked = Arc::new(AtomicU8::new(NOT_ASKED));
        let noticed = Arc::clone(&asked);
        Self {
            asked,
            _watch: watch_with(move |by| {
                // Only a flag: what it says is not shared with other memory.
                noticed.store(by.number(), Ordering::Relaxed);
                on_first(by);
            }),
        }
    }

    /// A wish that nobody has: this rank only learns of those of the others. Signals are not watched.
    pub fn never() -> Self {
        Self { asked: Arc::new(AtomicU8::new(NOT_ASKED)), _watch: None }
    }

    /// Whether this process was asked.
    pub fn is_made(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != NOT_ASKED
    }

    /// The exit code of a process that was asked to stop, as a shell reports it. A rank that stops because of another
    /// has [`PEER_FAILED_EXIT_CODE`], so that its launcher ends with the code of the one that was asked.
    pub fn exit_code(&self) -> u8 {
        match self.asked.load(Ordering::Relaxed) {
            NOT_ASKED => PEER_FAILED_EXIT_CODE,
            signal => code(signal),
        }
    }

    /// The lowest rank that was asked to stop, if any was. All ranks call it between the same two steps and
    /// get the same answer. It costs an [`agree`](bonfire_collective::ProcessGroup::agree).
    #[track_caller]
    pub fn agreed(
        &self,
        group: &impl AsRef<ProcessGroup>,
    ) -> Result<Option<Rank>, CollectiveError> {
        let proposal = Proposal { stop: self.is_made(), ..Proposal::default() };
        Ok(group.as_ref().agree(proposal)?.stop)
    }
}

/// Hands the first signal to a function, and ends the process at the second. Nothing if somebody else watches.
fn watch_with(mut on_first: impl FnMut(Interrupt) + Send + 'static) -> Option<InterruptWatch> {
    let (mut echoes, mut is_first) = (Echoes::default(), true);
    let watch = InterruptWatch::start(move |by| {
        if echoes.contain(Instant::now()) {
            return;
        }
        if !std::mem::take(&mut is_first) {
            std::process::exit(code(by.number()).into());
        }
        on_first(by);
    });
    watch
        .inspect_err(|error| {
            if error.kind() != io::ErrorKind::ResourceBusy {
                tracing::warn!("Ctrl-C will not be an orderly stop: {error}");
            }
        })
        .ok()
}

fn code(signal: u8) -> u8 {
    128 + signal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_arrives_twice_is_one_signal() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut echoes = Echoes::default();
        let heard = [0, 5, 1000, 1001, 1500, 2002].map(|ms| echoes.contain(at(ms)));
        assert_eq!(heard, [false, true, true, false, true, false]);
    }
}
