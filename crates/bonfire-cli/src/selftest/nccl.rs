//! NCCL on the same machine, sizes and measure, where it is found.
//!
//! It takes several ranks on one device from 2.30.3 on, with NCCL_MULTI_RANK_GPU_ENABLE=1, and hangs if it
//! may use more blocks than fit: so it runs several times with different limits.

use bonfire_collective::cuda::nccl::Nccl;
use bonfire_collective::cuda::{CudaOptions, Elements, NcclGroup};
use bonfire_collective::{DType, ReduceOp};

use super::SelftestArgs;
use super::bench::{batch, iterations, print_row, sizes};
use super::ranks::on_threads;

/// The first version that takes several ranks on one device.
const VERSION_MIN: u32 = 23003;

pub(super) fn is_there() -> bool {
    Nccl::load().is_ok()
}

pub(super) fn table(args: &SelftestArgs) -> anyhow::Result<()> {
    let nccl = Nccl::load()?;
    let version = nccl.version();
    let max_ctas = args.nccl_max_ctas.unwrap_or(0);
    println!("NCCL {version}, NCCL_MAX_CTAS={max_ctas}");
    if version < VERSION_MIN {
        println!("not measured: several ranks on one device need 2.30.3 or later");
        return Ok(());
    }
    for &ranks in &args.ranks {
        let rows = on_threads(ranks, &CudaOptions::default(), |group| {
            let process = group.process_group();
            let timeout = CudaOptions::default().timeout;
            let over_nccl = NcclGroup::new(process.clone(), group.context(), timeout)?;
            let sizes = sizes(args.quick);
            let largest = sizes.iter().copied().max().unwrap_or(4);
            let buffer = over_nccl.allocate(largest)?;
            let mut rows = Vec::new();
            for bytes in sizes {
                let data = Elements::first(DType::F32, bytes / size_of::<f32>());
                let iterations = iterations(bytes);
                let mut times = Vec::new();
                for repeat in 0..4 {
                    let once = || Ok(over_nccl.all_reduce(&buffer, &data, ReduceOp::Sum)?);
                    let elapsed = batch(&over_nccl, iterations, once)?;
                    if repeat > 0 {
                        times.push(elapsed.as_secs_f64() / f64::from(iterations));
                    }
                }
                times.sort_by(f64::total_cmp);
                let mut slowest = [times[times.len() / 2]];
                process.all_reduce(&mut slowest, ReduceOp::Max)?;
                rows.push((bytes, slowest[0]));
            }
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
