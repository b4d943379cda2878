//! `bonfire config`: what a configuration file means, without running anything.

use std::path::PathBuf;
use std::process::ExitCode;

use bonfire_deepspeed::{
    ConfigError, ConfigErrors, DeepSpeedConfig, DeepSpeedFile, Program, Source,
};
use clap::{Args, Subcommand};

/// Explain configuration files.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Check(CheckArgs),
}

/// Check a DeepSpeed JSON file: every value with where it is from, what has no effect, and everything that is wrong.
///
/// It ends with 1 if anything is wrong. A value "auto" is for the program to say.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The file.
    file: PathBuf,
    /// Ranks of the job, for the sizes of batches.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ranks: Option<u64>,
}

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    let ConfigCommand::Check(args) = &args.command;
    match check(args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(lines) => {
            for line in lines {
                eprintln!("{}: {line}", args.file.display());
            }
            ExitCode::FAILURE
        }
    }
}

/// What the file means, or what is wrong with it.
fn check(args: &CheckArgs) -> Result<String, Vec<String>> {
    let text = std::fs::read_to_string(&args.file).map_err(|error| vec![error.to_string()])?;
    let lines = |errors: Vec<ConfigError>| errors.iter().map(ToString::to_string).collect();
    let file = DeepSpeedFile::parse(&text).map_err(|ConfigErrors(errors)| lines(errors))?;
    match file.resolve(&Program::default()) {
        Ok(config) => explained(&config, args.ranks).map_err(|error| vec![error.to_string()]),
        Err(ConfigErrors(errors)) => {
            let is_open = |error: &ConfigError| matches!(error, ConfigError::Unresolved { .. });
            let (open, wrong): (Vec<_>, Vec<_>) = errors.into_iter().partition(is_open);
            if !wrong.is_empty() {
                return Err(lines(wrong));
            }
            let open = open.iter().map(|error| match error {
                ConfigError::Unresolved { path, needs } => format!("{path}: {needs}\n"),
                other => format!("{other}\n"),
            });
            Ok(format!(
                "what the program must say, for \"auto\":\n{}",
                open.collect::<String>()
            ))
        }
    }
}

fn explained(config: &DeepSpeedConfig, ranks: Option<u64>) -> Result<String, ConfigError> {
    let width = config.resolved.iter().map(|value| value.path.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for value in &config.resolved {
        let source = match value.source {
            Source::File => "file",
            Source::Program => "program",
            Source::Default => "default",
        };
        text += &format!("{:width$}  {:<12} {source}\n", value.path, value.value);
    }
    if let Some(ranks) = ranks {
        let batches = config.batch.resolve(ranks)?;
        text += &format!(
            "\na step: {} samples = {} on each of {ranks} ranks x {} forward passes\n",
            batches.train, batches.micro, batches.accumulation
        );
    }
    if !config.notes.is_empty() {
        text += "\nwithout effect here:\n";
        for note in &config.notes {
            text += &format!("{}: {}\n", note.path, note.text);
        }
    }
    Ok(text)
}
