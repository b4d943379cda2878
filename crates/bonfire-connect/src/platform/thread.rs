//! Threads with names and owners.

use std::io;

pub use std::thread::{JoinHandle, ScopedJoinHandle, sleep, yield_now};

pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// Threads that end before [`scope`] returns.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'scope, 'env: 'scope>(&'scope std::thread::Scope<'scope, 'env>);

/// Runs `body`, then waits for the threads that it started.
pub fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|scope| body(&Scope(scope)))
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread of the scope.
    ///
    /// # Errors
    /// If the system has none left, as where a container limits their number.
    pub fn spawn<T: Send + 'scope>(
        &self,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        std::thread::Builder::new().spawn_scoped(self.0, body)
    }
}
