//! `bonfire bench`: times an operation of a group and prints the columns of nccl-tests.

mod buffers;
mod data;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "bench/gpu/absent.rs"]
mod gpu;
mod host;
mod layout;
mod measure;
mod table;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use bonfire_collective::{
    Algorithm, DType, GroupOptions, ProcessGroup, Rank, ReduceOp, TransportKind, WorldSize,
};
use bonfire_launch::{AgentOptions, OutputLabels, RankCount, detect_rank};
use clap::{Args, ValueEnum};

use crate::operation::Operation;
use crate::quantity::{duration, size, sizes};
use buffers::Home;
use gpu::Fleet;
pub(crate) use host::Host;
use layout::{Form, Parameters};
use measure::{Measurement, Timing, whole_blocks};
use table::{Report, Row, Setting};

/// What ranks compute on while they are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceKind {
    /// The cores of the host
    Cpu,
    /// NVIDIA GPUs, one for each rank
    Cuda,
}

/// Measure operations of a group: time, bandwidth and correctness for each message size.
///
/// time is the median of the iterations, algbw is size / time, and busbw is algbw times the factor
/// of nccl-tests: 2(n-1)/n for all-reduce, (n-1)/n where each rank keeps a block, else 1. Every
/// result is verified, and the buffers rotate through more memory than the caches hold. Under
/// `bonfire run`, torchrun or the like it joins their job; otherwise it starts its own ranks.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure; several are measured one after the other
    #[arg(required = true, value_name = "OPERATION", value_enum)]
    operations: Vec<Operation>,
    /// Ranks to start: a number, or `cpu` for one per core
    #[arg(long, visible_alias = "nproc", value_name = "N|auto|gpu|cpu", default_value = "2")]
    ranks: RankCount,
    /// What ranks compute on. On GPUs operations are timed by the device, in its memory, and in place where that can be
    #[arg(long, value_enum, default_value = "cpu")]
    device: DeviceKind,
    /// Let several ranks share a GPU where there are fewer GPUs than ranks
    #[arg(long)]
    oversubscribe: bool,
    /// On GPUs: measure NCCL instead of Bonfire's own engine
    #[arg(long)]
    nccl: bool,
    /// How ranks exchange data: `local` runs them as threads, the others as processes. Without it, each
    /// pair does as in a training: through shared memory on a host, over TCP between hosts
    #[arg(long, value_name = "local|shm|unix|tcp")]
    transport: Option<TransportKind>,
    /// Smallest message in bytes; suffixes K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = size)]
    min_bytes: usize,
    /// Largest message in bytes
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    max_bytes: usize,
    /// Each message is this many times larger than the one before
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(2..))]
    step_factor: u32,
    /// Element type: f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64
    #[arg(long, default_value = "f32", value_parser = number_type)]
    dtype: DType,
    /// Reduction: sum, mean, min, max, product; of integers also and, or, xor
    #[arg(long, default_value = "sum")]
    redop: ReduceOp,
    /// The rank that has the data, or gets it, where the operation has such a one
    #[arg(long, value_name = "RANK", default_value = "0")]
    root: u32,
    /// Repeat the whole sweep N times and report medians, so that slow drift of the machine does not bias single sizes
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Timed samples per size: one operation each, or as many as fill 20 us
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// How long the samples of a size last together, at least: there are more where --iters of them are done sooner
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration)]
    min_time: Duration,
    /// Untimed operations before them
    #[arg(long, value_name = "N", default_value = "3")]
    warmup: u32,
    /// Memory through which the buffers of each rank rotate
    #[arg(long, value_name = "SIZE", default_value = "192M", value_parser = size)]
    rotate_bytes: usize,
    /// Measure only this form of the operations
    #[arg(long, value_enum)]
    form: Option<Form>,
    /// Where buffers are: `region`, the memory that the ranks of a group share, in which a collective
    /// works without copies, or `private`
    #[arg(long, value_name = "region|private", default_value_t = Home::Region)]
    buffers: Home,
    /// Force an algorithm where the operation has it, such as ring or two_shot; a wrong name prints all
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// Payload of one frame in bytes
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk_bytes: Option<usize>,
    /// Also write the rows to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    args.sizes()?;
    if args.nccl && args.device == DeviceKind::Cpu {
        bail!("--nccl measures GPUs: add --device cuda");
    }
    for &operation in &args.operations {
        args.forms(operation)?;
    }
    let env = detect_rank()?;
    if let Some(path) = &args.json
        && env.as_ref().is_none_or(|env| env.rank.get() == 0)
    {
        crate::check_writable(path)?;
    }
    let has_threads = env.is_none() && args.transport == Some(TransportKind::Local);
    if has_threads && args.device == DeviceKind::Cuda {
        Fleet::prepare_for_threads()?;
    }
    let fleet = args.fleet()?;
    if let Some(env) = env {
        let group = ProcessGroup::connect(&env, args.group_options())?;
        return on_rank(&group, fleet.as_ref(), args);
    }
    if let Some(fleet) = &fleet {
        // Before there are ranks to say it each.
        fleet.describe(args.ranks.resolve()?.get() as usize, args.oversubscribe)?;
    }
    match args.transport {
        Some(TransportKind::Local) => {
            let world_size = WorldSize::new(args.ranks.resolve()?.get())?;
            let groups = ProcessGroup::local(world_size, args.group_options())?;
            as_threads(groups, |group| on_rank(&group, fleet.as_ref(), args)).map(drop)
        }
        _ => {
            let arguments = std::env::args_os().skip(1).collect();
            Ok(job(args.ranks.resolve()?, arguments)?.run()?)
        }
    }
}

/// Runs `body` once per group, each on a thread; the results in their order.
pub(crate) fn as_threads<R: Send>(
    groups: Vec<ProcessGroup>,
    body: impl Fn(ProcessGroup) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let body = &body;
    thread::scope(|scope| {
        let start = |group| scope.spawn(move || body(group));
        let threads: Vec<_> = groups.into_iter().map(start).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        results.into_iter().map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// A job of this program, of which rank 0 alone prints.
pub(crate) fn job(ranks: NonZeroU32, args: Vec<OsString>) -> anyhow::Result<AgentOptions> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let labels = OutputLabels::Errors;
    Ok(AgentOptions { args, nproc_per_node: ranks, labels, ..AgentOptions::new(program) })
}

fn on_rank(group: &ProcessGroup, fleet: Option<&Fleet>, args: &BenchArgs) -> anyhow::Result<()> {
    let ranks = group.world_size();
    let root = Rank::new(args.root);
    if !ranks.contains(root) {
        bail!("--root is {root}, but there are {ranks} ranks: ranks count from 0");
    }
    let mut setting = args.setting(group);
    let on_gpu = match fleet {
        None => None,
        Some(fleet) => {
            setting.gpus = Some(fleet.describe(ranks.len(), args.oversubscribe)?);
            let on_gpu = fleet.join(group, args.nccl)?;
            (setting.transport, setting.buffers) = (gpu::transport(&on_gpu), "device");
            Some(on_gpu)
        }
    };
    let mut report = Report::new(group, setting);
    for &operation in &args.operations {
        let forms = args.forms(operation)?;
        report.begin(operation, &forms)?;
        let blocks = operation.blocks_per_message(ranks.len());
        let measurements = forms.iter().map(|&form| Measurement {
            operation,
            form,
            dtype: args.dtype,
            parameters: Parameters { redop: args.redop, root },
            buffers: args.buffers,
            iters: args.iters as usize,
            time_min: args.min_time,
            warmup: args.warmup as usize,
            rotate_bytes: args.rotate_bytes,
        });
        let block_bytes = blocks * args.dtype.size_bytes();
        let sizes = whole_blocks(args.sizes()?, block_bytes);
        let mut timings = vec![Vec::new(); sizes.len() * forms.len()];
        for repeat in 1..=args.repeats {
            for (&bytes, timings) in sizes.iter().zip(timings.chunks_mut(forms.len())) {
                for (measurement, timings) in measurements.clone().zip(&mut *timings) {
                    timings.push(match &on_gpu {
                        None => measurement.time(group, bytes)?,
                        Some(on_gpu) => measurement.time_on_gpu(on_gpu, bytes)?,
                    });
                }
                if repeat == args.repeats {
                    let timings = timings.iter().map(|repeats| Timing::typical(repeats));
                    report.add(Row {
                        bytes,
                        count: bytes.checked_div(block_bytes).unwrap_or(0),
                        forms: measurements.clone().zip(timings).collect(),
                    })?;
                }
            }
        }
    }
    let wrong = report.finish(args.json.as_deref())?;
    if wrong > 0 {
        bail!("{wrong} elements are wrong");
    }
    Ok(())
}

impl BenchArgs {
    fn sizes(&self) -> anyhow::Result<Vec<usize>> {
        sizes(self.min_bytes, self.max_bytes, self.step_factor)
    }

    fn forms(&self, operation: Operation) -> anyhow::Result<Vec<Form>> {
        let exist = match self.device {
            DeviceKind::Cpu => operation.forms(),
            DeviceKind::Cuda => gpu::forms(operation),
        };
        match self.form {
            None => Ok(exist.to_vec()),
            Some(form) if exist.contains(&form) => Ok(vec![form]),
            Some(form) => bail!(
                "{} has no form {}: leave --form out, or measure other operations",
                operation.name(),
                form.name()
            ),
        }
    }

    fn fleet(&self) -> anyhow::Result<Option<Fleet>> {
        match self.device {
            DeviceKind::Cpu => Ok(None),
            DeviceKind::Cuda => Fleet::find().map(Some),
        }
    }

    fn group_options(&self) -> GroupOptions {
        let default = GroupOptions::default();
        let chunk_bytes = self.chunk_bytes.unwrap_or(default.chunk_bytes);
        default
            .with_algorithm(self.algorithm)
            .with_transport(self.transport.filter(|kind| *kind != TransportKind::Local))
            .with_chunk_bytes(chunk_bytes)
    }

    fn setting(&self, group: &ProcessGroup) -> Setting {
        let chosen = || match group.topology().host_count() {
            1 => "shm",
            hosts if hosts == group.world_size().get() => "tcp",
            _ => "shm and tcp",
        };
        Setting {
            ranks: group.world_size().get(),
            transport: self.transport.map_or_else(chosen, TransportKind::name),
            algorithm_asked: self.algorithm.map(Algorithm::name),
            chunk_bytes: self.group_options().chunk_bytes,
            buffers: self.buffers.name(),
            gpus: None,
            repeats: self.repeats,
            iters: self.iters as usize,
            min_time_us: self.min_time.as_secs_f64() * 1e6,
            warmup: self.warmup as usize,
            rotate_bytes: self.rotate_bytes,
            host: Host::this(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Reads the name of an element type that numbers fit into.
fn number_type(text: &str) -> Result<DType, String> {
    match text.parse::<DType>() {
        Ok(DType::Bool) => {
            Err("truth values are not measured; use u8, which is as long".to_owned())
        }
        Ok(dtype) => Ok(dtype),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use bonfire_collective::DType;

    use super::number_type;

    #[test]
    fn truth_values_are_not_numbers() {
        assert_eq!(number_type("u64"), Ok(DType::U64));
        assert!(number_type("bool").is_err());
        assert!(number_type("quaternion").is_err());
    }
}
