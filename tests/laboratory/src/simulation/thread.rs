//! Threads of the simulation: real ones, of which one runs at a time.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::simulation::place::{Killed, Look, Place, here, set_here};
use crate::task::Key;

#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: std::thread::JoinHandle<T>,
    task: usize,
}

impl<T> JoinHandle<T> {
    /// Waits until it has ended.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> std::thread::Result<T> {
        await_end(&[self.task]);
        self.thread.join()
    }
}

#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    thread: std::thread::ScopedJoinHandle<'scope, T>,
    task: usize,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits until it has ended.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> std::thread::Result<T> {
        await_end(&[self.task]);
        self.thread.join()
    }

    pub fn is_finished(&self) -> bool {
        here().lock().tasks[self.task].is_done()
    }
}

/// Starts a thread.
///
/// # Errors
/// If the system has none left.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let place = new_place(name);
    let task = place.task;
    let thread = std::thread::Builder::new().name(name.to_owned());
    let thread = thread.spawn(move || start(place, body))?;
    Ok(JoinHandle { thread, task })
}

#[derive(Clone, Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    threads: &'scope std::thread::Scope<'scope, 'env>,
    tasks: Arc<Mutex<Vec<usize>>>,
}

/// Runs `body`, then waits for the threads that it started.
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|threads| {
        let scope = Scope { threads, tasks: Arc::default() };
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        let tasks = scope.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        await_end(&tasks);
        match result {
            Ok(value) => {
                // Not from threads that ended so, which would be reported as panics.
                here().check();
                value
            }
            Err(panic) => resume_unwind(panic),
        }
    })
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread of the scope.
    ///
    /// # Errors
    /// None here: the simulation has as many as are asked for.
    pub fn spawn<T: Send + 'scope>(
        &self,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        let place = new_place("scoped");
        let task = place.task;
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push(task);
        let thread = self.threads.spawn(move || start(place, body));
        Ok(ScopedJoinHandle { thread, task })
    }
}

pub fn sleep(span: Duration) {
    let _ = here().wait::<()>(Some(span), |_| Look::Wait(Vec::new()));
}

pub fn yield_now() {
    here().yield_now();
}

/// Runs the body of a thread at its place, from its first turn to its end.
pub(crate) fn start<T>(place: Place, body: impl FnOnce() -> T) -> T {
    set_here(Some(place.clone()));
    place.await_turn(place.lock());
    let result = catch_unwind(AssertUnwindSafe(body));
    let panic = result.as_ref().err().and_then(|panic| text_of(&**panic));
    place.finish(panic);
    set_here(None);
    match result {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

/// What a panic said; nothing if it only ends the thread of a process that was killed.
fn text_of(panic: &(dyn Any + Send)) -> Option<String> {
    if panic.is::<Killed>() {
        return None;
    }
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Some(text.unwrap_or_else(|| "a panic without words".to_owned()))
}

fn new_place(name: &str) -> Place {
    let place = here();
    place.check();
    let task = place.lock().add_task(name, place.process, false);
    Place { task, ..place }
}

/// Waits until these threads have ended, which those of a dead process do, too.
fn await_end(tasks: &[usize]) {
    for task in tasks {
        here().wait_to_the_end(|state| {
            if state.tasks[*task].is_done() {
                Look::Done(())
            } else {
                Look::Wait(vec![Key::Task(*task)])
            }
        });
    }
}
