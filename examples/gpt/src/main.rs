//! Trains a character transformer on one rank or many: `gpt --nproc 2`.
//!
//! The program is its own launcher. Errors of the command line, the text and the report's folder are found before any
//! rank is started, so each is reported once.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bonfire::collective::WorldSize;
use bonfire::ddp::Placement;
use bonfire::ddp::Sharding;
use bonfire::{LaunchArgs, World};
use clap::Parser;
use gpt::data::Corpus;
use gpt::options::{Reporting, Settings, TrainArgs};
use gpt::plan::plan;
use gpt::sample::Sample;
use gpt::text::Text;
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
    match run(&launch, train) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", launch.exit_message(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(launch: &LaunchArgs, args: TrainArgs) -> Result<()> {
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global()
            .context("--threads cannot be set")?;
    }
    let (plans, memory) = (args.plan, args.memory);
    let settings = Settings::try_from(args)?;
    let context = settings.model.context;
    let corpus = match &settings.data {
        Some(path) => {
            let text = Text::read(path).context("--data cannot be used")?;
            Corpus::new(text, context)?
        }
        None => Corpus::own(context)?,
    };
    if plans {
        let ranks = WorldSize::new(launch.flags.rank_count()?.resolve()?.get())?;
        let trainings = plan(&settings, &corpus, ranks)?;
        let mut placements = Placement::presets().to_vec();
        if !placements.contains(&settings.placement) {
            placements.push(settings.placement);
        }
        let grid = settings.mesh.over(ranks)?;
        let stages = trainings.len() > 1;
        // Stages run outside of the passes that gather parameters.
        placements.retain(|placement| !stages || placement.parameters != Sharding::Sharded);
        let placements = placements.into_iter();
        let placements = placements.map(|placement| grid.placement(placement));
        for (rank, training) in trainings.iter().enumerate() {
            if stages {
                println!("rank {rank} of pp:");
            }
            print!("{}", training.table(placements.clone(), memory));
        }
        return Ok(());
    }
    let told = settings.reporting.report_dir.as_deref();
    let folder = told.unwrap_or(Path::new(Reporting::RUNS));
    fs::create_dir_all(folder).with_context(|| {
        format!("cannot create {}; choose another --report-dir", folder.display())
    })?;
    bonfire::launch_with(launch, |world: World| -> Result<()> {
        let trained = train(&world, &settings, &corpus)?;
        if world.is_main() {
            present(&trained, &world, &settings, &corpus)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn present(trained: &Trained, world: &World, settings: &Settings, corpus: &Corpus) -> Result<()> {
    let reporting = &settings.reporting;
    let sample = Sample {
        len: reporting.sample,
        context: settings.model.context,
        temperature: reporting.temperature,
        seed: settings.seed,
    };
    if sample.len > 0 {
        let text = sample.generate(&trained.model, corpus.text.vocabulary(), &world.device());
        println!("\n--- sample, temperature {} ---\n{text}\n", sample.temperature);
    }
    println!("--- report ---\n{}", trained.report);
    let folder = trained.report.folder.as_deref();
    let folder = folder.context("a training has a folder")?;
    trained.report.write(folder)?;
    println!(
        "report.html with the curves, report.json, log.jsonl and TensorBoard's events are in {}",
        folder.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("gpt", |words| Cli::try_parse_from(words));
    }
}
