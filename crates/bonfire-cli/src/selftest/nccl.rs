//! NCCL on the same machine, sizes and measure, where it is found.
//!
//! It takes several ranks on one device from 2.30.3 on, with NCCL_MULTI_RANK_GPU_ENABLE=1, and hangs if it
//! may use more blocks than fit: so it runs several times with different limits.

use std::sync::Mutex;

use anyhow::{Context as _, bail};
use bonfire_collective::cuda::CudaOptions;
use bonfire_collective::cuda::nccl::{Nccl, NcclRank, UniqueId};
use bonfire_collective::{Rank, ReduceOp};

use super::SelftestArgs;
use super::bench::{batch, iterations, print_row, sizes};
use super::ranks::on_threads;

/// The first version that takes several ranks on one device.
const VERSION_MIN: u32 = 23003;

pub(super) fn is_there() -> bool {
    Nccl::load().is_some()
}

pub(super) fn table(args: &SelftestArgs) -> anyhow::Result<()> {
    let nccl = Nccl::load().context("NCCL was found a moment ago")?;
    let version = nccl.version()?;
    let max_ctas = args.nccl_max_ctas.unwrap_or(0);
    println!("NCCL {version}, NCCL_MAX_CTAS={max_ctas}");
    if version < VERSION_MIN {
        println!("not measured: several ranks on one device need 2.30.3 or later");
        return Ok(());
    }
    for &ranks in &args.ranks {
        let id: Mutex<Option<UniqueId>> = Mutex::new(None);
        let rows = on_threads(ranks, &CudaOptions::default(), |group| {
            let locked = || id.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if group.rank() == Rank::new(0) {
                *locked() = Some(nccl.unique_id()?);
            }
            group.process_group().barrier()?;
            let Some(id) = *locked() else {
                bail!("rank 0 made no id");
            };
            let rank = group.rank().get();
            let mut member = NcclRank::join(&nccl, group.context(), id, rank, ranks)?;
            let sizes = sizes(args.quick);
            let largest = sizes.iter().copied().max().unwrap_or(4);
            let buffer = group.allocate(largest)?;
            let stream = group.stream();
            let mut rows = Vec::new();
            for bytes in sizes {
                let data = buffer.span().part(0..bytes)?;
                let iterations = iterations(bytes);
                let mut times = Vec::new();
                for repeat in 0..4 {
                    let once = || Ok(member.all_reduce_f32(&stream, &data)?);
                    let elapsed = batch(&group, iterations, once)?;
                    if repeat > 0 {
                        times.push(elapsed.as_secs_f64() / f64::from(iterations));
                    }
                }
                times.sort_by(f64::total_cmp);
                let mut slowest = [times[times.len() / 2]];
                group
                    .process_group()
                    .all_reduce(&mut slowest, ReduceOp::Max)?;
                rows.push((bytes, slowest[0]));
            }
            group.process_group().barrier()?;
            Ok(rows)
        })?;
        for row in &rows[0] {
            print_row(
                ranks,
                &format!("NCCL, {max_ctas} blocks"),
                *row,
                f64::INFINITY,
            );
        }
    }
    Ok(())
}
