//! The files of a run that grow while it trains: lines of JSON and TensorBoard's events.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::run_folder::{RunFolder, set_aside};
use crate::error::unwritable;
use crate::tensorboard::unix_seconds;
use crate::{EventWriter, ReportError};

/// The files of rank 0, made with the first values: a run that ends before leaves nothing behind.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    is_new: bool,
    steps_done: u64,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    lines: File,
    events: EventWriter,
}

impl Files {
    /// Checks that the folder is writable. A run from its beginning starts a new log, one that continues appends.
    pub(super) fn new(folder: &RunFolder, steps_done: u64) -> Result<Self, ReportError> {
        Ok(Self {
            is_new: matches!(folder, RunFolder::New { .. }),
            folder: folder.claim(SystemTime::now())?,
            steps_done,
            open: None,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes values of one step, in one line, so that they are on disk when this returns: a run
    /// that is killed has all of them.
    pub(super) fn write(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), ReportError> {
        let mut line = Map::new();
        line.insert("step".to_owned(), step.into());
        line.insert("unix_seconds".to_owned(), unix_seconds().into());
        for &(tag, value) in values {
            // JSON has no infinity and no NaN: they are null.
            line.insert(tag.to_owned(), Value::from(value));
        }
        let line = format!("{}\n", Value::Object(line));
        let path = self.folder.join("log.jsonl");
        let Open { lines, events } = match &mut self.open {
            Some(open) => open,
            closed => closed.insert(open(&self.folder, &path, self.steps_done)?),
        };
        let lines = lines.write_all(line.as_bytes());
        lines.map_err(|source| unwritable(&path, source))?;
        let mut values = values.iter();
        let written = values.try_for_each(|&(tag, value)| events.scalar(tag, step, value));
        let written = written.and_then(|()| events.flush());
        written.map_err(|source| unwritable(events.path(), source))
    }
}

impl Drop for Files {
    /// A run that ends before its first values leaves nothing behind. A folder with anything in it stays.
    fn drop(&mut self) {
        if self.is_new && self.open.is_none() {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

fn open(folder: &Path, lines: &Path, steps_done: u64) -> Result<Open, ReportError> {
    fs::create_dir_all(folder).map_err(|source| unwritable(folder, source))?;
    if steps_done == 0 {
        set_aside(folder).map_err(|source| unwritable(folder, source))?;
    }
    let file = OpenOptions::new().create(true).append(true).open(lines);
    // What the steps that are done have left, TensorBoard shall keep.
    let next = steps_done + u64::from(steps_done > 0);
    let events = EventWriter::resume(folder, next);
    Ok(Open {
        lines: file.map_err(|source| unwritable(lines, source))?,
        events: events.map_err(|source| unwritable(folder, source))?,
    })
}
