//! SIGINT and SIGTERM as values on a thread, instead of handlers that can do almost nothing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Whether no watch exists, so that the signals do what they do by default. Signal handlers belong
/// to the process, so this does too.
static UNWATCHED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The user or the system asks this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM, as from `kill` or a cluster's scheduler.
    Terminate,
}

impl Interrupt {
    /// The number of the signal.
    pub fn number(self) -> u8 {
        let number = match self {
            Self::Interrupt => SIGINT,
            Self::Terminate => SIGTERM,
        };
        u8::try_from(number).expect("these two signals are small numbers on every system")
    }
}

/// While it lives, SIGINT and SIGTERM do not end the process but are handed to a function, which
/// runs on a thread of its own. Dropped, the signals end the process again.
#[derive(Debug)]
#[must_use = "the signals are watched only while this lives"]
pub struct InterruptWatch {
    unwatched: Arc<AtomicBool>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl InterruptWatch {
    /// Starts to watch. At most one watch may exist at a time.
    pub fn start(on_interrupt: impl FnMut(Interrupt) + Send + 'static) -> io::Result<Self> {
        let unwatched = default_action()?;
        if !unwatched.swap(false, Ordering::SeqCst) {
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the signals of this process are already watched",
            ));
        }
        // From here on dropping the watch, complete or not, gives the signals back.
        let signals = Signals::new([SIGINT, SIGTERM]);
        let signals = signals.inspect_err(|_| unwatched.store(true, Ordering::SeqCst))?;
        let mut watch = Self {
            unwatched,
            handle: signals.handle(),
            thread: None,
        };
        watch.thread = Some(forward(signals, on_interrupt)?);
        Ok(watch)
    }
}

impl Drop for InterruptWatch {
    fn drop(&mut self) {
        self.unwatched.store(true, Ordering::SeqCst);
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic in the function was reported by its thread.
            let _ = thread.join();
        }
    }
}

/// Hands every signal to the function until the watch closes.
fn forward(
    mut signals: Signals,
    mut on_interrupt: impl FnMut(Interrupt) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("bonfire-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                on_interrupt(match signal {
                    SIGINT => Interrupt::Interrupt,
                    _ => Interrupt::Terminate,
                });
            }
        })
}

/// Registers, once per process, the default action of both signals for the time without a watch.
fn default_action() -> io::Result<Arc<AtomicBool>> {
    if let Some(unwatched) = UNWATCHED.get() {
        return Ok(Arc::clone(unwatched));
    }
    let unwatched = Arc::clone(UNWATCHED.get_or_init(|| Arc::new(AtomicBool::new(true))));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&unwatched))?;
    }
    Ok(unwatched)
}
