//! `bonfire config`: what a configuration file means, without running anything.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bonfire_config::deepspeed::{DeepSpeedFile, Program, Resolved};
use bonfire_config::{Config, ConfigError, ConfigErrors, Format, Source, is_deepspeeds};
use bonfire_plan::{Axis, WorldSize};
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

/// Check a configuration file: every value with where it is from, what has no effect, and everything that is wrong.
///
/// FILE is TOML or JSON of Bonfire's own, or DeepSpeed's JSON, in which a value "auto" is for the program to say. It ends
/// with 1 if anything is wrong.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The file
    file: PathBuf,
    /// What comes after the file, as on the command line of a training: optimizer.lr=1e-3
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
    /// Ranks of the job, for the sizes of batches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ranks: Option<u64>,
}

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let ConfigCommand::Check(args) = &args.command;
    match check(args) {
        Ok(text) => crate::print(&text).map(|()| ExitCode::SUCCESS),
        Err(lines) => {
            for line in lines {
                // A closed terminal must not cause a panic.
                let _ = writeln!(io::stderr(), "{line}");
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

fn check(args: &CheckArgs) -> Result<String, Vec<String>> {
    let file = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).map_err(|error| vec![format!("{file}: {error}")])?;
    let of_file = |errors| lines(&file, errors);
    let of_words = |errors| lines(&Source::CommandLine, errors);
    if is_deepspeeds(&text) {
        let file = DeepSpeedFile::parse(&text).map_err(of_file)?;
        return match file.resolve(&Program::default()) {
            Ok(theirs) => {
                let config = Config::default().with_deepspeed(&theirs).map_err(of_file)?;
                let config = config.with_words(&args.words).map_err(of_words)?;
                let said = |value: &Resolved| value.source == Source::CommandLine;
                let words = config.resolved().into_iter().filter(said);
                let resolved: Vec<Resolved> =
                    theirs.resolved.iter().cloned().chain(words).collect();
                explained(&resolved, &config, args.ranks).map_err(of_file)
            }
            Err(errors) => open(errors).map_err(of_file),
        };
    }
    let is_toml = args.file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    let format = if is_toml { Format::Toml } else { Format::Json };
    let config = Config::default().with_file(&text, format).map_err(of_file)?;
    let config = config.with_environment(std::env::vars());
    let config = config.map_err(|errors| lines(&Source::Environment, errors))?;
    let config = config.with_words(&args.words).map_err(of_words)?;
    explained(&config.resolved(), &config, args.ranks).map_err(of_file)
}

/// Each error behind the source of the values that are wrong.
fn lines(source: &dyn Display, ConfigErrors(errors): ConfigErrors) -> Vec<String> {
    errors.iter().map(|error| format!("{source}: {error}")).collect()
}

/// What the program must say, if nothing else is wrong.
fn open(ConfigErrors(errors): ConfigErrors) -> Result<String, ConfigErrors> {
    let is_open = |error: &ConfigError| matches!(error, ConfigError::Unresolved { .. });
    let (open, wrong): (Vec<_>, Vec<_>) = errors.into_iter().partition(is_open);
    if !wrong.is_empty() {
        return Err(ConfigErrors(wrong));
    }
    let open = open.iter().map(|error| match error {
        ConfigError::Unresolved { path, needs } => format!("{path}: {needs}\n"),
        other => format!("{other}\n"),
    });
    let open: String = open.collect();
    Ok(format!("what the program must say, for \"auto\":\n{open}"))
}

fn explained(
    resolved: &[Resolved],
    config: &Config,
    ranks: Option<u64>,
) -> Result<String, ConfigErrors> {
    let width = resolved.iter().map(|value| value.path.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for value in resolved {
        let (path, given, source) = (&value.path, &value.value, &value.source);
        text += &format!("{path:width$}  {given:<12} {source}\n");
    }
    if let Some(ranks) = ranks {
        let ranks = data_ranks(config, ranks)?;
        let batches = config.batches(ranks)?;
        text += &format!(
            "\na step: {} samples = {} on each of {ranks} ranks x {} forward passes\n",
            batches.train, batches.micro, batches.accumulation
        );
    }
    if !config.notes.is_empty() {
        text += "\nto know:\n";
        for note in &config.notes {
            text += &format!("{}: {}\n", note.path, note.text);
        }
    }
    Ok(text)
}

/// The ranks that have different samples, of all that the mesh is laid out over.
fn data_ranks(config: &Config, ranks: u64) -> Result<u64, ConfigErrors> {
    let world_size = WorldSize::new(u32::try_from(ranks).unwrap_or(u32::MAX));
    let world_size = world_size.unwrap_or(WorldSize::ONE);
    let grid = config.mesh.over(world_size).map_err(|cause| {
        ConfigErrors(vec![ConfigError::Refused {
            path: "mesh".to_owned(),
            found: config.mesh.to_string(),
            reason: cause.to_string(),
        }])
    })?;
    let data = [Axis::DpReplicate, Axis::DpShard].map(|axis| u64::from(grid.size(axis)));
    Ok(data.iter().product())
}
