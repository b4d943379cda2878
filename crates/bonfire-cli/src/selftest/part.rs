//! The parts of the self-test, each in a process of its own.

use std::fmt;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;

use crate::gpu::connections::MOST;

use super::{SelftestArgs, bench, choice, conformance, faults, inventory, nccl, pack, training};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// What there is
    Inventory,
    /// Ranks as threads against the CPU, bit for bit
    Threads,
    /// Ranks as processes against the CPU, bit for bit
    Processes,
    /// Which algorithm is chosen by what the ranks measure, and that bits do not depend on it
    Choice,
    /// Failures: an abort, a rank that does not come, a rank that dies
    Faults,
    /// Times of all-reduces, as `bonfire bench` measures them
    Bench,
    /// Many tensors packed, reduced and unpacked, against the CPU, bit for bit
    Pack,
    /// Burn models: several ranks learn what one does, on the devices and through the host
    Training,
    /// Burn models: what synchronisation adds to a step
    Steps,
    /// A group over NCCL against the CPU, bit for bit, where NCCL is found
    NcclThreads,
    /// The same with ranks as processes
    NcclProcesses,
    /// A rank that dies in a group over NCCL, where it is found
    NcclFaults,
    /// Times of all-reduces over NCCL, where it is found, as `bonfire bench --nccl` measures them
    Nccl,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Passed(Duration),
    Failed(String),
    NotRun(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(time) => write!(f, "passed in {:.1} s", time.as_secs_f64()),
            Self::Failed(reason) => write!(f, "FAILED: {reason}"),
            Self::NotRun(reason) => write!(f, "not run: {reason}"),
        }
    }
}

impl Part {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// How this program is started to run it.
    pub(super) fn arguments(self) -> [String; 4] {
        ["selftest", "--cuda", "--part", &self.name()].map(str::to_owned)
    }

    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Inventory => 60,
            Self::Choice | Self::Faults | Self::NcclFaults => 120,
            Self::Threads | Self::Processes | Self::Pack => 240,
            Self::NcclThreads | Self::NcclProcesses => 240,
            // Each of the elements is verified, by the host.
            Self::Bench | Self::Nccl => 600,
            // Burn compiles and chooses its kernels first.
            Self::Training | Self::Steps => 900,
        })
    }

    pub(super) fn run_here(self, args: &SelftestArgs) -> anyhow::Result<()> {
        match self {
            Self::Inventory => inventory::print(),
            Self::Threads => conformance::on_threads(args),
            Self::Processes => conformance::on_processes(args),
            Self::Choice => choice::table(args),
            Self::Faults => faults::all(),
            Self::Bench => bench::own(args),
            Self::Pack => pack::check(args),
            Self::Training => training::parity(args),
            Self::Steps => training::steps(args),
            Self::NcclThreads => nccl::on_rank_threads(args),
            Self::NcclProcesses => nccl::on_processes(args),
            Self::NcclFaults => nccl::death_is_noticed(),
            Self::Nccl => bench::over_nccl(args),
        }
    }

    /// In a process of its own, within its limit.
    pub(super) fn run_apart(self, args: &SelftestArgs) -> anyhow::Result<Outcome> {
        println!("\n== {}", self.name());
        let limits: &[Option<u32>] = match self {
            Self::Nccl => &[Some(8), Some(16), Some(32)],
            other if other.needs_nccl() => &[Some(8)],
            _ => &[None],
        };
        if self.needs_nccl() {
            let ranks = match self {
                Self::NcclFaults => &[nccl::FAULTS_RANKS],
                _ => &args.ranks[..],
            };
            if let Some(obstacle) = nccl::obstacle(ranks)? {
                return Ok(Outcome::NotRun(obstacle));
            }
        }
        let mut time = Duration::ZERO;
        for &max_ctas in limits {
            if let (Self::Nccl, Some(blocks)) = (self, max_ctas) {
                println!("{blocks} blocks at most");
            }
            match self.run_child(args, max_ctas)? {
                Outcome::Passed(took) => time += took,
                failed => return Ok(failed),
            }
        }
        Ok(Outcome::Passed(time))
    }

    fn needs_nccl(self) -> bool {
        use Part::{Nccl, NcclFaults, NcclProcesses, NcclThreads};
        matches!(self, NcclThreads | NcclProcesses | NcclFaults | Nccl)
    }

    fn run_child(self, args: &SelftestArgs, max_ctas: Option<u32>) -> anyhow::Result<Outcome> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command.args(self.arguments()).args(["--ranks", &list(&args.ranks)]).env(MOST.0, MOST.1);
        if args.quick {
            command.arg("--quick");
        }
        if let Some(max_ctas) = max_ctas {
            command
                .env("NCCL_MAX_CTAS", max_ctas.to_string())
                .env("NCCL_MULTI_RANK_GPU_ENABLE", "1")
                .env("NCCL_NVLS_ENABLE", "0");
        }
        let started = Instant::now();
        let child = command.spawn().context("cannot start this program again")?;
        Ok(match end(child, self.limit())? {
            None => Outcome::Failed(format!("no end after {} s", self.limit().as_secs())),
            Some(status) if status.success() => Outcome::Passed(started.elapsed()),
            Some(status) => Outcome::Failed(status.to_string()),
        })
    }
}

/// Waits for the end of a child; kills it at the limit.
fn end(mut child: Child, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    const PAUSE: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

fn list(ranks: &[u32]) -> String {
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    numbers.join(",")
}
