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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 14))]
    ranks: Option<u32>,
}

pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let ConfigCommand::Check(args) = &args.command;
    match check(args) {
        Ok(text) => crate::print(&text).map(|()| ExitCode::SUCCESS),
        Err(lines) => {
            // A closed terminal must not cause a panic.
            let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn check(args: &CheckArgs) -> Result<String, Vec<String>> {
    let file = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).map_err(|error| vec![format!("{file}: {error}")])?;
    let of_file = |errors| lines(&file, errors);
    let is_toml = args.file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml"));
    let format = if is_toml { Format::Toml } else { Format::Json };
    let (config, theirs) = if is_deepspeeds(&text) {
        let parsed = DeepSpeedFile::parse(&text);
        match parsed.and_then(|file| file.resolve(&Program::default())) {
            Ok(theirs) => (Config::default().with_deepspeed(&theirs), theirs.resolved),
            Err(errors) => return open(errors).map_err(of_file),
        }
    } else {
        (Config::default().with_file(&text, format), Vec::new())
    };
    let config = config.map_err(of_file)?.with_environment(std::env::vars());
    let config = config.map_err(|errors| lines(&Source::Environment, errors))?;
    let config = config.with_words(&args.words);
    let config = config.map_err(|errors| lines(&Source::CommandLine, errors))?;
    let changes = [Source::Environment, Source::CommandLine];
    let is_shown = |value: &Resolved| theirs.is_empty() || changes.contains(&value.source);
    let own: Vec<Resolved> = config.resolved().into_iter().filter(is_shown).collect();
    explained(&[theirs, own].concat(), &config, args.ranks).map_err(of_file)
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
    ranks: Option<u32>,
) -> Result<String, ConfigErrors> {
    let width = resolved.iter().map(|value| value.path.len()).max().unwrap_or_default();
    let mut text = String::new();
    for value in resolved {
        let (path, source) = (&value.path, &value.source);
        // No program has said it yet.
        let given = if *source == Source::Program { "auto" } else { &value.value };
        text += &format!("{path:width$}  {given:<12} {source}\n");
    }
    config.check(None)?;
    if let Some(ranks) = ranks {
        let grid = config.grid(WorldSize::new(ranks).expect("clap takes 1 or more"))?;
        let ranks = u64::from(grid.size(Axis::DpReplicate) * grid.size(Axis::DpShard));
        let batches = config.batches(ranks)?;
        match WorldSize::new(grid.size(Axis::Pp)) {
            Err(_) | Ok(WorldSize::ONE) => {}
            Ok(stages) => drop(config.stages(stages, &batches)?),
        }
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
