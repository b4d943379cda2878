//! Ranks over NCCL as processes, as a training has them.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use anyhow::{Context, bail, ensure};
use bonfire_collective::{CollectiveError, DType, Rank, RankEnv, ReduceOp};
use bonfire_gpu::{CudaGroupError, CudaOptions, Elements, NcclGroup};
use bonfire_launch::{AgentOptions, Graces, LaunchError, OutputLabels, detect_rank};

use super::super::SelftestArgs;
use super::super::conformance::{connect, job, launch};
use super::super::part::Part;
use super::{FAULTS_RANKS, conformance, ranks_of};

/// The folder in which each rank that received news of a death leaves a file.
const NOTICES: &str = "BONFIRE_SELFTEST_NOTICES";

const CULPRIT: Rank = Rank::new(1);

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
        launch(ranks, &Part::NcclProcesses.arguments())?;
        println!("{ranks} ranks as processes over NCCL: all bits as on the CPU");
    }
    Ok(())
}

fn join(env: &RankEnv) -> anyhow::Result<NcclGroup> {
    let timeout = CudaOptions::default().timeout;
    let (group, context) = connect(env, timeout)?;
    Ok(NcclGroup::new(group, &context, timeout)?)
}

/// One of three processes dies while the others wait for it on their devices. Each of those must
/// learn which it was, and end: NCCL itself does not notify them.
pub(in super::super) fn death_is_noticed() -> anyhow::Result<()> {
    if let Some(env) = detect_rank()? {
        return with_dying_rank(&join(&env)?);
    }
    let folder = env::temp_dir().join(format!("bonfire-selftest-{}", process::id()));
    fs::create_dir(&folder).context("cannot make a folder for the notices of the ranks")?;
    let started = Instant::now();
    let end = job_with_dying_rank(FAULTS_RANKS, &folder).map(|job| job.run());
    let elapsed = started.elapsed().as_secs_f64();
    let notified = fs::read_dir(&folder).map(Iterator::count);
    fs::remove_dir_all(&folder)?;
    match end? {
        Err(LaunchError::Rank(failure)) if failure.rank == CULPRIT => {}
        other => bail!("the job ended with {other:?}"),
    }
    let notified = notified?;
    ensure!(notified == FAULTS_RANKS as usize - 1, "{notified} ranks were notified");
    println!(
        "a process died, and the others knew which and ended after {elapsed:.1} s, start included"
    );
    Ok(())
}

fn job_with_dying_rank(ranks: u32, notices: &Path) -> anyhow::Result<AgentOptions> {
    // The others get as long as NCCL may take to notice, and are not asked to end before.
    let graces = Graces { after_failure: Duration::from_secs(60), ..Graces::default() };
    Ok(AgentOptions {
        graces,
        variables: vec![(NOTICES.into(), OsString::from(notices))],
        labels: OutputLabels::All,
        ..job(ranks, &Part::NcclFaults.arguments())?
    })
}

fn with_dying_rank(group: &NcclGroup) -> anyhow::Result<()> {
    const COUNT: usize = 1 << 20;
    let elements = Elements::first(DType::F32, COUNT);
    let buffer = group.allocate(COUNT * size_of::<f32>())?;
    let sum = || {
        group.all_reduce(&buffer, &elements, ReduceOp::Sum)?;
        group.synchronize()
    };
    // The first operation connects the ranks.
    sum()?;
    if group.rank() == CULPRIT {
        thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    match sum() {
        Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, cause })) => {
            ensure!(rank == CULPRIT, "rank {rank} was blamed: {cause}");
            println!("notified that rank {rank} failed: {cause}");
            let folder = env::var_os(NOTICES).context("started without a folder for notices")?;
            fs::write(Path::new(&folder).join(group.rank().to_string()), [])?;
            Ok(())
        }
        other => bail!("instead of the failure of rank {CULPRIT}: {other:?}"),
    }
}
