//! Measures the limits of the machine, to print beside an all-reduce of two ranks: one JSON object.
//!
//! `limits in-place-sum --bytes 16777216 --rotate-bytes 201326592`. The time is that of the median
//! round, as the time of `bonfire bench` is that of the median operation.

#![forbid(unsafe_code)]

use anyhow::ensure;
use bonfire_testkit::limits::{Rotation, in_place_sum, loopback_duplex, streamed_sum};
use clap::{Parser, ValueEnum};

#[derive(Debug, Parser)]
struct Args {
    /// Which limit
    limit: Which,

    /// Size of the message
    #[arg(long)]
    bytes: usize,

    /// Memory through which the buffers of each rank rotate
    #[arg(long, default_value_t = Rotation::default().bytes)]
    rotate_bytes: usize,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// Two threads add two buffers in place without a copy
    InPlaceSum,
    /// The same with the sums written to other buffers by streaming stores
    StreamedSum,
    /// Two threads exchange the message over loopback TCP, both ways at once, without sleeping
    LoopbackDuplex,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.bytes >= 8, "--bytes {} is less than two elements", args.bytes);
    let rotation = Rotation { bytes: args.rotate_bytes };
    let limit = match args.limit {
        Which::InPlaceSum => in_place_sum(args.bytes, rotation),
        Which::StreamedSum => streamed_sum(args.bytes, rotation),
        Which::LoopbackDuplex => loopback_duplex(args.bytes, rotation),
    };
    let time_us = |gb_per_s: f64| args.bytes as f64 / gb_per_s / 1e3;
    println!(
        r#"{{"time_us": {:.4}, "min_us": {:.4}}}"#,
        time_us(limit.median),
        time_us(limit.best)
    );
    Ok(())
}
