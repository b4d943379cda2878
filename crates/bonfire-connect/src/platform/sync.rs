//! Waiting for other threads of the process.

pub use bonfire_sys::lock::{Condvar, Mutex, MutexGuard};
pub use bonfire_sys::{Ticket, Turnstile};
pub use std::sync::mpsc::{SyncSender, sync_channel};
