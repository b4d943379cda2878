//! Times of all-reduces beside the limit that the memory sets.
//!
//! R ranks that share one device read and write its one memory: an in-place all-reduce of S bytes per rank
//! moves at least 2RS bytes, so algbw cannot exceed copy bandwidth / (2R), where the copy bandwidth counts
//! bytes read and bytes written. On a device each the limit is another one, and no figure has a bound.

use bonfire_collective::{DType, ReduceOp};
use bonfire_gpu::{CudaAlgorithm, CudaBuffer, CudaGroup, CudaOptions, CudaSync, Elements};

use super::SelftestArgs;
use super::figures::bound::{Bound, Verdict, latency_us_max};
use super::figures::measure::{batch, iterations, seconds};
use super::figures::row::{Beside, Row, print_header};
use super::inventory::is_shared;
use super::ranks::on_threads;

const BYTES_MAX: usize = 256 << 20;

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

    fn is_by_neighbours(&self) -> bool {
        matches!(
            self.algorithm,
            Some(CudaAlgorithm::Ring | CudaAlgorithm::Chain)
        )
    }

    /// What is asked of the way that a group takes by itself, and of the ring.
    fn verdict(&self, row: &Row<'_>, limit: f64) -> Option<Verdict> {
        let reached = row.algbw() / limit;
        match self.algorithm {
            None if row.bytes == BYTES_MAX => Some(Bound::AtLeast(0.90).of(reached)),
            None => {
                let most = latency_us_max(row.ranks, row.bytes)?;
                Some(Bound::AtMost(most).of(row.seconds * 1e6))
            }
            Some(CudaAlgorithm::Ring) if row.bytes == BYTES_MAX => {
                Some(Bound::AtLeast(0.80).of(reached))
            }
            Some(_) => None,
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

pub(super) fn sweep(args: &SelftestArgs) -> anyhow::Result<()> {
    let copy = copy_bandwidth()?;
    header(copy);
    for &ranks in &args.ranks {
        for (way, sizes) in ways() {
            measure(ranks, &way, &sizes, copy)?;
        }
    }
    Ok(())
}

fn ways() -> Vec<(Way, Vec<usize>)> {
    let base = CudaOptions::default;
    let small = [10, 12, 14, 16, 18, 19, 20].map(|shift| 1 << shift);
    let mixed = [10, 16, 18, 19, 20, 22, 24, 28].map(|shift| 1 << shift);
    let large = [64 << 20, BYTES_MAX];
    let one_shot = base().with_one_shot_bytes_max(1 << 20);
    let in_streams = base().with_sync(Some(CudaSync::Stream));
    let direct = |how: &str, options| {
        let label = format!("direct, {how}");
        Way::new(&label, Some(CudaAlgorithm::Direct), options)
    };
    let one_shot = Way::new("one-shot", Some(CudaAlgorithm::OneShot), one_shot);
    let two_shot = base().with_two_shot_bytes_max(64 << 20);
    let two_shot = Way::new("two-shot", Some(CudaAlgorithm::TwoShot), two_shot);
    let middle = [10, 12, 14, 16, 18, 19, 20, 22, 23, 24, 26].map(|shift| 1 << shift);
    let mut ways = vec![
        (one_shot, small.to_vec()),
        (two_shot, middle.to_vec()),
        (direct("kernel barriers", base()), mixed.to_vec()),
        (direct("stream barriers", in_streams), mixed.to_vec()),
    ];
    for blocks in [1, 4] {
        let options = base().with_blocks_per_multiprocessor(blocks);
        let how = format!("{blocks} blocks per multiprocessor");
        ways.push((direct(&how, options), large.to_vec()));
    }
    for (name, algorithm) in [
        ("ring", CudaAlgorithm::Ring),
        ("chain", CudaAlgorithm::Chain),
    ] {
        for channels in [1, 2, 4, 8] {
            let options = base().with_ring_channels(channels);
            let label = format!("{name}, {channels} channels");
            let way = Way::new(&label, Some(algorithm), options);
            ways.push((way, large.to_vec()));
        }
    }
    ways
}

fn header(copy: f64) {
    println!("copy of device memory: {copy:.0} GB/s read and written");
    print_header();
}

/// The bytes that an algorithm must move through the memory of one shared device, per byte of message.
fn traffic(way: &Way, ranks: u32) -> f64 {
    let ranks = f64::from(ranks);
    match way.algorithm {
        // Each of R - 1 rounds of the reduce-scatter reads two and writes one shard per rank, each round of
        // the all-gather reads and writes one. In a chain all ranks but the first read two and write one, and
        // all but the last read and write one.
        Some(CudaAlgorithm::Ring | CudaAlgorithm::Chain) => 5.0 * (ranks - 1.0),
        None | Some(CudaAlgorithm::Direct | CudaAlgorithm::OneShot | CudaAlgorithm::TwoShot) => {
            2.0 * ranks
        }
    }
}

fn measure(ranks: u32, way: &Way, sizes: &[usize], copy: f64) -> anyhow::Result<()> {
    let times = on_threads(ranks, &way.options, |group| {
        if group.ring_channels() < way.options.ring_channels && way.is_by_neighbours() {
            return Ok(Vec::new());
        }
        let largest = sizes.iter().copied().max().unwrap_or(1);
        let buffer = group.allocate(largest)?;
        sizes
            .iter()
            .map(|&bytes| time(&group, &buffer, way.algorithm, bytes))
            .collect::<anyhow::Result<Vec<f64>>>()
    })?;
    if times[0].is_empty() {
        println!(
            "{ranks} ranks, {}: not here, the driver has too few queues",
            way.label
        );
    }
    let shared = is_shared()?;
    for (&bytes, &seconds) in sizes.iter().zip(&times[0]) {
        let mut row = Row {
            ranks,
            label: &way.label,
            bytes,
            seconds,
            beside: Beside::Nothing,
        };
        let limit = copy / traffic(way, ranks);
        let verdict = way.verdict(&row, limit).filter(|_| shared);
        row.beside = Beside::Limit(limit, verdict);
        row.print();
    }
    Ok(())
}

/// Seconds per operation on the slowest rank.
pub(super) fn time(
    group: &CudaGroup,
    buffer: &CudaBuffer,
    algorithm: Option<CudaAlgorithm>,
    bytes: usize,
) -> anyhow::Result<f64> {
    let elements = Elements::first(DType::F32, bytes / size_of::<f32>());
    seconds(group, iterations(bytes), || {
        let queued = match algorithm {
            Some(algorithm) => group.all_reduce_with(algorithm, buffer, &elements, ReduceOp::Sum),
            None => group.all_reduce(buffer, &elements, ReduceOp::Sum),
        };
        Ok(queued?)
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_swept_beside_what_its_traffic_allows() {
        for (algorithm, of_four, rows) in [
            (CudaAlgorithm::OneShot, 8.0, 7),
            (CudaAlgorithm::TwoShot, 8.0, 11),
            (CudaAlgorithm::Direct, 8.0, 20),
            (CudaAlgorithm::Ring, 15.0, 8),
            (CudaAlgorithm::Chain, 15.0, 8),
        ] {
            let own = ways();
            let own = own
                .iter()
                .filter(|(way, _)| way.algorithm == Some(algorithm));
            let mut found = 0;
            for (way, sizes) in own {
                assert_eq!(traffic(way, 4), of_four, "{}", way.label);
                let most = match algorithm {
                    CudaAlgorithm::OneShot => way.options.one_shot_bytes_max,
                    CudaAlgorithm::TwoShot => way.options.two_shot_bytes_max,
                    _ => BYTES_MAX,
                };
                assert_eq!(sizes.iter().max(), Some(&most), "{}", way.label);
                found += sizes.len();
            }
            assert_eq!(found, rows, "{algorithm:?}");
        }
    }
}
