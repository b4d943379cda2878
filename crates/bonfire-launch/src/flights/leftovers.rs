//! Folders among the system's temporary files in which failed jobs left their flight records.
//!
//! They outlive their job, because users ask what went wrong after it, and nobody else removes
//! them. So each launcher removes those that are old.

use std::fs::{self, DirEntry};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{io, iter};

use bonfire_collective::JobToken;
use rustix::process::getuid;

const PREFIX: &str = "bonfire-flights-";
/// The random part of a name: nobody else can guess it, and so make the folder first.
const RANDOM_DIGITS: usize = 16;
/// Who has not asked in a week does not ask any more.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A new name for the records of one job. Nothing is there yet.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let random = JobToken::random().map_err(io::Error::other)?.to_hex();
    let name = format!("{PREFIX}{}", &random[..RANDOM_DIGITS]);
    Ok(std::env::temp_dir().join(name))
}

/// Removes the old ones of this user. What cannot be removed stays: it does not prevent the start.
pub(crate) fn sweep() {
    sweep_in(&std::env::temp_dir(), KEPT);
}

fn sweep_in(temporary: &Path, kept: Duration) {
    let Ok(entries) = fs::read_dir(temporary) else {
        return;
    };
    for entry in entries.flatten().filter(|entry| is_old(entry, kept)) {
        let path = entry.path();
        match fs::remove_dir_all(&path) {
            Ok(()) => tracing::debug!("removed the old flight records in {}", path.display()),
            Err(error) => tracing::debug!("cannot remove {}: {error}", path.display()),
        }
    }
}

/// Whether it is a folder of ours in which nothing has been written for so long.
fn is_old(entry: &DirEntry, kept: Duration) -> bool {
    let name = entry.file_name();
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let is_named =
        random.is_some_and(|random| random.len() == RANDOM_DIGITS && random.bytes().all(is_digit));
    // Of the entry itself: a link is none.
    let is_own_folder = |entry: &DirEntry| {
        let metadata = entry.metadata();
        metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == getuid().as_raw())
    };
    is_named && is_own_folder(entry) && last_change(&entry.path()).is_some_and(|age| age >= kept)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
}

/// How long ago the folder, or the folder of an attempt in it, was changed last.
fn last_change(folder: &Path) -> Option<Duration> {
    let attempts = fs::read_dir(folder).ok()?.flatten();
    let paths = iter::once(folder.to_owned()).chain(attempts.map(|entry| entry.path()));
    let newest = paths.filter_map(|path| fs::symlink_metadata(path).ok()?.modified().ok());
    SystemTime::now().duration_since(newest.max()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_folders_of_jobs_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let path = |name: &str| temporary.path().join(name);
        let names = [
            "bonfire-flights-0123456789abcdef",
            "bonfire-flights-0123",
            "bonfire-flights-0123456789abcdeg",
            "another",
        ];
        for name in names {
            fs::create_dir_all(path(name).join("attempt_0")).unwrap();
            fs::write(path(name).join("attempt_0/record"), "text").unwrap();
        }
        let link = path("bonfire-flights-fedcba9876543210");
        std::os::unix::fs::symlink(path("another"), &link).unwrap();
        let there = || names.map(|name| path(name).exists());
        sweep_in(temporary.path(), Duration::from_secs(3600));
        assert_eq!(there(), [true; 4], "they are new");
        sweep_in(temporary.path(), Duration::ZERO);
        assert_eq!(there(), [false, true, true, true]);
        assert!(link.is_symlink() && path("another/attempt_0/record").exists());
        sweep_in(&path("none"), Duration::ZERO);
    }

    #[test]
    fn every_job_has_a_folder_of_its_own_that_is_swept() {
        let [one, other] = [folder(), folder()].map(Result::unwrap);
        assert_ne!(one, other);
        let temporary = tempfile::tempdir().unwrap();
        let there = temporary.path().join(one.file_name().unwrap());
        fs::create_dir(&there).unwrap();
        sweep_in(temporary.path(), Duration::ZERO);
        assert!(!there.exists());
    }
}
