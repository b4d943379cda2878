//! The lock of a folder: one training saves there at a time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::files::{io, is_taken, open};
use crate::CheckpointError;

const NAME: &str = ".lock";

/// A process that only looks for the holder has the lock for a moment.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

/// Held while it lives. The system takes it back from a process that was killed.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, and writes this process's name into it.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`], [`CheckpointError::Io`].
    pub(super) fn take(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(NAME);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        if is_taken(&path) {
            open(&path).map_err(io("open", &path))?;
        }
        let mut file = options.open(&path).map_err(io("make", &path))?;
        let mut attempts = 0..ATTEMPTS;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => match attempts.next() {
                    Some(_) => thread::sleep(PAUSE),
                    None => {
                        return Err(CheckpointError::InUse {
                            folder: folder.to_owned(),
                            by: said(&mut file),
                        });
                    }
                },
                Err(TryLockError::Error(error)) => {
                    tracing::debug!(%error, "this file system has no locks");
                    break;
                }
            }
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let word = format!("process {} on {}\n", std::process::id(), host.trim());
        // Only the error of another job reads it. If the disk is full, the save itself fails.
        let _ = file.set_len(0).and_then(|()| file.write_all(word.as_bytes()));
        Ok(Self { _file: file })
    }

    pub(super) fn holder(folder: &Path) -> Option<String> {
        let mut file = open(&folder.join(NAME)).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Some(said(&mut file)),
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }
}

fn said(file: &mut File) -> String {
    let mut word = String::new();
    match file.read_to_string(&mut word) {
        Ok(length) if length > 0 => word.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}
