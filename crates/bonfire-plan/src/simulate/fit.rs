//! A link that takes as long as a real one did.
//!
//! Two figures cannot describe a real link: a message that fits into a cache is faster per byte than one that does
//! not, and an implementation switches protocols by size. SimGrid's SMPI therefore multiplies the latency and the
//! bandwidth of a link by factors that depend on the message's size (Clauss, Stillwell, Genaud, Suter, Casanova and
//! Quinson, "Single node on-line simulation of MPI applications with SMPI", 2011). Here one factor, a
//! piecewise-linear function of the operation's bytes in logarithms of both, multiplies every cost of the link.
//!
//! The fit goes through the simulator. All times of a simulation are sums and maxima of costs, so a link that is
//! slower by some factor makes a simulation take longer by exactly that factor. One ratio of latency to bandwidth is
//! searched for all measurements together, namely that with which the simulated times are closest to being
//! proportional to the measured ones; what is left at each size is its factor. At the sizes that were fitted, the
//! simulated plan takes exactly the measured time.
//!
//! Through shared memory, a frame that does not fit one cache line with its header takes longer by
//! something that the sizes on both sides of that step show; it is searched for in the same way.

use serde::{Deserialize, Serialize};

use super::engine::Engine;
use super::program::{Kind, Program};
use super::{Detail, FitError, Link, Network, SimulateError, simulate};
use crate::{Bytes, DType, Hosts, Operation, Schedule};

/// The ratios of latency to time per byte that are searched, in bytes: from links for which any
/// message is long to links for which none is. As powers of two.
const RATIO_LOG2_MAX: u32 = 32;

/// Steps of the search between two powers of two; each makes the interval smaller by the golden
/// ratio, so that the last is narrower than a thousandth.
const REFINEMENTS: u32 = 18;

/// The payload of the longest frame that is a single cache line in Bonfire's shared memory, behind a
/// count and what ranks compare. The payload of a longer one lies in lines of its own, which the
/// receiver asks for when it has seen the first.
const SHORT_BYTES: u64 = 64 - 8 - Operation::AGREED_BYTES as u64;

/// What a second line may add to the latency: this many shares of it are tried, up to all of it.
const LONG_SHARES: u32 = 20;

/// A plan between ranks of one host, and how long it really took.
#[derive(Debug, Clone, PartialEq)]
pub struct FitSample {
    /// The plan that was run; all its ranks were on one host.
    pub schedule: Schedule,
    /// The type of the elements that it moved.
    pub dtype: DType,
    /// The size of the operation, as its user counts it; what [`LinkModel::at`] is asked for.
    pub bytes: Bytes,
    /// The measured time in seconds, above 0.
    pub time_s: f64,
}

/// What the bytes of a frame are moved by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mover {
    /// The two ranks themselves, which do nothing else meanwhile: shared memory.
    Processor,
    /// Something beside them, such as an operating system, a network card or a copy engine.
    Port,
}

/// How much slower than its figures a link is for operations of some size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knot {
    /// The bytes of the operation.
    pub bytes: u64,
    /// What its costs are multiplied by.
    pub factor: f64,
}

/// A link whose costs depend on the size of the operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct LinkModel {
    link: Link,
    knots: Vec<Knot>,
}

/// A [`LinkModel`] as read from a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    link: Link,
    #[serde(default)]
    knots: Vec<Knot>,
}

impl LinkModel {
    /// A link that costs the same for all sizes.
    pub const fn uniform(link: Link) -> Self {
        Self { link, knots: Vec::new() }
    }

    /// A link and its factors, by ascending sizes.
    ///
    /// # Errors
    /// [`FitError::Knots`] when sizes do not ascend or a factor is not positive, and
    /// [`FitError::Simulate`] when a cost of the link is not a time.
    pub fn new(link: Link, knots: Vec<Knot>) -> Result<Self, FitError> {
        link.validate()?;
        let ascend = knots.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        let is_factor = |knot: &Knot| knot.factor.is_finite() && knot.factor > 0.0;
        if !ascend || !knots.iter().all(is_factor) {
            return Err(FitError::Knots);
        }
        Ok(Self { link, knots })
    }

    /// The link's figures, before factors.
    pub const fn link(&self) -> &Link {
        &self.link
    }

    /// The factors by size, ascending.
    pub fn knots(&self) -> &[Knot] {
        &self.knots
    }

    /// What the link costs in an operation of this many bytes. Between two knots the factor is
    /// interpolated, in logarithms; outside of all it is that of the nearest.
    pub fn at(&self, bytes: Bytes) -> Link {
        let bytes = bytes.get();
        let above = self.knots.partition_point(|knot| knot.bytes <= bytes);
        let high = self.knots.get(above).or(self.knots.last());
        let low = self.knots.get(above.saturating_sub(1));
        let (Some(low), Some(high)) = (low, high) else {
            return self.link;
        };
        if bytes <= low.bytes || low.bytes == high.bytes {
            return self.link.slower(low.factor);
        }
        // Sizes of 0 bytes have no logarithm; next to others they are as good as 1.
        let log = |bytes: u64| (bytes.max(1) as f64).ln();
        let share = match log(high.bytes) - log(low.bytes) {
            span if span > 0.0 => (log(bytes) - log(low.bytes)) / span,
            _ => 1.0,
        };
        let factor = low.factor.ln() * (1.0 - share) + high.factor.ln() * share;
        self.link.slower(factor.exp())
    }

    /// The link over which simulations of `samples` take as long as the samples did: exactly, where
    /// each size was measured once, and the geometric mean where it was several times.
    ///
    /// # Errors
    /// [`FitError`] when there is no sample, or one that shows nothing about a link.
    pub fn fit(samples: &[FitSample], mover: Mover) -> Result<Self, FitError> {
        let samples: Vec<_> = samples.iter().map(Sample::new).collect::<Result<_, _>>()?;
        if samples.is_empty() {
            return Err(FitError::NoSamples);
        }
        let fit = best_link(&samples, mover)?;
        let link = fit.link.slower(fit.mean.exp());
        let logs = samples.iter().zip(&fit.logs);
        let logs = logs.map(|(sample, log)| (sample.bytes, log - fit.mean));
        let mut by_size: Vec<(u64, f64)> = logs.collect();
        by_size.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let knot = |same: &[(u64, f64)]| Knot {
            bytes: same[0].0,
            factor: mean(same.iter().map(|(_, log)| *log)).exp(),
        };
        let knots = by_size.chunk_by(|a, b| a.0 == b.0).map(knot);
        Self::new(link, knots.collect())
    }

    /// How long `sample` takes over this link, in seconds.
    ///
    /// # Errors
    /// As [`simulate`](super::simulate).
    pub fn predict_s(&self, sample: &FitSample) -> Result<f64, SimulateError> {
        let link = self.at(sample.bytes);
        let network = Network::one_host(sample.schedule.world_size(), link);
        let simulation = simulate(&sample.schedule, sample.dtype, &network, Detail::Totals)?;
        Ok(simulation.time_s)
    }
}

impl TryFrom<Parts> for LinkModel {
    type Error = FitError;

    fn try_from(parts: Parts) -> Result<Self, FitError> {
        Self::new(parts.link, parts.knots)
    }
}

impl Mover {
    /// A link with these two figures, where a long frame adds this share of the latency.
    const fn link(self, latency_s: f64, s_per_byte: f64, long_share: f64) -> Link {
        match self {
            Self::Port => Link::new(latency_s, s_per_byte),
            Self::Processor => Link {
                copy_s_per_byte: s_per_byte,
                fold_s_per_byte: s_per_byte,
                short_bytes: SHORT_BYTES,
                long_latency_s: latency_s * long_share,
                ..Link::new(latency_s, 0.0)
            },
        }
    }

    /// The shares of the latency that a long frame may add to it. Measurements of only one kind of
    /// frames cannot show it.
    fn long_shares(self, samples: &[Sample]) -> impl Iterator<Item = f64> {
        let short = samples.iter().filter(|sample| sample.is_short()).count();
        let can_tell = self == Self::Processor && short > 0 && short < samples.len();
        let last = if can_tell { LONG_SHARES } else { 0 };
        (0..=last).map(|step| f64::from(step) / f64::from(LONG_SHARES))
    }
}

/// A measurement, ready to be simulated again and again.
struct Sample {
    program: Program,
    hosts: Hosts,
    dtype: DType,
    bytes: u64,
    measured_s: f64,
}

impl Sample {
    fn new(sample: &FitSample) -> Result<Self, FitError> {
        let (bytes, time_s) = (sample.bytes.get(), sample.time_s);
        if !(time_s.is_finite() && time_s > 0.0) {
            return Err(FitError::NotATime { bytes, time_s });
        }
        let hosts = Hosts::one(sample.schedule.world_size());
        Ok(Self {
            program: Program::of_schedule(&sample.schedule, &hosts)?,
            hosts,
            dtype: sample.dtype,
            bytes,
            measured_s: time_s,
        })
    }

    fn time_s(&self, link: Link) -> Result<f64, SimulateError> {
        let network = Network::new(self.hosts.clone(), link, link);
        let engine = Engine::new(&self.program, self.dtype, &network, Detail::Totals)?;
        Ok(engine.run()?.time_s)
    }

    fn is_short(&self) -> bool {
        let elem_bytes = self.dtype.size_bytes() as u64;
        let mut puts = self.program.ops.iter().filter(|op| op.kind() == Kind::Put);
        puts.all(|op| op.elems() * elem_bytes <= SHORT_BYTES)
    }
}

/// A link, and the logarithm of measured by simulated time for each sample.
struct Fit {
    link: Link,
    logs: Vec<f64>,
    mean: f64,
    /// How far the logarithms are from one another.
    spread: f64,
}

/// The link that explains the measurements best.
fn best_link(samples: &[Sample], mover: Mover) -> Result<Fit, FitError> {
    let mut best: Option<Fit> = None;
    for long_share in mover.long_shares(samples) {
        let fit = best_ratio(samples, |latency_s, s_per_byte| {
            mover.link(latency_s, s_per_byte, long_share)
        })?;
        if best.as_ref().is_none_or(|best| fit.spread < best.spread) {
            best = Some(fit);
        }
    }
    Ok(best.expect("a share of nothing is always tried"))
}

/// The ratio of latency to time per byte that explains the measurements best.
fn best_ratio(samples: &[Sample], link: impl Fn(f64, f64) -> Link) -> Result<Fit, FitError> {
    let mut best = try_ratio(samples, &link, 0.0)?;
    let mut best_log2 = 0.0;
    for log2 in 1..=RATIO_LOG2_MAX {
        let fit = try_ratio(samples, &link, f64::from(log2))?;
        if fit.spread < best.spread {
            (best, best_log2) = (fit, f64::from(log2));
        }
    }
    // Golden-section search in the two intervals beside it.
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (best_log2 - 1.0, best_log2 + 1.0);
    for _ in 0..REFINEMENTS {
        let (left, right) = (high - golden * (high - low), low + golden * (high - low));
        let at_left = try_ratio(samples, &link, left)?;
        let mut nearer = try_ratio(samples, &link, right)?;
        if at_left.spread <= nearer.spread {
            (nearer, high) = (at_left, right);
        } else {
            low = left;
        }
        if nearer.spread < best.spread {
            best = nearer;
        }
    }
    Ok(best)
}

fn try_ratio(
    samples: &[Sample],
    link: &impl Fn(f64, f64) -> Link,
    ratio_log2: f64,
) -> Result<Fit, FitError> {
    // About a microsecond and upwards; the mean of the logarithms corrects the scale.
    let s_per_byte = 1e-9;
    let link = link(ratio_log2.exp2() * s_per_byte, s_per_byte);
    let mut logs = Vec::with_capacity(samples.len());
    for sample in samples {
        let (bytes, simulated_s) = (sample.bytes, sample.time_s(link)?);
        if simulated_s <= 0.0 {
            return Err(FitError::NothingMoves { bytes });
        }
        logs.push((sample.measured_s / simulated_s).ln());
    }
    let mean = mean(logs.iter().copied());
    let spread = logs.iter().map(|log| (log - mean).powi(2)).sum();
    Ok(Fit { link, logs, mean, spread })
}

fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = numbers.len() as f64;
    numbers.sum::<f64>() / count
}
