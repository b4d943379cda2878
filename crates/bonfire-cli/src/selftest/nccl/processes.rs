//! Ranks over NCCL as processes, as a training has them.

use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use bonfire_collective::{CollectiveError, DType, Rank, RankEnv, ReduceOp};
use bonfire_gpu::{CudaGroupError, CudaOptions, Elements, NcclGroup};
use bonfire_launch::{AgentOptions, OutputLabels, detect_rank};

use super::super::SelftestArgs;
use super::super::conformance::{connect, job, launch};
use super::super::part::Part;
use super::{conformance, ranks_of};

/// Starts this program again, once per rank, for each number of ranks.
pub(in super::super) fn on_processes(args: &SelftestArgs) -> anyhow::Result<()> {
    if let Some(env) = detect_rank()? {
        let cases = conformance(&join(&env)?)?;
        if env.rank == Rank::new(0) {
            println!("rank 0: {cases} cases");
        }
        return Ok(());
    }
    for ranks in ranks_of(&args.ranks)? {
        if !(2..=4).contains(&ranks) {
            continue;
        }
        launch(ranks, &arguments(Part::NcclProcesses))?;
        println!("{ranks} ranks as processes over NCCL: all bits as on the CPU");
    }
    Ok(())
}

/// What a rank is started with.
fn arguments(part: Part) -> [&'static str; 4] {
    ["selftest", "--cuda", "--part", part.name()]
}

fn join(env: &RankEnv) -> anyhow::Result<NcclGroup> {
    let timeout = CudaOptions::default().timeout;
    let (group, context) = connect(env, timeout)?;
    Ok(NcclGroup::new(group, &context, timeout)?)
}

/// One of three processes dies while the others wait for it on their devices. Each of those must learn which it
/// was, and end: NCCL itself tells them nothing.
pub(in super::super) fn death_is_noticed() -> anyhow::Result<()> {
    const RANKS: u32 = 3;
    if let Some(env) = detect_rank()? {
        return with_dying_rank(&join(&env)?);
    }
    if ranks_of(&[RANKS])?.is_empty() {
        return Ok(());
    }
    let started = Instant::now();
    // The job ends well if all the others do.
    let job = AgentOptions {
        min_nproc_per_node: NonZeroU32::new(RANKS - 1),
        labels: OutputLabels::All,
        ..job(RANKS, &arguments(Part::NcclFaults))?
    };
    job.run()?;
    println!(
        "a process died, and the others knew which and ended after {:.1} s, start included",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn with_dying_rank(group: &NcclGroup) -> anyhow::Result<()> {
    const COUNT: usize = 1 << 20;
    let culprit = Rank::new(1);
    let elements = Elements::first(DType::F32, COUNT);
    let buffer = group.allocate(COUNT * size_of::<f32>())?;
    let sum = || {
        group.all_reduce(&buffer, &elements, ReduceOp::Sum)?;
        group.synchronize()
    };
    // The first operation connects the ranks.
    sum()?;
    if group.rank() == culprit {
        thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    match sum() {
        Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, cause })) => {
            ensure!(rank == culprit, "rank {rank} was blamed: {cause}");
            println!("told that rank {rank} failed: {cause}");
            Ok(())
        }
        other => bail!("instead of the failure of rank {culprit}: {other:?}"),
    }
}
