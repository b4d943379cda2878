//! `bonfire simulate`: how long a collective, or a pipeline, would take on machines that are not there.

mod fit;
mod gantt;
mod link;
mod pipeline;
pub(crate) mod plot;
mod report;
mod scenario;
mod size;
mod timeline;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use bonfire_collective::GroupOptions;
use bonfire_plan::simulate::Detail;
use bonfire_plan::{Algorithm, DType, Rank, UnknownName, WorldSize};
use clap::{Args, Subcommand};

use crate::operation::Operation;
use crate::quantity::{counted, positive, size, sizes};
use fit::{FitOptions, HoldOut};
use link::LinkSource;

use plot::{Against, Curve};
use report::Record;
use scenario::Scenario;

/// Ranks that meet in pairs have more steps than a simulation can hold long before.
const RANKS_MAX: u32 = 1 << 14;

/// Predict how long an operation takes: its plan, run in simulated time.
///
/// The very steps that Bonfire executes are run over links that cost latency and time per byte, and whose ports frames
/// compete for. Prints time, bandwidth and what the critical path is made of. With --fit it finds the link that
/// reproduces what `bonfire bench --json` measured. With `pipeline` it simulates a pipeline's schedule instead.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    other: Option<Other>,
    /// Ranks that take part
    #[arg(long, value_name = "N", required_unless_present = "fit")]
    ranks: Option<u32>,
    /// Hosts that they are on, rank by rank
    #[arg(long, value_name = "N", default_value = "1")]
    hosts: u32,
    /// Link between ranks of a host: a name, figures such as `alpha=3us,bandwidth=10GB/s` (also
    /// `overhead`, `copy`, `fold`), or a file that --write-link wrote, as FILE or FILE:TRANSPORT.
    ///
    /// Names: nvlink-h100, nvlink-a100, pcie4, pcie5, net-400g, eth-100g, eth-25g, eth-10g,
    /// tcp-loopback, unix, shm. Times are in ns, us, ms or s; rates in GB/s (bytes) or Gb/s (bits).
    #[arg(long, value_name = "LINK", required_unless_present = "fit")]
    link: Option<LinkSource>,
    /// Link between hosts, which all ranks of a host share; like --link unless given
    #[arg(long, value_name = "LINK")]
    inter_link: Option<LinkSource>,
    /// What is done
    #[arg(long, value_name = "OPERATION", value_enum, default_value = "all-reduce")]
    op: Operation,
    /// The rank that has the data, or gets it, where the operation has such a one
    #[arg(long, value_name = "RANK", default_value = "0")]
    root: u32,
    /// Size of the message; suffixes K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    bytes: usize,
    /// Algorithm such as ring or two_shot, or `all` that the operation has. With --fit: of
    /// measurements that do not say it
    #[arg(long, value_name = "NAME|all", default_value = "all")]
    algorithm: Choice,
    /// Payload of one frame in bytes
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk_bytes: Option<usize>,
    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// Frames that may be on their way between two ranks
    #[arg(long, value_name = "N", default_value = "4", value_parser = positive::<NonZeroUsize>)]
    slots: NonZeroUsize,
    /// Write what everyone did when, for chrome://tracing or ui.perfetto.dev; of the fastest algorithm
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Draw time against size as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Smallest message of the plot
    #[arg(long, value_name = "SIZE", default_value = "1K", value_parser = size)]
    min_bytes: usize,
    /// Largest message of the plot
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    max_bytes: usize,
    /// Each message of the plot is this many times larger than the one before
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(2..))]
    step_factor: u32,
    /// Also write what is printed to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fit links to rows of `bonfire bench --json`, and simulate nothing else
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        conflicts_with_all = ["ranks", "link", "inter_link", "timeline", "plot"]
    )]
    fit: Vec<PathBuf>,
    /// Sizes that the fit does not see but predicts
    #[arg(long, value_enum, default_value = "none", requires = "fit")]
    hold_out: HoldOut,
    /// Write the fitted links to this file, for --link
    #[arg(long, value_name = "FILE", requires = "fit")]
    write_link: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum Other {
    // In a box, for it is larger than all that is usually given.
    Pipeline(Box<pipeline::PipelineArgs>),
}

/// One algorithm, or all.
#[derive(Clone, Copy, Debug)]
struct Choice(Option<Algorithm>);

impl std::str::FromStr for Choice {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        if text.eq_ignore_ascii_case("all") {
            return Ok(Self(None));
        }
        let one = text.parse().map(|one| Self(Some(one)));
        one.map_err(|mut error: UnknownName| {
            error.choices.push("all".to_owned());
            error
        })
    }
}

impl SimulateArgs {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let report = match &self.other {
            Some(Other::Pipeline(pipeline)) => pipeline.run(),
            None if self.fit.is_empty() => self.simulate(),
            None => self.fit(),
        };
        crate::print(&report?)
    }

    fn fit(&self) -> anyhow::Result<String> {
        let options = FitOptions {
            hold_out: self.hold_out,
            algorithm: self.algorithm.0,
            chunk_bytes: self.chunk_bytes(),
            json: self.json.as_deref(),
            write_link: self.write_link.as_deref(),
        };
        fit::fit(&self.fit, options)
    }

    fn simulate(&self) -> anyhow::Result<String> {
        let scenario = self.scenario()?;
        let algorithms = match &self.algorithm.0 {
            None => Algorithm::candidates(scenario.collective()),
            Some(one) => std::slice::from_ref(one),
        };
        let (outcomes, mut skipped) = scenario.run_all(algorithms, self.bytes);
        let Some(fastest) = outcomes.first() else {
            let reason = skipped.pop().map(|last| last.reason);
            return Err(reason.unwrap_or_else(|| anyhow!("the operation has no algorithm")));
        };
        if let Some(path) = &self.json {
            let record = |outcome| Record::new(&scenario, outcome);
            let records: Vec<Record> = outcomes.iter().map(record).collect();
            crate::save_json(path, &records)?;
        }
        if let Some(path) = &self.timeline {
            timeline::check_size(&fastest.simulation)?;
            let detailed = scenario.run(fastest.algorithm, self.bytes, Detail::Timeline)?;
            timeline::write(path, &scenario.hosts, &detailed.simulation)?;
        }
        if let Some(path) = &self.plot {
            crate::save(path, &self.plotted(&scenario, algorithms)?)?;
        }
        Ok(report::text(&scenario, &outcomes, &skipped))
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let (Some(ranks), Some(link)) = (self.ranks, &self.link) else {
            bail!("--ranks and --link are needed");
        };
        let world_size = WorldSize::new(ranks)?;
        if ranks > RANKS_MAX {
            bail!(
                "--ranks is {ranks}; give {RANKS_MAX} at most, for a plan is made for every rank"
            );
        }
        let inter = self.inter_link.as_ref().unwrap_or(link);
        Ok(Scenario {
            operation: self.op,
            root: Rank::new(self.root),
            dtype: self.dtype,
            world_size,
            hosts: scenario::place(world_size, self.hosts)?,
            chunk_bytes: self.chunk_bytes(),
            slots: self.slots,
            intra: link.resolve(self.op, world_size)?,
            inter: inter.resolve(self.op, world_size)?,
        })
    }

    fn chunk_bytes(&self) -> usize {
        self.chunk_bytes.unwrap_or(GroupOptions::default().chunk_bytes)
    }

    fn plotted(&self, scenario: &Scenario, algorithms: &[Algorithm]) -> anyhow::Result<String> {
        let sizes = sizes(self.min_bytes, self.max_bytes, self.step_factor)?;
        let curve = |&algorithm: &Algorithm| Curve {
            name: algorithm.name(),
            points: sizes
                .iter()
                .filter_map(|&bytes| scenario.run(algorithm, bytes, Detail::Totals).ok())
                .filter(|outcome| outcome.size.bytes > 0 && outcome.simulation.time_s > 0.0)
                .map(|outcome| (outcome.size.bytes as u64, outcome.simulation.time_s))
                .collect(),
        };
        let mut curves: Vec<Curve> = algorithms.iter().map(curve).collect();
        curves.retain(|curve| !curve.points.is_empty());
        if curves.is_empty() {
            bail!("there is nothing to plot: no size takes any time");
        }
        let title = format!(
            "{}, {} on {}",
            scenario.collective(),
            counted(scenario.world_size.len(), "rank"),
            counted(scenario.hosts.host_count(), "host"),
        );
        Ok(plot::svg(&title, Against::Size, &curves))
    }
}
