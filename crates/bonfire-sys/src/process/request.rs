//! SIGUSR1 as a value on a thread: a request to a running process to say what it does.
//!
//! The signal's own handler only wakes that thread. It is installed only where the program has not
//! arranged for the signal itself, and a handler that the program installs later takes its place.

use crate::lock::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::{Handle, Signals};

/// Who watches for the signal in this process. Signal handlers belong to the process, so this does too.
static WATCHERS: Mutex<Watchers> = Mutex::new(Watchers { count: 0, unwatched: None });

struct Watchers {
    count: usize,
    /// Whether the signal does what it does by default: it does while nobody watches. Nothing before the first watch.
    unwatched: Option<Arc<AtomicBool>>,
}

/// While it lives, SIGUSR1 does not end the process but is handed to a function, which runs on a thread
/// of its own. Any number may exist; each sees every signal.
#[derive(Debug)]
#[must_use = "the signal is watched only while this lives"]
pub struct RequestWatch {
    _thread: SignalThread,
}

impl RequestWatch {
    /// Starts to watch; `None` if the program handles or ignores the signal itself.
    ///
    /// # Errors
    /// If the system has no descriptor or thread left.
    pub fn start(mut on_request: impl FnMut() + Send + 'static) -> io::Result<Option<Self>> {
        let mut watchers = WATCHERS.lock();
        let unwatched = match &watchers.unwatched {
            Some(unwatched) => Arc::clone(unwatched),
            // The program has left the signal alone so far.
            None if action(SIGUSR1)? == libc::SIG_DFL => {
                let unwatched = Arc::new(AtomicBool::new(true));
                let flag = Arc::clone(&unwatched);
                signal_hook::flag::register_conditional_default(SIGUSR1, flag)?;
                watchers.unwatched = Some(Arc::clone(&unwatched));
                unwatched
            }
            None => return Ok(None),
        };
        let _thread = SignalThread::start("bonfire-request", &[SIGUSR1], move |_| on_request())?;
        watchers.count += 1;
        unwatched.store(false, Ordering::SeqCst);
        Ok(Some(Self { _thread }))
    }
}

impl Drop for RequestWatch {
    fn drop(&mut self) {
        let mut watchers = WATCHERS.lock();
        watchers.count -= 1;
        if watchers.count == 0
            && let Some(unwatched) = &watchers.unwatched
        {
            unwatched.store(true, Ordering::SeqCst);
        }
    }
}

/// A thread that is handed signals. Dropped, it ends.
#[derive(Debug)]
pub(super) struct SignalThread {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalThread {
    pub(super) fn start(
        name: &str,
        signals: &[i32],
        mut on_signal: impl FnMut(i32) + Send + 'static,
    ) -> io::Result<Self> {
        let mut signals = Signals::new(signals)?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || signals.forever().for_each(&mut on_signal))?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic in the function was reported by its thread.
            let _ = thread.join();
        }
    }
}

/// What a signal does at present: a function of the program's, or one of the system's marks.
pub(super) fn action(signal: i32) -> io::Result<libc::sighandler_t> {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) with a null new action changes nothing and writes the present action to the
    // third argument, which is valid for writes of one `sigaction` and owned by this function.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned success, so it has written the whole structure.
    let action = unsafe { action.assume_init() };
    Ok(action.sa_sigaction)
}
