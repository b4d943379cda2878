//! `bonfire scaling`: the same program on 1, 2, 4 and more ranks, and its time against their number.
//!
//! It starts ranks of this host as `bonfire run` does, one job after the other, and never two at once.

mod figures;
mod words;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::path::{self, Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use bonfire_launch::{AgentOptions, NumaBinding, RankCount};
use clap::Args;

use crate::quantity::counted;
use figures::{CHART, Figures, Run, Training};

/// Run a program on 1, 2, 4 and more ranks of this host, and chart its time against the ranks.
///
/// In the program's arguments {ranks} stands for the number of ranks, {256/ranks} for 256 divided by it, and {folder}
/// for the path of that run's folder. If each run writes its report there, times are those of training, without
/// evaluation and checkpoints, and the speed-up is that of samples per second; else both are those of the whole program.
/// The efficiency is the speed-up divided by the growth in ranks.
#[derive(Debug, Args)]
pub(crate) struct ScalingArgs {
    /// Numbers of ranks, as in 1,2,4; by default the powers of two up to one rank per GPU, or per core without one
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count)]
    ranks: Vec<NonZeroU32>,
    /// The folder for the chart, the figures and the folders of the runs; it must be new or empty
    #[arg(long, value_name = "FOLDER", default_value = "scaling")]
    out: PathBuf,
    /// Bind each rank to the cores of a NUMA node, as `bonfire run` does
    #[arg(long, value_name = "node")]
    numa_binding: Option<NumaBinding>,
    /// The program of every rank
    program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

impl ScalingArgs {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let counts = self.counts()?;
        let jobs = counts.into_iter().map(|ranks| self.job(ranks));
        let jobs: Vec<Job> = jobs.collect::<anyhow::Result<_>>()?;
        let is_new = !self.out.exists();
        claim(&self.out)?;
        let mut figures = Figures::new(&self.program, &self.args);
        let ended = jobs.iter().try_for_each(|job| self.measure(job, &mut figures));
        if figures.runs.is_empty() {
            // What is empty does not stand in the way of the next try.
            let _ = is_new.then(|| fs::remove_dir(&self.out));
        } else {
            // A closed terminal must not cause a panic.
            let _ = writeln!(io::stdout(), "{figures}{}", self.out.join(CHART).display());
        }
        ended
    }

    /// The numbers of ranks, each once, from the smallest on.
    fn counts(&self) -> anyhow::Result<Vec<NonZeroU32>> {
        let mut counts = self.ranks.clone();
        if counts.is_empty() {
            counts = powers_of_two(RankCount::Auto.resolve()?);
        }
        counts.sort_unstable();
        counts.dedup();
        Ok(counts)
    }

    fn job(&self, ranks: NonZeroU32) -> anyhow::Result<Job> {
        // The program may change its directory.
        let out = path::absolute(&self.out).context("--out")?;
        let folder = out.join(format!("ranks-{ranks}"));
        let arguments = self.args.iter().map(|argument| words::filled(argument, ranks, &folder));
        let options = AgentOptions {
            args: arguments.collect::<Result<_, _>>()?,
            nproc_per_node: ranks,
            numa_binding: self.numa_binding,
            ..AgentOptions::new(self.program.clone())
        };
        Ok(Job { ranks, folder, options })
    }

    /// Runs a job to its end, and writes what is known then: a later failure takes nothing away.
    fn measure(&self, job: &Job, figures: &mut Figures) -> anyhow::Result<()> {
        let on = format!("on {}", counted(job.ranks.get() as usize, "rank"));
        let _ = writeln!(io::stderr(), "bonfire scaling: {on}");
        fs::create_dir(&job.folder)
            .with_context(|| format!("cannot make the folder {}", job.folder.display()))?;
        let start = Instant::now();
        if let Err(error) = job.options.run() {
            let _ = fs::remove_dir(&job.folder);
            return Err(error).context(on);
        }
        let program = start.elapsed();
        let training = Training::read(&job.folder, job.ranks).context(on);
        let (training, read) = match training {
            Ok(training) => (training, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let ranks = job.ranks.get();
        figures.runs.push(Run { ranks, program_s: program.as_secs_f64(), training });
        figures.write(&self.out)?;
        read
    }
}

struct Job {
    ranks: NonZeroU32,
    folder: PathBuf,
    options: AgentOptions,
}

/// Makes the folder, which must be empty: a program could continue from what an earlier one left.
fn claim(out: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make the folder {}", out.display()))?;
    let is_empty = fs::read_dir(out).map(|mut entries| entries.next().is_none());
    ensure!(
        is_empty.with_context(|| format!("cannot read the folder {}", out.display()))?,
        "{} is not empty; give --out another folder, or remove it",
        out.display()
    );
    Ok(())
}

fn powers_of_two(most: NonZeroU32) -> Vec<NonZeroU32> {
    let next = |count: &NonZeroU32| count.checked_mul(NonZeroU32::MIN.saturating_add(1));
    std::iter::successors(Some(NonZeroU32::MIN), next).take_while(|count| *count <= most).collect()
}

fn count(text: &str) -> Result<NonZeroU32, &'static str> {
    let number: u32 = text.trim().parse().map_err(|_| "expected numbers of ranks, as in 1,2,4")?;
    NonZeroU32::new(number).ok_or("a job needs at least 1 rank")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_ranks_are_powers_of_two_up_to_what_there_is() {
        let up_to = |most| -> Vec<u32> {
            let counts = powers_of_two(NonZeroU32::new(most).unwrap());
            counts.into_iter().map(NonZeroU32::get).collect()
        };
        assert_eq!(up_to(1), [1]);
        assert_eq!(up_to(6), [1, 2, 4]);
        assert_eq!(up_to(8), [1, 2, 4, 8]);
        assert_eq!(up_to(u32::MAX).len(), 32);
    }

    #[test]
    fn no_rank_and_no_number_are_refused() {
        assert_eq!(count("3").map(NonZeroU32::get), Ok(3));
        assert_eq!(count("0"), Err("a job needs at least 1 rank"));
        for text in ["", "two", "-1", "auto"] {
            assert!(count(text).is_err(), "{text}");
        }
    }
}
