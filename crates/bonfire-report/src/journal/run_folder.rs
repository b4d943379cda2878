//! The folder of a run. Each has its own, so that TensorBoard sees them apart and nothing is overwritten.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bonfire_checkpoint::is_writable;

use crate::ReportError;
use crate::error::unwritable;
use crate::utc::Utc;

/// The folder of a run's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunFolder {
    /// This folder. Files of an earlier run are moved to a folder in it.
    Given(PathBuf),
    /// A new folder below `parent`, named by the time in UTC and `name`.
    New {
        /// The folder for the folders of all runs, made if it is missing.
        parent: PathBuf,
        /// The end of its name; spaces, slashes and the like become `-`.
        name: String,
    },
}

impl RunFolder {
    /// Checks that the folder is writable. A new one is made, so that no other process takes it.
    pub(super) fn claim(&self, now: SystemTime) -> Result<PathBuf, ReportError> {
        match self {
            Self::Given(folder) => {
                is_writable(folder).map_err(|source| unwritable(folder, source))?;
                Ok(folder.clone())
            }
            Self::New { parent, name } => {
                let as_name = |letter: char| match letter {
                    '-' | '_' | '.' => letter,
                    letter if letter.is_alphanumeric() => letter,
                    _ => '-',
                };
                let name: String = name.chars().map(as_name).collect();
                let name = format!("{}-{name}", Utc::from(now).compact());
                let made = fs::create_dir_all(parent).and_then(|()| make_free(parent, &name));
                made.map_err(|source| unwritable(&parent.join(name), source))
            }
        }
    }
}

/// Makes `name` in a folder, or the first of `name-2`, `name-3`, ... that does not exist.
fn make_free(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let mut folder = parent.join(name);
    let mut number = 1_u64;
    loop {
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                number += 1;
                folder = parent.join(format!("{name}-{number}"));
            }
            made => return made.map(|()| folder),
        }
    }
}

/// Moves the files of an earlier run, if there are any, to `earlier-1` in the same folder, or the next free number.
pub(super) fn set_aside(folder: &Path) -> io::Result<()> {
    let mut earlier = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let is_ours = ["log.jsonl", "report.txt", "report.json", "report.html"].contains(&&*text);
        if is_ours || text.starts_with("events.out.tfevents.") {
            earlier.push(name);
        }
    }
    if earlier.is_empty() {
        return Ok(());
    }
    let number = (1_u64..).find(|number| !folder.join(format!("earlier-{number}")).exists());
    let target = folder.join(format!("earlier-{}", number.unwrap_or_default()));
    fs::create_dir(&target)?;
    let mut earlier = earlier.iter();
    earlier.try_for_each(|name| fs::rename(folder.join(name), target.join(name)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn new_folders_are_named_by_the_time_and_none_is_taken_twice() {
        let parent = tempfile::tempdir().unwrap();
        let folder =
            RunFolder::New { parent: parent.path().join("runs"), name: "my/model: 1.5".to_owned() };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_523_130);
        let claimed: Vec<String> = (0..3)
            .map(|_| folder.claim(now).unwrap())
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        let first = "20261124-122530-my-model--1.5";
        assert_eq!(claimed, [first, &format!("{first}-2"), &format!("{first}-3")]);
    }

    #[test]
    fn only_what_a_run_has_written_is_set_aside_and_each_time_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        set_aside(folder.path()).unwrap();
        assert!(!path("earlier-1").exists(), "there was nothing");
        for run in ["first", "second"] {
            for name in ["log.jsonl", "events.out.tfevents.1.host", "model.bpk"] {
                fs::write(path(name), run).unwrap();
            }
            set_aside(folder.path()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(path(name)).unwrap();
        assert_eq!(read("earlier-1/log.jsonl"), "first");
        assert_eq!(read("earlier-2/log.jsonl"), "second");
        assert_eq!(read("earlier-1/events.out.tfevents.1.host"), "first");
        assert_eq!(read("model.bpk"), "second");
        assert!(!path("log.jsonl").exists());
    }
}
