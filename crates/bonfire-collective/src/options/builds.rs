//! Which build of its program a process runs, and whether ranks must run the same.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

/// The running program's own file, also after another was put in its place.
const OWN_FILE: &str = "/proc/self/exe";
/// What is read of the beginning and of the end of the file: the beginning holds the linker's build id, if
/// it writes one, which no two builds share; the end holds what moves with every change in length.
const EDGE_BYTES: u64 = 64 << 10;
/// What is read in between: this many pieces at equal distances, for linkers without build ids.
const PIECES: u64 = 32;
const PIECE_BYTES: u64 = 4 << 10;
const PATH_BYTES_MAX: usize = 256;

/// Which builds of a program may be ranks of one job.
///
/// Two builds differ in what they call, in which order and from which line, and often train well
/// together until they do not. So they are distinguished when ranks meet, by their files: another
/// compiler, another feature or another line is another build, a copy of the file is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Builds {
    /// One. Ranks of others get [`ConnectError::Builds`](crate::ConnectError::Builds).
    #[default]
    Same,
    /// Any: this rank does not ask, and is not asked, where a cluster mixes builds on purpose.
    Any,
}

bonfire_plan::named!(Builds as "choice of builds" { Same = "same", Any = "any" });

/// The program of a process, as others know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    path: String,
    digest: String,
}

impl Build {
    /// Of this process, if it is to be compared and its file can be read.
    pub fn to_compare(builds: Builds) -> Option<Self> {
        match builds {
            Builds::Any => None,
            Builds::Same => match Self::of_this_process() {
                Ok(build) => Some(build),
                Err(error) => {
                    tracing::warn!(target: "bonfire", "{OWN_FILE} cannot be read, so builds are not compared: {error}");
                    None
                }
            },
        }
    }

    fn of_this_process() -> io::Result<Self> {
        let path = std::env::current_exe()?;
        let mut path = path.to_string_lossy().into_owned();
        path.truncate(path.floor_char_boundary(PATH_BYTES_MAX));
        Ok(Self { path, digest: digest(&File::open(OWN_FILE)?)? })
    }

    /// Whether the programs are different builds. One that does not say which is like every other.
    pub fn differ(ours: Option<&Self>, theirs: Option<&Self>) -> Option<(String, String)> {
        let (ours, theirs) = (ours?, theirs?);
        (ours.digest != theirs.digest).then(|| (ours.to_string(), theirs.to_string()))
    }

    #[cfg(test)]
    pub(crate) fn called(path: &str, digest: &str) -> Self {
        Self { path: path.to_owned(), digest: digest.to_owned() }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (build {})", self.path, self.digest)
    }
}

/// A checksum of the parts of the file that are read, and its length.
fn digest(file: &File) -> io::Result<String> {
    let len = file.metadata()?.len();
    let edges = [(0, EDGE_BYTES), (len.saturating_sub(EDGE_BYTES), EDGE_BYTES)];
    let pieces = (1..=PIECES).map(|piece| (len / (PIECES + 1) * piece, PIECE_BYTES));
    let mut checksum = 0;
    for (from, bytes) in edges.into_iter().chain(pieces) {
        let bytes = bytes.min(len - from);
        let mut piece = vec![0; usize::try_from(bytes).unwrap_or_default()];
        file.read_exact_at(&mut piece, from)?;
        checksum = crc32c::crc32c_append(checksum, &piece);
    }
    Ok(format!("{checksum:08x}-{len:x}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn names_go_there_and_back_and_others_are_refused() {
        for choice in Builds::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let error = "all".parse::<Builds>().unwrap_err().to_string();
        assert!(error.contains("same or any"), "{error}");
    }

    #[test]
    fn copies_are_the_same_build_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            digest(&File::open(&path).unwrap()).unwrap()
        };
        for len in [0, 1, 4096, 200_000] {
            let mut bytes = vec![7; len];
            let digest = of(&bytes);
            assert_eq!(digest, of(&bytes.clone()));
            bytes.push(7);
            assert_ne!(digest, of(&bytes), "one byte more than {len}");
            bytes.pop();
            if let Some(byte) = bytes.first_mut() {
                *byte = 8;
                assert_ne!(digest, of(&bytes), "another first of {len}");
            }
        }
    }

    #[test]
    fn who_does_not_say_is_like_every_other() {
        let (one, other) = (Build::called("/a", "1"), Build::called("/b", "2"));
        assert_eq!(Build::differ(Some(&one), None), None);
        assert_eq!(Build::differ(None, Some(&one)), None);
        assert_eq!(Build::differ(Some(&one), Some(&Build::called("/c", "1"))), None);
        let programs = Build::differ(Some(&one), Some(&other)).unwrap();
        assert_eq!(programs, ("/a (build 1)".to_owned(), "/b (build 2)".to_owned()));
        assert_eq!(Build::to_compare(Builds::Any), None);
        assert_eq!(Build::to_compare(Builds::Same), Build::to_compare(Builds::Same));
    }
}
