//! Failures: every rank must get an error that names the culprit, and no stream may stay behind.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bonfire_collective::{CollectiveError, DType, Rank, RankEnv, ReduceOp};
use bonfire_gpu::{
    CudaAlgorithm, CudaBuffer, CudaGroup, CudaGroupError, CudaOptions, CudaSync, Elements,
};
use bonfire_launch::detect_rank;

use super::conformance::{join, launch};
use super::part::Part;
use super::ranks::on_threads;

const COUNT: usize = 1 << 20;

/// How long ranks wait for one that does not come. Those that come may differ by less.
const SHORT: Duration = Duration::from_secs(2);

pub(super) fn all() -> anyhow::Result<()> {
    if let Some(env) = detect_rank()? {
        return dying_rank(&env);
    }
    for sync in [CudaSync::Kernel, CudaSync::Stream] {
        use CudaAlgorithm::{Chain, Direct, Ring};
        for algorithm in [Direct, Ring, Chain] {
            abort_frees_who_waits(sync, algorithm)?;
        }
        for fault in [Fault::Abort, Fault::Absence] {
            who_is_elsewhere_is_freed(sync, fault)?;
        }
        absence_is_a_timeout(sync, Direct)?;
        absence_is_a_timeout(sync, Chain)?;
    }
    for algorithm in [CudaAlgorithm::OneShot, CudaAlgorithm::TwoShot] {
        abort_frees_who_waits(CudaSync::Kernel, algorithm)?;
        absence_is_a_timeout(CudaSync::Kernel, algorithm)?;
    }
    death_is_noticed()
}

fn options(sync: CudaSync, timeout: Duration) -> CudaOptions {
    CudaOptions::default().with_timeout(timeout).with_sync(Some(sync))
}

/// Elements small enough for a one-shot where that is meant.
fn elements(algorithm: CudaAlgorithm) -> Elements {
    let count = if algorithm == CudaAlgorithm::OneShot { 1000 } else { COUNT };
    Elements::first(DType::F32, count)
}

/// All ranks but the last queue an operation; the last one aborts.
fn abort_frees_who_waits(sync: CudaSync, algorithm: CudaAlgorithm) -> anyhow::Result<()> {
    let culprit = Rank::new(2);
    let body = |group: CudaGroup| -> anyhow::Result<Option<Duration>> {
        let buffer = warm_up(&group, algorithm)?;
        if group.rank() == culprit {
            meet(&group);
            thread::sleep(Duration::from_millis(200));
            group.abort("asked to");
            return Ok(None);
        }
        group.all_reduce_with(algorithm, &buffer, &elements(algorithm), ReduceOp::Sum)?;
        meet(&group);
        let started = Instant::now();
        match group.synchronize() {
            Err(CudaGroupError::Collective(CollectiveError::PeerFailed { rank, .. }))
                if rank == culprit =>
            {
                Ok(Some(started.elapsed()))
            }
            other => bail!("instead of the failure of rank {culprit}: {other:?}"),
        }
    };
    let times = on_threads(3, &options(sync, Duration::from_secs(20)), body)?;
    let slowest = times.into_iter().flatten().max().unwrap_or_default();
    println!(
        "{algorithm:?}, {sync:?}: an abort after 200 ms freed who waited; they knew after {:.0} ms",
        slowest.as_secs_f64() * 1e3
    );
    Ok(())
}

/// All ranks but one queue an operation; that one comes too late.
fn absence_is_a_timeout(sync: CudaSync, algorithm: CudaAlgorithm) -> anyhow::Result<()> {
    let absent = Rank::new(1);
    let body = |group: CudaGroup| -> anyhow::Result<String> {
        let buffer = warm_up(&group, algorithm)?;
        if group.rank() == absent {
            meet(&group);
            until_failed(&group)?;
            return Ok(String::new());
        }
        group.all_reduce_with(algorithm, &buffer, &elements(algorithm), ReduceOp::Sum)?;
        meet(&group);
        match group.synchronize() {
            Err(ref error @ CudaGroupError::Timeout { ref waited_for, .. }) => {
                ensure!(*waited_for == [absent], "{error}");
                Ok(error.to_string())
            }
            // Another rank's time-out came first.
            Err(CudaGroupError::Collective(error @ CollectiveError::PeerFailed { .. })) => {
                Ok(error.to_string())
            }
            other => bail!("instead of a time-out: {other:?}"),
        }
    };
    let errors = on_threads(4, &options(sync, SHORT), body)?;
    let error = &errors[0];
    println!("{algorithm:?}, {sync:?}: a rank that does not come: {error}");
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Abort,
    Absence,
}

/// All ranks but one queue an operation and then call a function of the driver that waits for the
/// device, as a kernel that is loaded may: it has no deadline and knows of no failure.
fn who_is_elsewhere_is_freed(sync: CudaSync, fault: Fault) -> anyhow::Result<()> {
    let culprit = Rank::new(1);
    let timeout = match fault {
        Fault::Abort => Duration::from_secs(20),
        Fault::Absence => SHORT,
    };
    let body = |group: CudaGroup| -> anyhow::Result<String> {
        let buffer = warm_up(&group, CudaAlgorithm::Direct)?;
        if group.rank() == culprit {
            meet(&group);
            thread::sleep(Duration::from_millis(200));
            match fault {
                Fault::Abort => group.abort("asked to"),
                Fault::Absence => until_failed(&group)?,
            }
            return Ok(String::new());
        }
        let elements = elements(CudaAlgorithm::Direct);
        group.all_reduce_with(CudaAlgorithm::Direct, &buffer, &elements, ReduceOp::Sum)?;
        meet(&group);
        group.context().synchronize()?;
        let Err(error) = group.synchronize() else {
            bail!("rank {culprit} failed and the group continues");
        };
        let text = error.to_string();
        ensure!(text.contains(&format!("rank {culprit}")), "{text}");
        Ok(text)
    };
    let errors = on_threads(3, &options(sync, timeout), body)?;
    println!("{sync:?}, {fault:?}, while the driver waits: {}", errors[0]);
    Ok(())
}

/// The first operation of a kind loads kernels with all ranks.
fn warm_up(group: &CudaGroup, algorithm: CudaAlgorithm) -> anyhow::Result<CudaBuffer> {
    let buffer = group.allocate(COUNT * 4)?;
    group.all_reduce_with(algorithm, &buffer, &elements(algorithm), ReduceOp::Sum)?;
    group.synchronize()?;
    Ok(buffer)
}

/// Waits, on the host, until all ranks have queued what they do. Where the group has failed already, what comes next
/// says why.
fn meet(group: &CudaGroup) {
    let _ = group.process_group().barrier();
}

fn until_failed(group: &CudaGroup) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while group.process_group().failure().is_none() {
        ensure!(Instant::now() < deadline, "the rank that did not come knows of no failure");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A process dies while the others wait for it on the device.
fn death_is_noticed() -> anyhow::Result<()> {
    let started = Instant::now();
    let Err(error) = launch(3, &Part::Faults.arguments()) else {
        bail!("a rank died and nobody noticed");
    };
    let text = format!("{error:#}");
    ensure!(text.contains("rank 1"), "the failure does not name rank 1: {text}");
    println!(
        "a process that died was named after {:.1} s, start included: {}",
        started.elapsed().as_secs_f64(),
        text.lines().next().unwrap_or_default()
    );
    Ok(())
}

fn dying_rank(env: &RankEnv) -> anyhow::Result<()> {
    let group = join(env, Duration::from_secs(20))?;
    let buffer = warm_up(&group, CudaAlgorithm::Direct)?;
    if env.rank == Rank::new(1) {
        thread::sleep(Duration::from_millis(200));
        std::process::abort();
    }
    group
        .all_reduce(&buffer, &elements(CudaAlgorithm::Direct), ReduceOp::Sum)
        .context("queueing")?;
    Ok(group.synchronize()?)
}
