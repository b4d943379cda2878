//! Times of all-reduces: what `bonfire bench` measures with the ranks of the self-test.

use clap::{Args, Command, FromArgMatches};

use super::SelftestArgs;
use super::nccl;
use crate::bench::{BenchArgs, bench};

pub(super) fn own(args: &SelftestArgs) -> anyhow::Result<()> {
    measure(args, &args.ranks, &[])
}

/// Measures NCCL with those numbers of ranks that it takes.
pub(super) fn over_nccl(args: &SelftestArgs) -> anyhow::Result<()> {
    measure(args, &nccl::ranks_of(&args.ranks)?, &["--nccl"])
}

fn measure(args: &SelftestArgs, ranks: &[u32], engine: &[&str]) -> anyhow::Result<()> {
    let mut ranks = ranks.iter();
    ranks.try_for_each(|&ranks| bench(&parse(ranks, args.quick, engine)?))
}

fn parse(ranks: u32, quick: bool, engine: &[&str]) -> anyhow::Result<BenchArgs> {
    let ranks = ranks.to_string();
    let (step_factor, iters) = if quick { ("64", "2") } else { ("4", "5") };
    let arguments = [
        &["all-reduce", "--device", "cuda", "--oversubscribe"][..],
        &["--transport", "local", "--ranks", &ranks],
        &["--min-bytes", "1K", "--max-bytes", "256M"],
        &["--step-factor", step_factor, "--iters", iters],
        &["--min-time", "1ms", "--rotate-bytes", "4M"],
        engine,
    ];
    let command = BenchArgs::augment_args(Command::new("bench").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments.concat())?;
    Ok(BenchArgs::from_arg_matches(&matches)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_those_of_the_command() {
        for (quick, engine) in [(false, &[][..]), (true, &["--nccl"])] {
            parse(4, quick, engine).unwrap();
        }
    }
}
