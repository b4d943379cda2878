//! Flags of a program that launches itself.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use bonfire_collective::GroupOptions;
use bonfire_config::Config;
use bonfire_launch::{Exit, LaunchError, LaunchFlags, RankCount, StreamChoice, parse_args_from};
use bonfire_plan::UnknownName;
use bonfire_train::{DeviceKind, Occupancy};
use clap::{Args, Parser};

use crate::error::{Error, Result, with_causes};

/// The flags that every program has which launches itself: flatten it into the program's own.
///
/// ```
/// #[derive(clap::Parser)]
/// struct Args {
///     #[command(flatten)]
///     launch: bonfire::LaunchArgs,
///     /// Steps to train
///     #[arg(long, default_value_t = 1000)]
///     steps: usize,
/// }
/// # use clap::Parser;
/// # let args = Args::parse_from(["train", "--nproc", "2", "--steps", "7"]);
/// # assert_eq!(args.launch.flags.rank_count().unwrap().to_string(), "2");
/// # assert_eq!(args.steps, 7);
/// ```
#[derive(Args, Clone, Debug, Default)]
#[non_exhaustive]
pub struct LaunchArgs {
    /// The ranks, the hosts, the restarts, the logs: the flags of `bonfire run`. Ignored under a launcher.
    #[command(flatten)]
    pub flags: LaunchFlags,

    /// Where each rank computes: cpu, cuda, wgpu, or auto (the best that this build and host have); cuda:1 is one
    /// rank on that GPU
    #[arg(
        long,
        value_name = "auto|cpu|cuda|cuda:N|wgpu",
        env = "BONFIRE_DEVICE",
        default_value = "auto",
        help_heading = "Launching"
    )]
    pub device: DeviceChoice,

    /// Let several ranks share a CUDA device where there are fewer devices than ranks
    #[arg(long, help_heading = "Launching")]
    pub oversubscribe: bool,

    /// Taken for command lines of older launchers, among them DeepSpeed's; LOCAL_RANK says the same
    #[arg(long = "local_rank", alias = "local-rank", value_name = "N", hide = true)]
    pub local_rank: Option<u32>,

    /// Timeouts and transports, for the program to set.
    #[arg(skip)]
    pub group: GroupOptions,
}

/// The kind of device of each rank and, of several GPUs, which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The kind of device: CPU, CUDA, wgpu or auto.
    pub kind: DeviceKind,
    /// The number of the GPU, as the driver counts; without one each rank has its own.
    pub index: Option<u32>,
}

impl FromStr for DeviceChoice {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let numbered = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        Ok(match numbered {
            Some(index) => Self { kind: DeviceKind::Cuda, index: Some(index) },
            None => text.parse::<DeviceKind>()?.into(),
        })
    }
}

impl From<DeviceKind> for DeviceChoice {
    fn from(kind: DeviceKind) -> Self {
        Self { kind, index: None }
    }
}

impl LaunchArgs {
    /// Reads the command line of a program without its own flags before `--`, and prints the help if it asks for that.
    pub(crate) fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self> {
        /// What follows `--`, and every word that is no flag, is for the program itself.
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            launch: LaunchArgs,
            /// The program's own words
            #[arg(value_name = "WORD")]
            _words: Vec<OsString>,
            /// The program's own arguments, flags among them
            #[arg(last = true, value_name = "ARGUMENT")]
            _own: Vec<OsString>,
        }
        let flags = parse_args_from::<Flags>(arguments).map_err(|wrong| {
            Error::Usage(if wrong.starts_with("unexpected argument") {
                format!("{wrong}; the program's own flags belong behind --")
            } else {
                wrong
            })
        });
        Ok(flags?.launch)
    }

    /// Prints an error with its causes in one line, at the end of the process that the user has started, and returns its
    /// exit code: that of [`LaunchError::exit_code`], such as 130 after Ctrl-C, or 1.
    ///
    /// The text of a rank's error is on the same screen already, unless the flags sent its output elsewhere. So it
    /// only names the rank.
    pub fn report(&self, error: &(dyn StdError + 'static)) -> ExitCode {
        let (mut text, mut code) = (with_causes(error), 1);
        if let Some(Error::Launch(launch)) = error.downcast_ref() {
            code = launch.exit_code();
            if let LaunchError::Rank(failure) = launch
                && self.flags.redirects.clone().unwrap_or_default() == StreamChoice::default()
                && failure.last_lines.last().is_some_and(|line| line.starts_with("error: "))
                && matches!(failure.exit, Exit::Code(1) | Exit::Disagreed { .. })
            {
                text = failure.summary();
            }
        }
        let _ = writeln!(std::io::stderr(), "error: {text}");
        ExitCode::from(code)
    }

    pub(crate) fn devices(&self) -> (DeviceKind, Occupancy) {
        let occupancy =
            if self.oversubscribe { Occupancy::Oversubscribed } else { Occupancy::Exclusive };
        (self.device.kind, occupancy)
    }

    pub(crate) fn launch_flags(&self) -> LaunchFlags {
        let mut flags = self.flags.clone();
        if let Some(index) = self.device.index {
            flags.hosts.gpus.get_or_insert_with(|| index.to_string());
        }
        flags
    }

    /// The ranks to start: `auto` counts GPUs only if they will be used.
    pub(crate) fn rank_count(&self) -> Result<RankCount> {
        let uses_gpus = match self.device.kind {
            DeviceKind::Cpu => false,
            DeviceKind::Cuda | DeviceKind::Wgpu => true,
            DeviceKind::Auto => cfg!(any(feature = "cuda-llvm-unfused", feature = "wgpu-unfused")),
        };
        Ok(match self.launch_flags().rank_count()? {
            RankCount::Auto if !uses_gpus => RankCount::Cpu,
            count => count,
        })
    }
}

/// The flags of a program that takes a [`Config`]: flatten it into the program's own.
///
/// ```
/// #[derive(clap::Parser)]
/// struct Args {
///     #[command(flatten)]
///     launch: bonfire::LaunchArgs,
///     #[command(flatten)]
///     config: bonfire::config::ConfigArgs,
/// }
/// # use clap::Parser;
/// # let args = Args::parse_from(["train", "--nproc", "2", "optimizer.lr=0.5", "placement=zero1"]);
/// # assert_eq!(args.config.load()?.optimizer.lr, 0.5);
/// # Ok::<(), bonfire::Error>(())
/// ```
#[derive(Args, Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConfigArgs {
    /// What to do: TOML, JSON, or DeepSpeed's JSON; `bonfire config check` explains it
    #[arg(long, alias = "deepspeed_config", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Taken for command lines of DeepSpeed; the file is --deepspeed_config
    #[arg(long, requires = "config", hide = true)]
    pub deepspeed: bool,

    /// What comes after the file: optimizer.lr=1e-3 placement=zero2
    #[arg(value_name = "KEY=VALUE")]
    pub words: Vec<String>,
}

impl ConfigArgs {
    /// Loads the configuration: defaults, the file, the environment, the words.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn load(&self) -> Result<Config> {
        self.load_over(Config::default())
    }

    /// Loads the configuration over a program's own defaults.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn load_over(&self, defaults: Config) -> Result<Config> {
        Ok(defaults.load_over(self.config.as_deref(), &self.words)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<LaunchArgs> {
        let line = std::iter::once("train").chain(line.split_whitespace());
        LaunchArgs::from_arguments(line.map(OsString::from))
    }

    #[test]
    fn both_spellings_are_found_among_the_programs_own_arguments() {
        for line in
            ["data --nproc 3 --device cpu file", "--nproc=3 --device=cpu -- --nproc 9 -v --lr=1"]
        {
            let args = parse(line).unwrap();
            assert_eq!(
                (args.flags.rank_count().unwrap().to_string(), args.device),
                ("3".to_owned(), DeviceKind::Cpu.into())
            );
        }
    }

    #[test]
    fn ranks_share_devices_where_the_flag_is_given() {
        let devices = |line| parse(line).unwrap().devices();
        assert_eq!(devices("--device cuda --nproc 2"), (DeviceKind::Cuda, Occupancy::Exclusive));
        assert_eq!(
            devices("--nproc 2 --oversubscribe --device cuda"),
            (DeviceKind::Cuda, Occupancy::Oversubscribed)
        );
    }

    #[test]
    fn one_gpu_of_several_is_chosen_by_its_number() {
        let args = parse("--device cuda:1").unwrap();
        assert_eq!(args.devices().0, DeviceKind::Cuda);
        let flags = args.launch_flags();
        assert_eq!(flags.hosts.gpus.as_deref(), Some("1"));
        assert!(flags.need_agent(), "what GPUs a process sees is settled before it starts");
        parse("--device cpu:1").unwrap_err();
    }

    #[test]
    fn older_launchers_give_the_local_rank_as_a_flag() {
        for line in ["--local_rank=1", "--local-rank 1 --device cpu"] {
            assert_eq!(parse(line).unwrap().local_rank, Some(1));
        }
    }

    #[test]
    fn mistakes_are_one_line() {
        let cases = [
            ("--nproc 0", "a job needs at least 1 rank"),
            ("--nproc", "a value is required for '--nproc"),
            ("--device tpu", "'tpu' for '--device"),
            ("--npoc 4", "'--npoc' found; did you mean --nproc"),
            ("--max-restart 4", "did you mean --max-restarts?"),
            ("-n 4", "unexpected argument '-n' found"),
            ("--steps 7", "try --help; the program's own flags belong behind --"),
        ];
        for (line, expected) in cases {
            let message = format!("{:?}", parse(line).unwrap_err());
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    /// What the pages show the reader to type for a program of his own.
    #[test]
    fn command_lines_of_the_pages_are_understood() {
        #[derive(Debug, Parser)]
        struct Program {
            #[command(flatten)]
            launch: LaunchArgs,
            #[command(flatten)]
            config: ConfigArgs,
            #[arg(last = true)]
            own: Vec<OsString>,
        }
        let mut count = 0;
        for line in bonfire_testkit::command_lines() {
            let words = match line.words[0].as_str() {
                "./train" => &line.words[..],
                "cargo" if line.words[1] == "run" && line.value("-p").is_none() => {
                    &[&line.words[..1], line.behind_dashes()].concat()
                }
                _ => continue,
            };
            if let Err(error) = Program::try_parse_from(words) {
                panic!("{}: {}: {error}", line.page, line.words.join(" "));
            }
            count += 1;
        }
        assert!(count > 5, "the pages have {count} command lines");
    }

    #[test]
    fn auto_on_the_cpu_counts_cores() {
        assert_eq!(
            parse("--nproc auto --device cpu").unwrap().rank_count().unwrap(),
            RankCount::Cpu
        );
        assert_eq!(
            parse("--nproc auto --device cuda").unwrap().rank_count().unwrap(),
            RankCount::Auto
        );
    }
}
