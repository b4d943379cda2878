//! Flight records as a trace: a group is a process, its ranks are threads.
//!
//! Hosts are brought together by their clocks, so between hosts the order is as good as those are set.

use std::path::Path;
use std::time::Duration;

use bonfire_collective::{FlightOperation, FlightRecord};
use serde_json::{Value, json};

use crate::trace::{self, Event};

pub(super) fn write(path: &Path, records: &[FlightRecord]) -> anyhow::Result<()> {
    let began = records.iter().flat_map(|record| {
        let operations = record.operations.iter();
        operations.map(|operation| began(record, operation).saturating_sub(operation.queued()))
    });
    let origin = began.min().unwrap_or_default();
    let events = records.iter().flat_map(|record| {
        let operations = record.operations.iter().rev();
        operations.map(move |operation| event(record, operation, origin))
    });
    let mut others = names(records);
    for record in records {
        for (place, operation) in record.operations.iter().enumerate() {
            if !operation.queued().is_zero() {
                let id = format!("{}-{}-{place}", record.group, record.rank);
                let queued = queued(record, operation, origin);
                others.extend(trace::overlapping(&queued, &id));
            }
        }
    }
    trace::write(path, &others, events)
}

fn began(record: &FlightRecord, operation: &FlightOperation) -> Duration {
    record.written.saturating_sub(operation.started_ago)
}

fn names(records: &[FlightRecord]) -> Vec<Value> {
    let mut names = Vec::new();
    for ranks in records.chunk_by(|one, other| one.group == other.group) {
        let group = ranks[0].group;
        names.push(trace::process_name(group, &format!("group {group}")));
        for record in ranks {
            let name = if record.rank == record.job_rank {
                format!("rank {}", record.rank)
            } else {
                format!("rank {} (rank {} of the job)", record.rank, record.job_rank)
            };
            names.push(trace::thread_name(group, record.rank.index(), &name));
        }
    }
    names
}

fn queued(record: &FlightRecord, operation: &FlightOperation, origin: Duration) -> Event {
    let running = event(record, operation, origin);
    let dur = operation.queued().as_secs_f64() * 1e6;
    Event {
        name: format!("queued: {}", running.name),
        cat: "queued",
        ts: running.ts - dur,
        dur,
        ..running
    }
}

/// An operation that has not ended lasts until the record was written.
fn event(record: &FlightRecord, operation: &FlightOperation, origin: Duration) -> Event {
    let ended_ago = operation.ended_ago.unwrap_or_default();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    Event {
        name: match &operation.name {
            Some(name) => format!("{} {name}", operation.operation.collective.name()),
            None => operation.operation.collective.name().to_owned(),
        },
        cat: operation.ended_ago.map_or("pending", |_| "ended"),
        ph: "X",
        pid: record.group,
        tid: record.rank.index(),
        ts: micros(began(record, operation).saturating_sub(origin)),
        dur: micros(operation.started_ago.saturating_sub(ended_ago)),
        args: json!({
            "operation": operation.operation.to_string(),
            "bytes": operation.bytes(),
        }),
    }
}
