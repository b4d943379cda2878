//! The machine and the command of a training, for its report.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs, thread};

use bonfire_collective::{CollectiveError, Rank};
use bonfire_plan::Bytes;
use bonfire_train::World;

use crate::utc::Utc;

type Facts = Vec<(String, String)>;

/// The maximum message of rank 0: far more than a command line has.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// The folder of rank 0 and the facts about its machine, on every rank.
#[track_caller]
pub(super) fn of_rank_0(
    world: &World,
    folder: Option<PathBuf>,
) -> Result<(Option<PathBuf>, Facts), CollectiveError> {
    // As bytes: a path need not be text.
    let folder = folder.map(|folder| folder.into_os_string().into_vec());
    let mut text = serde_json::to_vec(&(folder, facts(world))).expect("text can always be written");
    let mut length = [text.len() as u64];
    let group = world.group();
    group.broadcast(&mut length, Rank::new(0))?;
    let length = length[0].min(MESSAGE_BYTES_MAX);
    text.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
    group.broadcast(&mut text, Rank::new(0))?;
    let (folder, facts): (Option<Vec<u8>>, Facts) =
        serde_json::from_slice(&text).unwrap_or_default();
    Ok((folder.map(OsString::from_vec).map(PathBuf::from), facts))
}

/// Names and values; those that a system does not provide are left out.
fn facts(world: &World) -> Facts {
    let read = |path: &str| fs::read_to_string(path).ok();
    let line = |path: &str| read(path).map(|text| text.trim().to_owned());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let processor = read("/proc/cpuinfo").and_then(|text| field(&text, "model name"));
    let memory = read("/proc/meminfo").and_then(|text| field(&text, "MemTotal"));
    let kernel = line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let hosts = world.world_size().get().div_ceil(world.local_world_size());
    let system = format!("{} {kernel} {}", env::consts::OS, env::consts::ARCH);
    let processors = format!("{processors} x {}", processor.unwrap_or_default());
    let facts = [
        ("started", Some(Utc::from(SystemTime::now()).to_string())),
        ("command", Some(command(env::args_os()))),
        ("host", line("/proc/sys/kernel/hostname")),
        ("hosts", (hosts > 1).then(|| hosts.to_string())),
        ("system", Some(system)),
        ("processors", Some(processors)),
        ("memory", memory.and_then(|text| kibibytes(&text))),
        ("device", Some(world.device_name().to_owned())),
        ("Bonfire", Some(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    let known = |(name, value): (&str, Option<String>)| Some((name.to_owned(), value?));
    facts.into_iter().filter_map(known).collect()
}

/// The command line, with the file name of the program alone.
fn command(mut words: impl Iterator<Item = OsString>) -> String {
    let program = words.next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default();
    let words: Vec<OsString> = [program.to_owned()].into_iter().chain(words).collect();
    words.join(OsStr::new(" ")).to_string_lossy().into_owned()
}

fn field(text: &str, name: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| field.trim() == name)?;
    Some(value.trim().to_owned())
}

/// Formats `16384 kB` with a larger unit.
fn kibibytes(text: &str) -> Option<String> {
    let kibibytes: u64 = text.split(' ').next()?.parse().ok()?;
    Some(Bytes::new(kibibytes.saturating_mul(1024)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_system_are_read_by_name() {
        let text = "processor\t: 0\nmodel name\t: A Processor\nmodel name\t: another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A Processor"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(kibibytes("2097152 kB").as_deref(), Some("2 GiB"));
        assert_eq!(kibibytes("much"), None);
    }

    #[test]
    fn the_command_does_not_say_where_the_program_is() {
        let words = ["/a/b/gpt", "--nproc", "2"].map(OsString::from);
        assert_eq!(command(words.into_iter()), "gpt --nproc 2");
    }

    #[test]
    fn words_that_are_no_text_do_not_end_a_training() {
        let word = OsString::from_vec(b"caf\xe9".to_vec());
        assert_eq!(command([word.clone(), word].into_iter()), "caf\u{fffd} caf\u{fffd}");
    }
}
