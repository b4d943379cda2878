//! Files byte by byte, and what is logged.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A safetensors file of tensors with their names, types, shapes and bytes.
pub(crate) fn safetensors(tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let (mut description, mut data) = (BTreeMap::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        let offsets = [start, data.len()];
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
        description.insert(name, entry);
    }
    let description = serde_json::to_vec(&description).unwrap();
    let length = (description.len() as u64).to_le_bytes();
    [&length[..], &description, &data].concat()
}

/// What this thread logs while `work` runs.
pub(crate) fn logged<T>(work: impl FnOnce() -> T) -> (String, T) {
    let lines = Lines::default();
    let done = tracing::subscriber::with_default(lines.clone(), work);
    let lines = lines.0.lock().unwrap().clone();
    (lines, done)
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Visit for Lines {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{value:?}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
