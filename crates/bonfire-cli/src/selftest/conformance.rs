//! The GPUs against the process group on the CPU, bit for bit.

mod cases;
mod folds;

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::Context as _;
use bonfire_collective::{Algorithm, GroupOptions, ProcessGroup, Rank, RankEnv, ReduceOp};
use bonfire_gpu::{Context, CudaGroup, CudaOptions, CudaPath, CudaSync, Neighbours};
use bonfire_launch::{AgentOptions, detect_rank};
use half::{bf16, f16};

use super::ranks::on_threads as on_rank_threads;
use super::value::samples;
use super::{SelftestArgs, part::Part};
use crate::gpu::devices::context_of;

pub(super) use cases::Cases;

/// Long for a case, short for a hang.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn on_threads(args: &SelftestArgs) -> anyhow::Result<()> {
    let mut ranks = vec![1];
    ranks.extend(&args.ranks);
    let run = |ranks: u32, options: CudaOptions, sync: CudaSync, how: &str| {
        let options = options.with_timeout(TIMEOUT);
        let body = |group: CudaGroup| conformance(&group, args.quick, sync);
        let cases = on_rank_threads(ranks, &options, body)?;
        println!("{ranks} ranks as threads, {how}: {} cases, all bits as on the CPU", cases[0]);
        anyhow::Ok(())
    };
    for sync in [CudaSync::Kernel, CudaSync::Stream] {
        for &ranks in &ranks {
            let options = CudaOptions::default().with_sync(Some(sync));
            run(ranks, options, sync, &format!("waiting in {sync:?}"))?;
        }
    }
    let options = CudaOptions::default().with_path(Some(CudaPath::Host));
    for &ranks in &args.ranks {
        run(ranks, options.clone(), CudaSync::Stream, "through host memory")?;
    }
    Ok(())
}

pub(super) fn on_processes(args: &SelftestArgs) -> anyhow::Result<()> {
    if let Some(env) = detect_rank()? {
        return as_rank(&env);
    }
    let mut ranks = vec![1];
    ranks.extend(&args.ranks);
    for ranks in ranks {
        launch(ranks, &Part::Processes.arguments())?;
        println!("{ranks} ranks as processes: all bits as on the CPU");
    }
    Ok(())
}

pub(super) fn launch(ranks: u32, arguments: &[String]) -> anyhow::Result<()> {
    Ok(job(ranks, arguments)?.run()?)
}

pub(super) fn job(ranks: u32, arguments: &[String]) -> anyhow::Result<AgentOptions> {
    let ranks = NonZeroU32::new(ranks).context("a job has at least one rank")?;
    crate::bench::job(ranks, arguments.iter().map(Into::into).collect())
}

pub(super) fn connect(env: &RankEnv, timeout: Duration) -> anyhow::Result<(ProcessGroup, Context)> {
    let options =
        GroupOptions::default().with_algorithm(Some(Algorithm::OneShot)).with_timeout(timeout);
    let group = ProcessGroup::connect(env, options)?;
    Ok((group, context_of(env.local_rank)?))
}

pub(super) fn join(env: &RankEnv, timeout: Duration) -> anyhow::Result<CudaGroup> {
    let (group, context) = connect(env, timeout)?;
    let options = CudaOptions::default().with_timeout(timeout);
    let neighbours = Neighbours::new();
    Ok(CudaGroup::new(group, &context, &neighbours, options)?)
}

fn as_rank(env: &RankEnv) -> anyhow::Result<()> {
    let group = join(env, TIMEOUT)?;
    let cases = conformance(&group, true, CudaSync::Stream)?;
    if env.rank == Rank::new(0) {
        println!("rank 0: {cases} cases, waiting in {:?}", group.sync());
    }
    Ok(())
}

/// One rank's part of all cases; how many there were.
fn conformance(group: &CudaGroup, quick: bool, sync: CudaSync) -> anyhow::Result<usize> {
    let mut cases = Cases::new(group)?;
    let few = quick || sync == CudaSync::Stream;
    cases.folds::<f32>(few)?;
    if group.path() == CudaPath::Peer {
        cases.chain::<f32>()?;
        cases.chain::<i32>()?;
    }
    cases.folds::<bf16>(few)?;
    if sync == CudaSync::Kernel {
        cases.folds::<f16>(true)?;
        cases.folds::<f64>(true)?;
        cases.folds::<i32>(true)?;
    }
    // The host has an order of its own.
    if group.path() == CudaPath::Peer {
        cases.ring::<f32>()?;
    }
    cases.all_ranks::<f32>(ReduceOp::Max, samples)?;
    cases.all_ranks::<u8>(ReduceOp::Min, samples)?;
    cases.pairs::<f64>()?;
    Ok(cases.done)
}
