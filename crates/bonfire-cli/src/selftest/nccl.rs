//! NCCL on the same machine, where it is found: whether a group over it is right.
//!
//! It takes several ranks on one device from 2.30.3 on, with NCCL_MULTI_RANK_GPU_ENABLE=1, and hangs if it
//! may use more blocks than fit: so it is timed several times with different limits.

mod processes;

use bonfire_collective::ReduceOp;
use bonfire_gpu::nccl::Nccl;
use bonfire_gpu::{CudaGroup, CudaOptions, NcclGroup};
use half::{bf16, f16};

use super::SelftestArgs;
use super::conformance::Cases;
use super::ranks::on_threads;
use super::value::{Sample, samples, wholes};
use crate::gpu::devices;

pub(super) use processes::{death_is_noticed, on_processes};

/// The first version that takes several ranks on one device.
const SHARING_VERSION_MIN: u32 = 23003;

pub(super) const FAULTS_RANKS: u32 = 3;

/// Why it runs with none of these numbers of ranks on this machine, if it does not.
pub(super) fn obstacle(ranks: &[u32]) -> anyhow::Result<Option<String>> {
    let Ok(nccl) = Nccl::load() else {
        let remedy = "NCCL is not found; put its folder into LD_LIBRARY_PATH to use it";
        return Ok(Some(remedy.to_owned()));
    };
    let version = nccl.version();
    Ok(fitting(ranks, version)?.is_empty().then(|| {
        format!("NCCL {version} takes one rank for each device; from 2.30.3 on it takes several")
    }))
}

/// The numbers of ranks that this version takes on this machine.
fn fitting(asked: &[u32], version: u32) -> anyhow::Result<Vec<u32>> {
    let devices = devices::all()?.len();
    let fits = |ranks: &u32| *ranks as usize <= devices || version >= SHARING_VERSION_MIN;
    Ok(asked.iter().copied().filter(fits).collect())
}

/// The numbers of ranks that it takes on this machine, of those that are asked for.
pub(super) fn ranks_of(asked: &[u32]) -> anyhow::Result<Vec<u32>> {
    let version = Nccl::load()?.version();
    println!("NCCL {version}");
    fitting(asked, version)
}

fn join(group: &CudaGroup) -> anyhow::Result<NcclGroup> {
    let timeout = CudaOptions::default().timeout;
    let process = group.process_group().clone();
    Ok(NcclGroup::new(process, group.context(), timeout)?)
}

pub(super) fn on_rank_threads(args: &SelftestArgs) -> anyhow::Result<()> {
    for ranks in ranks_of(&args.ranks)? {
        let cases =
            on_threads(ranks, &CudaOptions::default(), |group| conformance(&join(&group)?))?;
        println!("{ranks} ranks as threads over NCCL: {} cases, all bits as on the CPU", cases[0]);
    }
    Ok(())
}

/// One rank's part of every operation against the CPU: folds whose bits no order changes, since NCCL has its
/// own. How many there were.
fn conformance(group: &NcclGroup) -> anyhow::Result<usize> {
    let mut cases = Cases::new(group)?;
    cases.all_ranks::<f32>(ReduceOp::Max, samples)?;
    cases.all_ranks::<i32>(ReduceOp::Sum, samples)?;
    cases.all_ranks::<u8>(ReduceOp::Min, samples)?;
    sums::<f32>(&mut cases)?;
    sums::<f16>(&mut cases)?;
    sums::<bf16>(&mut cases)?;
    cases.pairs::<f64>()?;
    Ok(cases.done)
}

/// Sums and means of floats, as far as they are exact.
fn sums<T: Sample>(cases: &mut Cases<'_, NcclGroup>) -> anyhow::Result<()> {
    if cases.ranks() <= 16 {
        cases.all_ranks::<T>(ReduceOp::Sum, wholes)?;
    }
    if [1, 2, 4].contains(&cases.ranks()) {
        cases.all_ranks::<T>(ReduceOp::Mean, wholes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
