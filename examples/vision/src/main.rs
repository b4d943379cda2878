//! Trains and tests image classifiers on one rank or many:
//! `vision train --nproc 2 --cfg FILE KEY VALUE ...`.
//!
//! The program is its own launcher. Errors of the configuration and the data set are found before any rank is started,
//! so each is reported once, and nothing is written. Ctrl-C saves a checkpoint.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use bonfire::world::StopRequest;
use bonfire::{LaunchArgs, World};
use clap::{Args, Parser, Subcommand};
use vision::config::Config;
use vision::data::Data;
use vision::evaluate::evaluate;
use vision::train::{BEST_FILE, End, train};
use vision::{show, weights};

/// Trains and tests image classifiers data-parallel, after Distribuuuu.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a network, or goes on with it.
    Train(Options),
    /// Tests the network in MODEL.WEIGHTS, or else the best of OUT_DIR.
    Test(Options),
}

#[derive(Debug, Args)]
struct Options {
    #[command(flatten)]
    launch: LaunchArgs,

    /// The configuration, a YAML file; without it the defaults
    #[arg(long, value_name = "FILE")]
    cfg: Option<PathBuf>,

    /// Changes of the configuration, such as TRAIN.BATCH_SIZE 64; after all other options
    #[arg(value_name = "KEY VALUE", trailing_var_arg = true, allow_hyphen_values = true)]
    pairs: Vec<String>,
}

fn main() -> ExitCode {
    let Cli { command } = bonfire::launcher::parse_args();
    let (launch, result) = match &command {
        Command::Train(options) => (&options.launch, run_train(options)),
        Command::Test(options) => {
            let tested = run_test(options);
            (&options.launch, tested.map(|()| ExitCode::SUCCESS))
        }
    };
    result.unwrap_or_else(|error| launch.report(error.as_ref()))
}

fn run_train(options: &Options) -> Result<ExitCode> {
    let config = Config::load(options.cfg.as_deref(), &options.pairs)?;
    let data = Data::open(&config)?;
    let mut code = ExitCode::SUCCESS;
    bonfire::launch_with(&options.launch, |world: World| -> Result<()> {
        match train(&world, &config, &data)? {
            End::Stopped { code: stopped } => code = ExitCode::from(stopped),
            End::Trained(trained) if world.is_main() => show(&format!(
                "done: Acc@1 {:.3}, best {:.3}; checkpoints, {BEST_FILE}, report.html with the \
                 curves, log.jsonl and TensorBoard's events are in {}",
                trained.test.top1,
                trained.best,
                config.out_dir.display()
            )),
            End::Trained(_) => {}
        }
        Ok(())
    })?;
    Ok(code)
}

fn run_test(options: &Options) -> Result<()> {
    let config = Config::load(options.cfg.as_deref(), &options.pairs)?;
    let best = config.out_dir.join(BEST_FILE);
    let path = config.model.weights.clone().unwrap_or(best);
    ensure!(
        path.is_file(),
        "there is no {}; train first, or give MODEL.WEIGHTS a file",
        path.display()
    );
    let data = Data::open(&config)?;
    bonfire::launch_with(&options.launch, |world: World| -> Result<()> {
        let model = config.network().init(0, &world.device());
        let model = bonfire::all_or_none(&world, weights::load(model, &path, &world))?;
        let figures = evaluate(&world, &model, &data, &config, &StopRequest::never())?;
        let figures = figures.context("a test is not stopped")?;
        if world.is_main() {
            show(&format!(
                "{} on {} pictures of {}: loss {:.4}, Acc@1 {:.3}, Acc@{} {:.3}",
                path.display(),
                figures.samples,
                data.test.name(),
                figures.loss,
                figures.top1,
                config.train.topk,
                figures.topk
            ));
        }
        Ok(())
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("vision", |words| Cli::try_parse_from(words));
    }
}
