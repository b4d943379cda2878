//! Ends a process whose thread waits for itself within a call of [`Ddp`](crate::Ddp): for a lock that it holds, or a
//! channel without a sender.
//!
//! Operations have deadlines, but only while a rank is in one. A separate thread therefore checks, once a second, if
//! the process computes at all while such a call runs. After two of the group's timeouts without any it aborts the
//! other ranks, leaves flight records, and ends the process: the thread that stands still cannot be ended alone.
//!
//! Must never end a rank that computes, however slowly, that reads a disk, or that was stopped by a signal.

use std::fs;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bonfire_collective::ProcessGroup;

/// Time between two checks. A process that is stopped, or held by a debugger, does not check either.
const LOOK: Duration = Duration::from_secs(1);

/// Ticks of 10 ms per check that are not computation: heartbeats take some.
const IDLE_TICKS_MAX: u64 = 1;

/// Timeouts of the group until the process is ended. A rank may wait for a slow one in several operations of a call,
/// each of which ends by its own deadline with a better message.
const TIMEOUTS: u32 = 2;

#[derive(Clone, Debug)]
struct Call {
    number: u64,
    name: &'static str,
    step: u64,
    call_site: &'static Location<'static>,
    group: ProcessGroup,
}

#[derive(Debug, Default)]
struct State {
    call: Option<Call>,
    calls: u64,
    is_over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    is_over: Condvar,
}

/// Checks that this process makes progress in calls: see the module.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Watched {
    shared: Arc<Shared>,
    before: Option<Call>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shared.lock().call = self.before.take();
    }
}

impl Watchdog {
    /// Starts the watchdog for ranks that may wait for each other; without it if no thread can be spawned, which is
    /// not a reason to end a training.
    pub(crate) fn new(group: &ProcessGroup) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = (group.world_size().get() > 1).then(|| {
            let shared = Arc::clone(&shared);
            let name = format!("bonfire-dog-{}", group.rank());
            let thread = std::thread::Builder::new().name(name);
            thread.spawn(move || shared.watch()).ok()
        });
        Self { shared, thread: thread.flatten() }
    }

    #[track_caller]
    pub(crate) fn watch(&self, name: &'static str, step: u64, group: &ProcessGroup) -> Watched {
        let mut state = self.shared.lock();
        state.calls += 1;
        let call = Call {
            number: state.calls,
            name,
            step,
            call_site: Location::caller(),
            group: group.clone(),
        };
        let before = state.call.replace(call);
        drop(state);
        Watched { shared: Arc::clone(&self.shared), before }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.is_over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        let (mut number, mut idle, mut ticks) = (0, Duration::ZERO, ticks());
        loop {
            let waited = self.is_over.wait_timeout_while(self.lock(), LOOK, |state| !state.is_over);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_over {
                return;
            }
            let call = state.call.clone();
            drop(state);
            let before = std::mem::replace(&mut ticks, self::ticks());
            let Some(call) = call else {
                continue;
            };
            if call.number != number || computes(before, ticks) {
                (number, idle) = (call.number, Duration::ZERO);
                continue;
            }
            idle += LOOK;
            if idle >= call.group.timeout() * TIMEOUTS {
                end(&call, idle);
            }
        }
    }
}

/// Returns true if the process is not merely waiting, by its ticks `before` and `now`; also if they are unknown.
fn computes(before: Option<u64>, now: Option<u64>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => now > before + IDLE_TICKS_MAX || waits_for_a_disk(),
        _ => true,
    }
}

fn ticks() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // Its name, which may hold anything, ends with the last of these.
    let (_, fields) = text.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn waits_for_a_disk() -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return false;
    };
    threads.flatten().any(|thread| {
        let text = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        text.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('D'))
    })
}

fn end(call: &Call, idle: Duration) -> ! {
    let Call { name, step, call_site, group, .. } = call;
    let cause = format!(
        "{name} of step {step}, called at {}:{}, has made no progress for {} s: no thread of its process computes, \
         and it waits for no rank; it may wait for a lock that it has itself",
        call_site.file(),
        call_site.line(),
        idle.as_secs()
    );
    group.abort(&cause);
    tracing::error!(target: "bonfire", "rank {}: {cause}", group.rank());
    // Without a subscriber for the line above, this shows why the process ends.
    eprintln!("rank {}: {cause}", group.rank());
    std::process::exit(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_is_seen_to() {
        let before = ticks();
        assert!(before.is_some());
        let mut sum = 0_u64;
        while ticks() <= before.map(|before| before + IDLE_TICKS_MAX) {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(computes(before, ticks()), "{sum}");
        assert!(computes(None, None), "nobody knows");
    }
}
