//! What handles stand for. A handle that is gone differs from one that is there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::status::Status;

/// Objects by their handles, which are never used twice.
pub(crate) struct Table<T> {
    rows: Mutex<Option<HashMap<usize, Arc<T>>>>,
    /// Separates handles of one table from those of another.
    first: usize,
}

impl<T> Table<T> {
    pub(crate) const fn new(first: usize) -> Self {
        Self { rows: Mutex::new(None), first }
    }

    pub(crate) fn insert(&self, object: T) -> usize {
        static NEXT: Mutex<usize> = Mutex::new(0);
        let mut next = lock(&NEXT);
        *next += 1;
        // Aligned as pointers are.
        let handle = self.first + *next * 16;
        let mut rows = lock(&self.rows);
        rows.get_or_insert_default().insert(handle, Arc::new(object));
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, Status> {
        let rows = lock(&self.rows);
        let found = rows.as_ref().and_then(|rows| rows.get(&handle));
        found.cloned().ok_or(Status::InvalidHandle)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, Status> {
        let mut rows = lock(&self.rows);
        let found = rows.as_mut().and_then(|rows| rows.remove(&handle));
        found.ok_or(Status::InvalidHandle)
    }
}

/// No lock is held where anything may panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
