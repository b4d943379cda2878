//! The store of one process; also the state behind the TCP store's server.

use std::collections::HashMap;
use std::time::Duration;

use super::{Store, StoreError, check_lengths};
use crate::platform::clock;
use crate::platform::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tables {
    values: HashMap<String, Vec<u8>>,
    counters: HashMap<String, i64>,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_lengths(key, value)?;
        self.tables.lock().values.insert(key.to_owned(), value.to_owned());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let started = clock::now();
        let mut tables = self.tables.lock();
        loop {
            if let Some(value) = tables.values.get(key) {
                return Ok(value.clone());
            }
            let waited = clock::since(started);
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(StoreError::Timeout { key: key.to_owned(), waited });
            };
            tables = self.changed.wait_timeout(tables, left);
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64, StoreError> {
        check_lengths(key, &[])?;
        let mut tables = self.tables.lock();
        let counter = tables.counters.entry(key.to_owned()).or_insert(0);
        *counter = counter.wrapping_add(amount);
        Ok(*counter)
    }
}
