//! Trains on one rank or many: `finetune --data flower_photos --weights resnet34.pth --nproc 2`.
//!
//! Errors of the command line and the pictures' folder are found before any rank is started, so each is reported once.
//! Ctrl-C saves a checkpoint.

use std::process::ExitCode;

use anyhow::Result;
use bonfire::{LaunchArgs, World};
use clap::Parser;
use finetune::data::Data;
use finetune::model::check_weights;
use finetune::options::Options;
use finetune::train::train;

/// Trains a residual network on a folder of pictures, one sub-folder per class, data-parallel.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    launch: LaunchArgs,
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let Cli { launch, options } = bonfire::launcher::parse_args();
    run(&launch, &options).unwrap_or_else(|error| launch.report(error.as_ref()))
}

fn run(launch: &LaunchArgs, options: &Options) -> Result<ExitCode> {
    let data = Data::open(options)?;
    check_weights(options)?;
    let mut code = ExitCode::SUCCESS;
    bonfire::launch_with(launch, |world: World| -> Result<()> {
        if let Some(stopped) = train(&world, options, &data)? {
            code = ExitCode::from(stopped);
        }
        Ok(())
    })?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_pages_are_understood() {
        bonfire_testkit::assert_understood("finetune", |words| Cli::try_parse_from(words));
    }
}
