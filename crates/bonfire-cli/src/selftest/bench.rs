//! Times of all-reduces: `bonfire bench` on the ranks that the self-test has.

use std::process::Command;

use anyhow::{Context as _, ensure};

use super::SelftestArgs;
use super::nccl;

/// Measures the engine.
pub(super) fn own(args: &SelftestArgs) -> anyhow::Result<()> {
    args.ranks
        .iter()
        .try_for_each(|&ranks| measure(args, ranks, &[]))
}

/// Measures NCCL on as many of the ranks as it takes.
pub(super) fn over_nccl(args: &SelftestArgs) -> anyhow::Result<()> {
    nccl::ranks_of(&args.ranks)?
        .into_iter()
        .try_for_each(|ranks| measure(args, ranks, &["--nccl"]))
}

fn measure(args: &SelftestArgs, ranks: u32, engine: &[&str]) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let (step_factor, iters) = if args.quick { ("64", "2") } else { ("4", "5") };
    let status = Command::new(program)
        .args(["bench", "all-reduce", "--device", "cuda", "--oversubscribe"])
        .args(["--transport", "local", "--ranks", &ranks.to_string()])
        .args(["--min-bytes", "1K", "--max-bytes", "256M"])
        .args(["--step-factor", step_factor, "--iters", iters])
        .args(["--min-time", "1ms", "--rotate-bytes", "4M"])
        .args(engine)
        .status()
        .context("cannot start this program again")?;
    ensure!(status.success(), "{ranks} ranks: bonfire bench: {status}");
    Ok(())
}
