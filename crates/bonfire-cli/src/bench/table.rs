//! The table of nccl-tests, printed by rank 0, and the same rows as JSON.

use std::path::Path;

use anyhow::Context;
use bonfire_collective::{ProcessGroup, Rank, TransportKind};
use serde::Serialize;

use super::measure::Row;

/// One row as written to the JSON file.
#[derive(Debug, Serialize)]
struct Record {
    operation: &'static str,
    transport: &'static str,
    ranks: u32,
    size_bytes: usize,
    count: usize,
    dtype: String,
    redop: String,
    time_us: f64,
    /// GB/s, 10^9 bytes.
    algbw: f64,
    /// GB/s, 10^9 bytes.
    busbw: f64,
    wrong: u64,
}

pub(super) struct Table {
    rank: Rank,
    ranks: u32,
    transport: TransportKind,
    records: Vec<Record>,
}

impl Table {
    pub(super) fn new(group: &ProcessGroup, transport: TransportKind, iters: u32) -> Self {
        let ranks = group.world_size().get();
        let table = Self {
            rank: group.rank(),
            ranks,
            transport,
            records: Vec::new(),
        };
        table.print(format!(
            "# all_reduce in place, {ranks} ranks over {transport}, {iters} iterations"
        ));
        table.print(columns([
            "size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong",
        ]));
        table.print(columns([
            "(B)",
            "(elements)",
            "",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
        ]));
        table
    }

    pub(super) fn add(&mut self, row: Row) {
        let algbw = row.bytes as f64 / row.time.as_secs_f64().max(f64::MIN_POSITIVE) / 1e9;
        // Bytes that cross each link of a bandwidth-optimal all-reduce, per byte of message.
        let crossings = 2.0 * f64::from(self.ranks - 1) / f64::from(self.ranks);
        let record = Record {
            operation: "all_reduce",
            transport: self.transport.name(),
            ranks: self.ranks,
            size_bytes: row.bytes,
            count: row.count,
            dtype: row.dtype.to_string(),
            redop: row.redop.to_string(),
            time_us: row.time.as_secs_f64() * 1e6,
            algbw,
            busbw: algbw * crossings,
            wrong: row.wrong,
        };
        self.print(columns([
            &record.size_bytes.to_string(),
            &record.count.to_string(),
            &record.dtype,
            &record.redop,
            &format!("{:.2}", record.time_us),
            &format!("{:.3}", record.algbw),
            &format!("{:.3}", record.busbw),
            &record.wrong.to_string(),
        ]));
        self.records.push(record);
    }

    /// Writes the file, if one is wanted; the number of wrong elements in all rows.
    pub(super) fn finish(self, json: Option<&Path>) -> anyhow::Result<u64> {
        let busbw: f64 = self.records.iter().map(|record| record.busbw).sum();
        let rows = self.records.len().max(1) as f64;
        self.print(format!("# average busbw {:.3} GB/s", busbw / rows));
        if let (Some(path), 0) = (json, self.rank.get()) {
            let text = serde_json::to_string_pretty(&self.records)?;
            std::fs::write(path, text + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(self.records.iter().map(|record| record.wrong).sum())
    }

    fn print(&self, line: String) {
        if self.rank.get() == 0 {
            println!("{line}");
        }
    }
}

fn columns(cells: [&str; 8]) -> String {
    let [size, count, dtype, redop, time, algbw, busbw, wrong] = cells;
    format!(
        "{size:>12} {count:>12} {dtype:>6} {redop:>6} {time:>11} {algbw:>8} {busbw:>8} {wrong:>7}"
    )
}
