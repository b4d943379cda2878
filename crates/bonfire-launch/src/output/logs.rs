//! Files that keep what ranks print: which streams of which ranks, and where.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bonfire_plan::Rank;
use rustix::fs::OFlags;
use rustix::process::getuid;
use thiserror::Error;

use super::screen::Channel;
use crate::flights::leftovers;

/// What becomes of the output of ranks, besides the launcher's own screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// The folder below which every job gets a folder of its own. Without it, and if a stream goes
    /// to a file, it is `bonfire-logs-UID` in the system's folder for temporary files, which only this
    /// user can read. With it and nothing else, both streams of every rank go to files as well as to the screen.
    pub dir: Option<PathBuf>,
    /// The streams that go to files instead of the screen.
    pub redirects: StreamChoice,
    /// The streams that go to files as well as to the screen.
    pub tee: StreamChoice,
}

/// Some of the two standard streams of a rank, in torchrun's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// Neither stream, written as `0`.
    #[default]
    None,
    /// Standard output, written as `1`.
    Output,
    /// Standard error, written as `2`.
    Error,
    /// Both streams, written as `3`.
    Both,
}

/// Streams of the ranks of a host: `3` for those of every rank, `0:1,2:3` for those of some, by their local rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamChoice {
    /// The same of every rank.
    Every(Streams),
    /// By local rank; a rank that is not named has none.
    Some(BTreeMap<u32, Streams>),
}

/// The text is not a choice of streams.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "expected 0 (no stream), 1 (stdout), 2 (stderr) or 3 (both), for all ranks or as \
     LOCAL_RANK:STREAMS,..., not \"{text}\""
)]
pub struct StreamChoiceError {
    text: String,
}

impl Streams {
    fn contain(self, channel: Channel) -> bool {
        match channel {
            Channel::Output => matches!(self, Self::Output | Self::Both),
            Channel::Error => matches!(self, Self::Error | Self::Both),
        }
    }

    fn of_number(text: &str) -> Option<Self> {
        match text.trim() {
            "0" => Some(Self::None),
            "1" => Some(Self::Output),
            "2" => Some(Self::Error),
            "3" => Some(Self::Both),
            _ => None,
        }
    }
}

impl Default for StreamChoice {
    fn default() -> Self {
        Self::Every(Streams::None)
    }
}

impl StreamChoice {
    fn of(&self, local_rank: u32) -> Streams {
        match self {
            Self::Every(streams) => *streams,
            Self::Some(ranks) => ranks.get(&local_rank).copied().unwrap_or_default(),
        }
    }
}

impl FromStr for StreamChoice {
    type Err = StreamChoiceError;

    fn from_str(text: &str) -> Result<Self, StreamChoiceError> {
        if let Some(streams) = Streams::of_number(text) {
            return Ok(Self::Every(streams));
        }
        let entry = |entry: &str| {
            let (rank, streams) = entry.split_once(':')?;
            Some((rank.trim().parse().ok()?, Streams::of_number(streams)?))
        };
        let ranks: Option<Vec<(u32, Streams)>> = text.split(',').map(entry).collect();
        let count = text.split(',').count();
        let ranks: BTreeMap<u32, Streams> = ranks.into_iter().flatten().collect();
        if ranks.len() != count {
            // Something is not an entry, or a rank is named twice.
            let text = text.to_owned();
            return Err(StreamChoiceError { text });
        }
        Ok(Self::Some(ranks))
    }
}

#[derive(Debug)]
pub(crate) struct Sink {
    /// Keeps it as it is.
    pub(crate) file: Option<File>,
    pub(crate) is_shown: bool,
}

#[derive(Debug)]
pub(crate) struct Logs {
    /// The folder of the job, if anything goes to files.
    folder: Option<PathBuf>,
    /// For what is kept of a failed job in any case. Nothing is there until then.
    fallback: PathBuf,
    redirects: StreamChoice,
    tee: StreamChoice,
}

impl Logs {
    /// Makes the folder of the job called `job`, if there is to be one.
    pub(crate) fn open(options: &LogOptions, job: &str) -> io::Result<Self> {
        let nothing = StreamChoice::default();
        let nothing_named = options.redirects == nothing && options.tee == nothing;
        let tee = match &options.dir {
            Some(_) if nothing_named => StreamChoice::Every(Streams::Both),
            _ => options.tee.clone(),
        };
        let folder = match &options.dir {
            Some(dir) => Some(dir.join(folder_name(job))),
            None if nothing_named => None,
            None => Some(private_folder(&std::env::temp_dir())?.join(folder_name(job))),
        };
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)?;
        }
        leftovers::sweep();
        Ok(Self {
            folder,
            fallback: leftovers::folder()?,
            redirects: options.redirects.clone(),
            tee,
        })
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Where the ranks of an attempt leave their flight records: beside their output, if anything goes
    /// to files, else among the system's temporary files.
    pub(crate) fn flight_folder(&self, restart_count: u32) -> PathBuf {
        match &self.folder {
            Some(folder) => attempt(folder, restart_count).join("flights"),
            None => attempt(&self.fallback, restart_count),
        }
    }

    /// Makes the file of one stream, `attempt_N/RANK/stdout.log` or `stderr.log`, if it goes to one.
    pub(crate) fn sink(&self, channel: Channel, place: LogPlace) -> io::Result<Sink> {
        let redirected = self.redirects.of(place.local_rank).contain(channel);
        let kept = redirected || self.tee.of(place.local_rank).contain(channel);
        let file = match &self.folder {
            Some(folder) if kept => {
                let folder = attempt(folder, place.restart_count).join(place.rank.to_string());
                fs::create_dir_all(&folder)?;
                let name = match channel {
                    Channel::Output => "stdout.log",
                    Channel::Error => "stderr.log",
                };
                Some(open(&folder.join(name))?)
            }
            _ => None,
        };
        Ok(Sink { file, is_shown: self.show(channel, place.local_rank) })
    }

    pub(crate) fn show(&self, channel: Channel, local_rank: u32) -> bool {
        let redirected = self.redirects.of(local_rank).contain(channel);
        !redirected || self.tee.of(local_rank).contain(channel)
    }

    /// Whether any stream of a rank goes to a file.
    pub(crate) fn keep(&self, local_rank: u32) -> bool {
        let kept = |choice: &StreamChoice| choice.of(local_rank) != Streams::None;
        kept(&self.redirects) || kept(&self.tee)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPlace {
    pub(crate) rank: Rank,
    pub(crate) local_rank: u32,
    pub(crate) restart_count: u32,
}

/// Opens a log for what comes now. What a job of this name wrote before, as one that a cluster starts again, says
/// why it ended, so it stays. A link that somebody put there is not followed.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("the flags of open are an int");
    options.append(true).create(true).custom_flags(flags).open(path)
}

/// This user's folder for logs among the temporary files, where others write, too, and can guess its name.
fn private_folder(temporary: &Path) -> io::Result<PathBuf> {
    let own = getuid().as_raw();
    let folder = temporary.join(format!("bonfire-logs-{own}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Of the folder itself: a link is none.
    let found = fs::symlink_metadata(&folder)?;
    let is_private = found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0;
    is_private.then(|| folder.clone()).ok_or_else(|| {
        let text = format!(
            "{} must be a folder of this user that nobody else may enter (mode 700)",
            folder.display()
        );
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    })
}

/// The longest name of a folder that all file systems take.
const FOLDER_NAME_BYTES_MAX: usize = 200;

/// The name of a job as that of one folder, whatever users call their jobs.
fn folder_name(job: &str) -> String {
    let name = job.replace('/', "_");
    let name = &name[..name.floor_char_boundary(FOLDER_NAME_BYTES_MAX)];
    if name.bytes().all(|byte| byte == b'.') { format!("_{name}") } else { name.to_owned() }
}

fn attempt(job: &Path, restart_count: u32) -> PathBuf {
    job.join(format!("attempt_{restart_count}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_of_a_job_leaves_the_folder_of_logs() {
        let cases = [
            ("train", "train"),
            ("../../x y", ".._.._x y"),
            ("/etc", "_etc"),
            ("..", "_.."),
            (".", "_."),
            ("", "_"),
        ];
        for (job, folder) in cases {
            assert_eq!(folder_name(job), folder);
        }
        let long = folder_name(&"ä".repeat(150));
        assert!(long.len() <= FOLDER_NAME_BYTES_MAX, "{long}");
    }

    #[test]
    fn a_folder_that_another_could_have_made_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let temporary = tempfile::tempdir().unwrap();
        let folder = private_folder(temporary.path()).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(private_folder(temporary.path()).unwrap(), folder);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let error = private_folder(temporary.path()).unwrap_err().to_string();
        assert!(error.contains("mode 700"), "{error}");
        fs::remove_dir(&folder).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), &folder).unwrap();
        private_folder(temporary.path()).unwrap_err();
    }

    #[test]
    fn a_log_follows_no_link_and_keeps_what_is_there() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let [log, link] = ["log", "link"].map(|name| folder.path().join(name));
        for text in ["why it ended\n", "again\n"] {
            open(&log).unwrap().write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "why it ended\nagain\n");
        std::os::unix::fs::symlink(&log, &link).unwrap();
        open(&link).unwrap_err();
    }

    #[test]
    fn choices_are_read_in_torchruns_numbers() {
        let parse = |text: &str| text.parse::<StreamChoice>();
        assert_eq!(parse("3"), Ok(StreamChoice::Every(Streams::Both)));
        let some = parse("0:1,2:3").unwrap();
        let streams: Vec<Streams> = (0..3).map(|rank| some.of(rank)).collect();
        assert_eq!(streams, [Streams::Output, Streams::None, Streams::Both]);
        for text in ["", "4", "0:4", "1:", ":1", "0:1,0:2", "0:1,", "stdout"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }
}
