//! Hosts of a job that one command starts over ssh: a file that lists them, as DeepSpeed's launcher reads it,
//! and which of them, and of their devices, are used.

mod remote;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Args;
use thiserror::Error;

pub use self::remote::HostsOfFile;

/// Set where the launcher of a host was itself started over ssh, which then starts nobody further.
pub(crate) const STARTED_OVER_SSH: &str = "BONFIRE_STARTED_OVER_SSH";
/// What this host is called where no file names it, in DeepSpeed's words.
const THIS_HOST: &str = "localhost";

/// The flags of DeepSpeed's launcher that say where ranks are started.
#[derive(Args, Clone, Debug, Default)]
pub struct HostFlags {
    /// File with a line `HOST slots=N` for each host of the job: ssh starts this command on each of them, N ranks
    /// on a host
    #[arg(long, value_name = "FILE")]
    pub hostfile: Option<PathBuf>,

    /// Hosts of the file to use, and their GPUs: HOST@HOST:0,2. Without a file: localhost:2,3
    #[arg(long, value_name = "HOSTS", conflicts_with = "exclude")]
    pub include: Option<String>,

    /// Hosts of the file, or GPUs of theirs, not to use, in the same form
    #[arg(long, value_name = "HOSTS", requires = "hostfile")]
    pub exclude: Option<String>,

    /// Use the first N hosts of the file
    #[arg(
        long,
        alias = "num_nodes",
        value_name = "N",
        requires = "hostfile",
        conflicts_with_all = ["include", "exclude"]
    )]
    pub num_nodes: Option<NonZeroU32>,

    /// Ranks on each host, on its first N GPUs
    #[arg(
        long,
        alias = "num_gpus",
        value_name = "N",
        conflicts_with_all = ["include", "exclude"]
    )]
    pub num_gpus: Option<NonZeroU32>,

    /// GPUs of this host to use, with a rank on each: 2,3
    #[arg(
        long,
        value_name = "LIST",
        conflicts_with_all = ["hostfile", "include", "num_gpus"]
    )]
    pub gpus: Option<String>,

    /// Further arguments of ssh, as in "-p 2222 -i KEY"
    #[arg(
        long,
        alias = "launcher_args",
        value_name = "ARGUMENTS",
        requires = "hostfile",
        allow_hyphen_values = true
    )]
    pub launcher_args: Option<String>,
}

/// A host, and which of its slots, each for one rank, are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) slots: Vec<u32>,
    /// Whether these are all that the file gives.
    pub(crate) is_whole: bool,
}

/// The hosts cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostsError {
    /// The file of `--hostfile` cannot be read.
    #[error("cannot read the hostfile {}", .path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// The error that the operating system returned.
        source: std::io::Error,
    },
    /// A line of the hostfile has another form, or repeats a host.
    #[error("line {line} of the hostfile is \"{text}\": expected HOST slots=N, each host once")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The line as it is, with its comment.
        text: String,
    },
    /// The value of a flag is not a list of hosts or slots.
    #[error("\"{text}\" is not a choice of hosts: expected HOST@HOST:0,2")]
    Choice {
        /// The value, or the list of slots in it.
        text: String,
    },
    /// A chosen host or slot is not in the hostfile.
    #[error("{chosen} is not in the hostfile, which has {there}")]
    Unknown {
        /// The host, or `HOST:SLOT` if only the slot is missing.
        chosen: String,
        /// All hosts of the file and their numbers of slots.
        there: String,
    },
    /// The hostfile is empty, or no host is chosen.
    #[error("no host is left: the hostfile has none, or none is chosen")]
    Empty,
    /// The chosen hosts have different numbers of slots.
    #[error(
        "{first} has {slots} ranks and {other} has {other_slots}: every host needs equally many; choose with \
         --include, --exclude or --num_gpus"
    )]
    Unequal {
        /// The first of the chosen hosts.
        first: String,
        /// The number of chosen slots on the first host.
        slots: usize,
        /// The first host with another number of slots.
        other: String,
        /// The number of chosen slots on that host.
        other_slots: usize,
    },
    /// A host other than this one is chosen without a hostfile.
    #[error(
        "--include names {0}, which only a --hostfile can say how to reach; without one it is for localhost"
    )]
    NoFile(String),
}

impl HostFlags {
    /// The hosts that the flags choose: nothing without such flags, and where ssh has started this process.
    pub(crate) fn hosts(&self) -> Result<Option<Vec<Host>>, HostsError> {
        if std::env::var_os(STARTED_OVER_SSH).is_some() {
            return Ok(None);
        }
        let hosts = match &self.hostfile {
            Some(path) => self.of_file(&read(path)?)?,
            None => match self.of_this_host()? {
                Some(host) => vec![host],
                None => return Ok(None),
            },
        };
        let Some(first) = hosts.first() else {
            return Err(HostsError::Empty);
        };
        if let Some(other) = hosts.iter().find(|host| host.slots.len() != first.slots.len()) {
            return Err(HostsError::Unequal {
                first: first.name.clone(),
                slots: first.slots.len(),
                other: other.name.clone(),
                other_slots: other.slots.len(),
            });
        }
        Ok(Some(hosts))
    }

    /// This host, if all ranks are here and the flags say how many.
    pub(crate) fn this_host(&self) -> Result<Option<Host>, HostsError> {
        let hosts = self.hosts()?.unwrap_or_default();
        let is_here = matches!(&hosts[..], [host] if is_local(&host.name));
        Ok(hosts.into_iter().next().filter(|_| is_here))
    }

    fn of_this_host(&self) -> Result<Option<Host>, HostsError> {
        let (slots, is_whole) = match (&self.gpus, &self.include, self.num_gpus) {
            (Some(list), ..) => (slots(list)?, false),
            (_, Some(include), _) => {
                let mut chosen = choice(include)?;
                let here = chosen.remove(THIS_HOST);
                if let Some((other, _)) = chosen.pop_first() {
                    return Err(HostsError::NoFile(other));
                }
                match here.flatten() {
                    Some(slots) => (slots, false),
                    None => return Ok(None),
                }
            }
            (_, _, Some(count)) => ((0..count.get()).collect(), true),
            _ => return Ok(None),
        };
        Ok(Some(Host { name: THIS_HOST.to_owned(), slots, is_whole }))
    }

    fn of_file(&self, file: &[Host]) -> Result<Vec<Host>, HostsError> {
        let mut hosts = file.to_vec();
        if let Some(text) = &self.include {
            let chosen = choice(text)?;
            check(&chosen, file)?;
            hosts.retain_mut(|host| match chosen.get(&host.name) {
                Some(Some(slots)) => {
                    host.choose(|slot| slots.contains(&slot));
                    true
                }
                Some(None) => true,
                None => false,
            });
        }
        if let Some(text) = &self.exclude {
            let left_out = choice(text)?;
            check(&left_out, file)?;
            for host in &mut hosts {
                match left_out.get(&host.name) {
                    Some(Some(slots)) => host.choose(|slot| !slots.contains(&slot)),
                    Some(None) => host.slots.clear(),
                    None => {}
                }
            }
        }
        if let Some(count) = self.num_gpus {
            for host in &mut hosts {
                let wanted = format!("{}:{}", host.name, count.get() - 1);
                if host.slots.len() < count.get() as usize {
                    return Err(unknown(wanted, file));
                }
                host.choose(|slot| slot < count.get());
            }
        }
        hosts.retain(|host| !host.slots.is_empty());
        if let Some(count) = self.num_nodes {
            let count = count.get() as usize;
            if hosts.len() < count {
                return Err(unknown(format!("host number {count}"), file));
            }
            hosts.truncate(count);
        }
        Ok(hosts)
    }
}

impl Host {
    fn choose(&mut self, is_chosen: impl Fn(u32) -> bool) {
        let before = self.slots.len();
        self.slots.retain(|&slot| is_chosen(slot));
        self.is_whole &= self.slots.len() == before;
    }

    /// What is to be seen of the host's GPUs: nothing where all are.
    pub(crate) fn visible_devices(&self) -> Option<String> {
        let numbers: Vec<String> = self.slots.iter().map(u32::to_string).collect();
        (!self.is_whole).then(|| numbers.join(","))
    }
}

/// Whether no ssh is needed to get there.
fn is_local(host: &str) -> bool {
    host == THIS_HOST || host == "127.0.0.1" || host == "::1"
}

fn read(path: &Path) -> Result<Vec<Host>, HostsError> {
    let text = fs::read_to_string(path)
        .map_err(|source| HostsError::Read { path: path.to_owned(), source })?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Host>, HostsError> {
    let mut hosts: Vec<Host> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let content = text.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let known = |name: &str| hosts.iter().any(|host| host.name == name);
        match host(content).filter(|host| !known(&host.name)) {
            Some(host) => hosts.push(host),
            None => {
                let text = text.to_owned();
                return Err(HostsError::Line { line, text });
            }
        }
    }
    Ok(hosts)
}

fn host(line: &str) -> Option<Host> {
    let (name, slots) = line.split_once(char::is_whitespace)?;
    let count: NonZeroU32 = slots.trim().strip_prefix("slots=")?.parse().ok()?;
    // What begins so would be a flag of ssh.
    (!name.starts_with('-')).then(|| Host {
        name: name.to_owned(),
        slots: (0..count.get()).collect(),
        is_whole: true,
    })
}

/// Hosts, each with the slots that are named, if any are.
fn choice(text: &str) -> Result<BTreeMap<String, Option<Vec<u32>>>, HostsError> {
    let entry = |entry: &str| {
        let (name, slots) = match entry.split_once(':') {
            Some((name, list)) => (name, Some(slots(list)?)),
            None => (entry, None),
        };
        if name.is_empty() { Err(no_choice(text)) } else { Ok((name.to_owned(), slots)) }
    };
    text.split('@').map(str::trim).map(entry).collect()
}

fn slots(list: &str) -> Result<Vec<u32>, HostsError> {
    let numbers = list.split(',').map(|number| number.trim().parse().ok());
    let numbers: Option<BTreeSet<u32>> = numbers.collect();
    Ok(numbers.ok_or_else(|| no_choice(list))?.into_iter().collect())
}

fn no_choice(text: &str) -> HostsError {
    let text = text.to_owned();
    HostsError::Choice { text }
}

fn check(chosen: &BTreeMap<String, Option<Vec<u32>>>, file: &[Host]) -> Result<(), HostsError> {
    for (name, slots) in chosen {
        let Some(host) = file.iter().find(|host| host.name == *name) else {
            return Err(unknown(name.clone(), file));
        };
        let slots = slots.iter().flatten();
        if let Some(slot) = slots.copied().find(|slot| !host.slots.contains(slot)) {
            return Err(unknown(format!("{name}:{slot}"), file));
        }
    }
    Ok(())
}

fn unknown(chosen: String, file: &[Host]) -> HostsError {
    let hosts = file.iter().map(|host| format!("{} slots={}", host.name, host.slots.len()));
    HostsError::Unknown { chosen, there: hosts.collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const FILE: &str = "# two racks\na slots=4\n\nb slots=4 # the other\n";

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        hosts: HostFlags,
    }

    fn chosen(line: &str) -> Result<String, String> {
        let words = ["program", "--hostfile=f"].into_iter().chain(line.split_whitespace());
        let flags = Program::try_parse_from(words).map_err(|error| error.to_string())?.hosts;
        let hosts = flags.of_file(&parse(FILE).unwrap()).map_err(|error| error.to_string())?;
        let text = hosts.iter().map(|host| format!("{}{:?}", host.name, host.slots));
        Ok(text.collect::<Vec<_>>().join(" ").replace(", ", ""))
    }

    #[test]
    fn hosts_and_their_gpus_are_chosen_as_deepspeed_does() {
        let cases = [
            ("", "a[0123] b[0123]"),
            ("--include b", "b[0123]"),
            ("--include a@b:0,2", "a[0123] b[02]"),
            ("--exclude a", "b[0123]"),
            ("--exclude b:0", "a[0123] b[123]"),
            ("--num_nodes 1", "a[0123]"),
            ("--num-gpus=2", "a[01] b[01]"),
            ("--num_nodes=1 --num_gpus=1", "a[0]"),
        ];
        for (line, expected) in cases {
            assert_eq!(chosen(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn a_choice_that_the_file_does_not_have_says_what_it_has() {
        let cases = [
            ("--include c", "c is not in the hostfile, which has a slots=4, b slots=4"),
            ("--include a:4", "a:4 is not in the hostfile"),
            ("--exclude b:7", "b:7 is not in the hostfile"),
            ("--num_gpus 5", "a:4 is not in the hostfile"),
            ("--num_nodes 3", "host number 3 is not in the hostfile"),
            ("--include a:x", "\"x\" is not a choice of hosts"),
            ("--include a --exclude b", "cannot be used with"),
        ];
        for (line, expected) in cases {
            let error = chosen(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn lines_that_name_no_host_are_refused() {
        for text in ["a", "a 4", "a slots=0", "a slots=x", "-o slots=1", "a slots=1\na slots=2"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("expected HOST slots=N"), "{error}");
        }
    }

    #[test]
    fn gpus_of_this_host_need_no_file() {
        for line in ["--gpus 2,3", "--include localhost:2,3"] {
            let words = ["program"].into_iter().chain(line.split_whitespace());
            let host = Program::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            let host = host.hosts.this_host().unwrap().unwrap();
            assert_eq!((host.slots.len(), host.visible_devices().as_deref()), (2, Some("2,3")));
        }
    }
}
