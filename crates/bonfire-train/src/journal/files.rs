//! The files of a run that grow while it trains: lines of JSON and TensorBoard's events.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::{EventWriter, TrainError};

/// What rank 0 writes.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    lines: File,
    events: EventWriter,
}

impl Files {
    /// Makes the folder and the files. A run from its beginning starts a new log, one that goes on at
    /// some step continues it.
    pub(super) fn create(folder: &Path, steps_done: usize) -> Result<Self, TrainError> {
        fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
        let path = folder.join("log.jsonl");
        let anew = steps_done == 0;
        let lines = if anew {
            File::create(&path)
        } else {
            OpenOptions::new().create(true).append(true).open(&path)
        };
        let events = EventWriter::resume(folder, steps_done as u64);
        Ok(Self {
            folder: folder.to_owned(),
            lines: lines.map_err(|source| failed(&path, source))?,
            events: events.map_err(|source| failed(folder, source))?,
        })
    }

    /// Writes values of one step, in one line, so that they are on disk when this returns: a run
    /// that is killed has all of them.
    pub(super) fn write(&mut self, step: usize, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let mut line = Map::new();
        line.insert("step".to_owned(), step.into());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0.0, |since| since.as_secs_f64());
        line.insert("unix_seconds".to_owned(), now.into());
        for &(tag, value) in values {
            // JSON has no infinity and no NaN: they are null.
            line.insert(tag.to_owned(), Value::from(value));
        }
        let line = format!("{}\n", Value::Object(line));
        let lines = self.lines.write_all(line.as_bytes());
        lines.map_err(|source| failed(&self.folder.join("log.jsonl"), source))?;
        let events = values
            .iter()
            .try_for_each(|&(tag, value)| self.events.scalar(tag, step as u64, value))
            .and_then(|()| self.events.flush());
        events.map_err(|source| failed(self.events.path(), source))
    }
}

pub(super) fn failed(path: &Path, source: io::Error) -> TrainError {
    TrainError::Journal {
        path: path.to_owned(),
        source,
    }
}
