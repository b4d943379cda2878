//! Trains a character transformer on one rank or many: `gpt --nproc 2`.
//!
//! The program is its own launcher. Errors of the command line and the text are found before any rank is started, so
//! each is reported once.

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use anyhow::{Context, Result};
use bonfire::collective::WorldSize;
use bonfire::{LaunchArgs, World, all_or_none};
use clap::Parser;
use gpt::corpus::{Corpus, read};
use gpt::options::{Settings, TrainArgs};
use gpt::plan::tables;
use gpt::sample::sample;
use gpt::train::{Trained, train};

/// Trains a decoder-only character transformer data-parallel: a few minutes on two cores.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let Cli { launch, train } = bonfire::launcher::parse_args();
    run(&launch, train).unwrap_or_else(|error| launch.report(error.as_ref()))
}

fn run(launch: &LaunchArgs, args: TrainArgs) -> Result<ExitCode> {
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.into())
            .build_global()
            .context("--threads cannot be set")?;
    }
    let settings = Settings::try_from(args)?;
    if settings.args.plan {
        let ranks = launch.flags.rank_count()?.resolve()?.get();
        show(tables(&settings, &corpus(&settings.args)?, WorldSize::new(ranks)?)?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    bonfire::launch_with(launch, |world: World| -> Result<()> {
        // On each host, so that one without the file ends them all.
        let corpus = all_or_none(&world, corpus(&settings.args))?;
        let trained = train(&world, &settings, &corpus)?;
        code = trained.stop_code.map_or(code, ExitCode::from);
        if world.is_main() {
            present(&trained, &settings, &corpus);
        }
        Ok(())
    })?;
    Ok(code)
}

fn corpus(args: &TrainArgs) -> Result<Corpus> {
    match &args.data {
        Some(path) => {
            let text = read(path).context("--data cannot be used")?;
            Corpus::new(path.display().to_string(), &text, args.context)
        }
        None => Corpus::own(args.context),
    }
}

fn present(trained: &Trained, settings: &Settings, corpus: &Corpus) {
    let TrainArgs { sample: len, temperature, .. } = settings.args;
    if len > 0 {
        let (vocabulary, seed) = (&corpus.vocabulary, settings.config.seed);
        let text = sample(&trained.model, vocabulary, len, temperature, seed);
        show(&format!("\n--- sample, temperature {temperature} ---\n{text}\n"));
    }
    show(&format!("--- report ---\n{}", trained.report));
    if let Some(folder) = &trained.report.folder {
        show(&format!(
            "the report, log.jsonl and TensorBoard's events are in {}",
            folder.display()
        ));
    }
}

/// Prints a text. Nobody may be there to read it, as behind `| head`; the training is saved all the same.
fn show(text: &str) {
    let _ = writeln!(stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("gpt", |words| Cli::try_parse_from(words));
    }
}
