//! Waiting for other threads of the process.

pub(crate) use std::sync::mpsc::{SyncSender, sync_channel};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

pub(crate) use bonfire_sys::{Ticket, Turnstile};
