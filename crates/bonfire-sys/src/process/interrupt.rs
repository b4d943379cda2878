//! SIGINT, SIGTERM, SIGHUP and SIGTSTP as values on a thread, instead of handlers that can do almost nothing.
//!
//! A signal that the parent process set to be ignored stays ignored where that is a wish: SIGHUP,
//! as `nohup` sets it, and SIGTSTP, as shells without job control set it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGSTOP, SIGTERM, SIGTSTP};

use super::ProcessStat;
use super::request::{SignalThread, action};

/// Signal handlers belong to the process, so what is known of them does too.
static ENDS: OnceLock<Usual> = OnceLock::new();
static STOPS: OnceLock<Usual> = OnceLock::new();

/// What signals of one kind do while nobody watches.
struct Usual {
    signals: Vec<i32>,
    /// Whether no watch exists, so that the signals do what they do by default.
    is_unwatched: Arc<AtomicBool>,
}

/// The user or the system asks this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// SIGINT, as Ctrl-C in a terminal sends.
    Interrupt,
    /// SIGTERM, as from `kill` or a cluster's scheduler.
    Terminate,
    /// SIGHUP, as from a terminal that is closed or a connection that is lost.
    Hangup,
}

impl fmt::Display for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        })
    }
}

impl Interrupt {
    pub fn number(self) -> u8 {
        let number = match self {
            Self::Interrupt => SIGINT,
            Self::Terminate => SIGTERM,
            Self::Hangup => SIGHUP,
        };
        u8::try_from(number).expect("these signals are small numbers on every system")
    }
}

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the process but are handed to a function, which
/// runs on a thread of its own. Dropped, the signals end the process again.
#[derive(Debug)]
#[must_use = "the signals are watched only while this lives"]
pub struct InterruptWatch {
    _watch: Watch,
}

impl InterruptWatch {
    /// Starts to watch. At most one watch may exist at a time.
    pub fn start(mut on_interrupt: impl FnMut(Interrupt) + Send + 'static) -> io::Result<Self> {
        let usual = usual_action(&ENDS, &[SIGINT, SIGTERM, SIGHUP], &[SIGHUP])?;
        let on_signal = move |signal| {
            on_interrupt(match signal {
                SIGINT => Interrupt::Interrupt,
                SIGHUP => Interrupt::Hangup,
                _ => Interrupt::Terminate,
            });
        };
        let _watch = Watch::start("bonfire-signals", usual, on_signal)?;
        Ok(Self { _watch })
    }
}

/// While it lives, SIGTSTP, which is Ctrl-Z in a terminal, does not stop the process but is handed to a
/// function, which runs on a thread of its own. Dropped, the signal stops the process again.
#[derive(Debug)]
#[must_use = "the signal is watched only while this lives"]
pub struct StopWatch {
    _watch: Watch,
}

impl StopWatch {
    /// Starts to watch. At most one watch may exist at a time.
    pub fn start(mut on_stop: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let usual = usual_action(&STOPS, &[SIGTSTP], &[SIGTSTP])?;
        let _watch = Watch::start("bonfire-stops", usual, move |_| on_stop())?;
        Ok(Self { _watch })
    }
}

/// Returns true if no process of this session is there to continue this one once it is stopped. The kernel then discards
/// SIGTSTP where it has its usual action.
pub fn is_orphaned() -> bool {
    let Some(own) = ProcessStat::read(std::process::id()) else {
        return true;
    };
    let mut parent = own.parent;
    while let Some(stat) = ProcessStat::read(parent) {
        if stat.session != own.session {
            return true;
        }
        if stat.group != own.group {
            return false;
        }
        // What wraps this process, such as `timeout`, is stopped with it.
        parent = stat.parent;
    }
    true
}

/// Stops this process, and returns once it is continued.
pub fn stop_this_process() -> io::Result<()> {
    signal_hook::low_level::raise(SIGSTOP)
}

#[derive(Debug)]
struct Watch {
    is_unwatched: Arc<AtomicBool>,
    _thread: SignalThread,
}

impl Watch {
    fn start(
        name: &str,
        usual: &Usual,
        on_signal: impl FnMut(i32) + Send + 'static,
    ) -> io::Result<Self> {
        let is_unwatched = Arc::clone(&usual.is_unwatched);
        if !is_unwatched.swap(false, Ordering::SeqCst) {
            let text = "the signals of this process are already watched";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        let thread = SignalThread::start(name, &usual.signals, on_signal);
        let _thread = thread.inspect_err(|_| is_unwatched.store(true, Ordering::SeqCst))?;
        Ok(Self { is_unwatched, _thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_unwatched.store(true, Ordering::SeqCst);
    }
}

/// Registers, once per process, the default action of signals for the time without a watch. Of `optional`
/// ones not, if they are ignored.
fn usual_action(
    place: &'static OnceLock<Usual>,
    signals: &[i32],
    optional: &[i32],
) -> io::Result<&'static Usual> {
    if let Some(usual) = place.get() {
        return Ok(usual);
    }
    let mut watched = Vec::with_capacity(signals.len());
    for &signal in signals {
        if !optional.contains(&signal) || action(signal)? != libc::SIG_IGN {
            watched.push(signal);
        }
    }
    let new = || Usual { signals: watched, is_unwatched: Arc::new(AtomicBool::new(true)) };
    let usual = place.get_or_init(new);
    for &signal in &usual.signals {
        let is_unwatched = Arc::clone(&usual.is_unwatched);
        signal_hook::flag::register_conditional_default(signal, is_unwatched)?;
    }
    Ok(usual)
}
