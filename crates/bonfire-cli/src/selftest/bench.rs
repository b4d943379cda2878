//! Times of all-reduces beside the limit that the memory sets.
//!
//! R ranks that share one device read and write its one memory: an in-place all-reduce of S bytes per rank
//! moves at least 2RS bytes, so algbw cannot exceed copy bandwidth / (2R), where the copy bandwidth counts
//! bytes read and bytes written. On a device each the limit is another one.

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::cuda::{
    Context, CudaAlgorithm, CudaBuffer, CudaGroup, CudaGroupError, CudaOptions, CudaSync, Elements,
    Event, NcclGroup, Stream,
};
use bonfire_collective::{DType, ProcessGroup, ReduceOp};

use super::SelftestArgs;
use super::ranks::on_threads;

/// The largest message.
const BYTES_MAX: usize = 256 << 20;

/// Repetitions of a measurement; the median counts.
const REPEATS: usize = 5;

/// How one size is measured.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) label: String,
    pub(super) algorithm: Option<CudaAlgorithm>,
    pub(super) options: CudaOptions,
}

impl Way {
    fn new(label: &str, algorithm: Option<CudaAlgorithm>, options: CudaOptions) -> Self {
        Self {
            label: label.to_owned(),
            algorithm,
            options,
        }
    }
}

/// 1 KB to 256 MB.
pub(super) fn sizes(quick: bool) -> Vec<usize> {
    if quick {
        return vec![1 << 10, 64 << 10, 1 << 20, 64 << 20, BYTES_MAX];
    }
    [10, 12, 14, 16, 18, 19, 20, 22, 24, 26, 28]
        .map(|shift| 1 << shift)
        .to_vec()
}

pub(super) fn table(args: &SelftestArgs) -> anyhow::Result<()> {
    let copy = copy_bandwidth()?;
    header(copy);
    for &ranks in &args.ranks {
        let auto = Way::new("auto", None, CudaOptions::default());
        measure(ranks, &auto, &sizes(args.quick), copy)?;
        let ring = Way::new("ring", Some(CudaAlgorithm::Ring), CudaOptions::default());
        measure(ranks, &ring, &[16 << 20, BYTES_MAX], copy)?;
    }
    Ok(())
}

/// Every way to do it, to choose between them.
pub(super) fn sweep(args: &SelftestArgs) -> anyhow::Result<()> {
    let copy = copy_bandwidth()?;
    header(copy);
    let base = CudaOptions::default;
    let in_streams = || CudaOptions {
        sync: Some(CudaSync::Stream),
        ..base()
    };
    for &ranks in &args.ranks {
        let one_shot = CudaOptions {
            one_shot_bytes_max: 4 << 20,
            ..base()
        };
        let way = Way::new("one-shot", Some(CudaAlgorithm::OneShot), one_shot);
        let small = [
            1 << 10,
            16 << 10,
            64 << 10,
            256 << 10,
            512 << 10,
            1 << 20,
            4 << 20,
        ];
        measure(ranks, &way, &small, copy)?;
        let mixed = [
            1 << 10,
            64 << 10,
            256 << 10,
            512 << 10,
            1 << 20,
            4 << 20,
            16 << 20,
            256 << 20,
        ];
        let direct = Some(CudaAlgorithm::Direct);
        measure(
            ranks,
            &Way::new("direct, kernel barriers", direct, base()),
            &mixed,
            copy,
        )?;
        measure(
            ranks,
            &Way::new("direct, stream barriers", direct, in_streams()),
            &mixed,
            copy,
        )?;
        for blocks in [1, 4] {
            let options = CudaOptions {
                blocks_per_multiprocessor: blocks,
                ..base()
            };
            let label = format!("direct, {blocks} blocks per multiprocessor");
            measure(
                ranks,
                &Way::new(&label, direct, options),
                &[64 << 20, 256 << 20],
                copy,
            )?;
        }
        for channels in [1, 2, 4, 8] {
            let options = CudaOptions {
                ring_channels: channels,
                ..base()
            };
            let way = Way::new(
                &format!("ring, {channels} channels"),
                Some(CudaAlgorithm::Ring),
                options,
            );
            measure(ranks, &way, &[64 << 20, 256 << 20], copy)?;
        }
    }
    Ok(())
}

fn header(copy: f64) {
    println!("copy of device memory: {copy:.0} GB/s read and written");
    println!(
        "{:>5} {:<34} {:>11} {:>10} {:>10} {:>10} {:>9}",
        "ranks", "algorithm", "bytes", "time us", "GB/s", "limit", "of limit"
    );
}

/// The bytes that an algorithm must move through the memory of one shared device, per byte of message.
fn traffic(way: &Way, ranks: u32) -> f64 {
    let ranks = f64::from(ranks);
    match way.algorithm {
        // Each of R - 1 rounds of the reduce-scatter reads two and writes one shard per rank, each round of
        // the all-gather reads and writes one.
        Some(CudaAlgorithm::Ring) => 5.0 * (ranks - 1.0),
        _ => 2.0 * ranks,
    }
}

fn measure(ranks: u32, way: &Way, sizes: &[usize], copy: f64) -> anyhow::Result<()> {
    let rows = on_threads(ranks, &way.options, |group| {
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let buffer = group.allocate(largest)?;
        sizes
            .iter()
            .map(|&bytes| Ok((bytes, time(&group, &buffer, way.algorithm, bytes)?)))
            .collect::<anyhow::Result<Vec<(usize, f64)>>>()
    })?;
    for (bytes, seconds) in &rows[0] {
        print_row(
            ranks,
            &way.label,
            (*bytes, *seconds),
            copy / traffic(way, ranks),
        );
    }
    Ok(())
}

pub(super) fn print_row(ranks: u32, label: &str, (bytes, seconds): (usize, f64), limit: f64) {
    let algbw = bytes as f64 / seconds / 1e9;
    println!(
        "{ranks:>5} {label:<34} {bytes:>11} {:>10.2} {algbw:>10.1} {limit:>10.1} {:>9.2}",
        seconds * 1e6,
        algbw / limit
    );
}

/// Operations that are queued back to back.
pub(super) fn iterations(bytes: usize) -> u32 {
    match bytes {
        0..=1_048_576 => 200,
        1_048_577..=33_554_432 => 50,
        _ => 20,
    }
}

/// Seconds per operation on the slowest rank: the median of several batches.
fn time(
    group: &CudaGroup,
    buffer: &CudaBuffer,
    algorithm: Option<CudaAlgorithm>,
    bytes: usize,
) -> anyhow::Result<f64> {
    let elements = Elements::first(DType::F32, bytes / 4);
    let once = || match algorithm {
        Some(algorithm) => group.all_reduce_with(algorithm, buffer, &elements, ReduceOp::Sum),
        None => group.all_reduce(buffer, &elements, ReduceOp::Sum),
    };
    let iterations = iterations(bytes);
    let mut times = Vec::new();
    for repeat in 0..=REPEATS {
        let elapsed = batch(group, iterations, || Ok(once()?))?;
        // The first one warms up.
        if repeat > 0 {
            times.push(elapsed.as_secs_f64() / f64::from(iterations));
        }
    }
    times.sort_by(f64::total_cmp);
    let mut slowest = [times[times.len() / 2]];
    group
        .process_group()
        .all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(slowest[0])
}

/// A group whose operations run on a stream.
pub(super) trait Queue {
    fn stream(&self) -> Arc<Stream>;
    fn context(&self) -> &Context;
    fn process_group(&self) -> &ProcessGroup;
    fn synchronize(&self) -> Result<(), CudaGroupError>;
}

macro_rules! queue {
    ($group:ty) => {
        impl Queue for $group {
            fn stream(&self) -> Arc<Stream> {
                <$group>::stream(self)
            }
            fn context(&self) -> &Context {
                <$group>::context(self)
            }
            fn process_group(&self) -> &ProcessGroup {
                <$group>::process_group(self)
            }
            fn synchronize(&self) -> Result<(), CudaGroupError> {
                <$group>::synchronize(self)
            }
        }
    };
}

queue!(CudaGroup);
queue!(NcclGroup);

/// The time on the device of some operations, begun together on all ranks.
pub(super) fn batch(
    group: &impl Queue,
    iterations: u32,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let stream = group.stream();
    let (begun, done) = (
        Event::timed(group.context())?,
        Event::timed(group.context())?,
    );
    group.synchronize()?;
    group.process_group().barrier()?;
    once()?;
    stream.record(&begun)?;
    for _ in 0..iterations {
        once()?;
    }
    stream.record(&done)?;
    group.synchronize()?;
    Ok(done.since(&begun)?)
}

/// Bytes read and written per nanosecond by a copy that no cache holds.
fn copy_bandwidth() -> anyhow::Result<f64> {
    const BYTES: usize = 1 << 30;
    const COPIES: u32 = 10;
    let rates = on_threads(1, &CudaOptions::default(), |group| {
        let (target, source) = (group.allocate(BYTES)?, group.allocate(BYTES)?);
        let stream = group.stream();
        let elapsed = batch(&group, COPIES, || {
            Ok(stream.copy(target.span(), source.span())?)
        })?;
        let bytes = 2.0 * BYTES as f64 * f64::from(COPIES);
        Ok(bytes / elapsed.as_secs_f64() / 1e9)
    })?;
    Ok(rates[0])
}
