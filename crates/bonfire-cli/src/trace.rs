//! Files in the Trace Event Format, which chrome://tracing and Perfetto show.
//!
//! Every event is a complete one (`"ph": "X"`) with its times in microseconds, but those that overlap
//! on one thread, which have a beginning and an end (`"b"`, `"e"`).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Debug, Serialize)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) cat: &'static str,
    pub(crate) ph: &'static str,
    pub(crate) pid: u32,
    pub(crate) tid: usize,
    /// The start of the event, in microseconds.
    pub(crate) ts: f64,
    pub(crate) dur: f64,
    pub(crate) args: Value,
}

pub(crate) fn process_name(pid: u32, name: &str) -> Value {
    json!({ "name": "process_name", "ph": "M", "pid": pid, "args": { "name": name } })
}

pub(crate) fn thread_name(pid: u32, tid: usize, name: &str) -> Value {
    json!({ "name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": { "name": name } })
}

/// An event that may overlap with others of its thread; `id` separates it from those of its name.
pub(crate) fn overlapping(event: &Event, id: &str) -> [Value; 2] {
    let (name, cat, pid, tid) = (&event.name, event.cat, event.pid, event.tid);
    [("b", event.ts), ("e", event.ts + event.dur)].map(|(ph, ts)| {
        json!({ "name": name, "cat": cat, "ph": ph, "id": id, "pid": pid, "tid": tid, "ts": ts })
    })
}

pub(crate) fn write(
    path: &Path,
    names: &[Value],
    events: impl Iterator<Item = Event>,
) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        write!(file, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let mut separator = "\n";
        for name in names {
            write!(file, "{separator}{name}")?;
            separator = ",\n";
        }
        for event in events {
            file.write_all(separator.as_bytes())?;
            serde_json::to_writer(&mut file, &event)?;
            separator = ",\n";
        }
        writeln!(file, "\n]}}")?;
        file.flush()
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
