//! Waiting for other threads of the process.

pub use std::sync::mpsc::{SyncSender, sync_channel};
pub use std::sync::{Condvar, Mutex, MutexGuard};

pub use bonfire_sys::{Ticket, Turnstile};
