//! A tar archive whose files are read one by one, in any order, without unpacking it.

use std::fs::File;
use std::io;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::PictureError;

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1F, 0x8B];

/// An open archive.
#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    file: File,
}

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its path in the archive.
    pub(super) path: PathBuf,
    pub(super) place: Place,
}

/// Where the bytes of a file are in its archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    offset: u64,
    bytes: usize,
}

impl Archive {
    /// Opens an archive and lists its regular files, in its own order.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Entry>), PictureError> {
        let entries = || -> Result<(File, Vec<Entry>), ListError> {
            let file = File::open(path)?;
            let mut start = [0; GZIP.len()];
            if file.read_at(&mut start, 0)? == GZIP.len() && start == GZIP {
                return Err(ListError::Compressed);
            }
            let entries = list(&file)?;
            Ok((file, entries))
        };
        let path = path.to_path_buf();
        match entries() {
            Ok((file, entries)) => Ok((Self { path, file }, entries)),
            Err(ListError::Compressed) => Err(PictureError::Compressed { path }),
            Err(ListError::Io(source)) => Err(PictureError::Unreadable { path, source }),
        }
    }

    /// The bytes of a file.
    pub(super) fn read(&self, place: Place) -> Result<Vec<u8>, PictureError> {
        let mut bytes = vec![0; place.bytes];
        match self.file.read_exact_at(&mut bytes, place.offset) {
            Ok(()) => Ok(bytes),
            Err(source) => Err(PictureError::Unreadable {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

enum ListError {
    Compressed,
    Io(io::Error),
}

impl From<io::Error> for ListError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn list(file: &File) -> io::Result<Vec<Entry>> {
    let total = file.metadata()?.len();
    let mut archive = tar::Archive::new(BufReader::new(file));
    let mut entries = Vec::new();
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path()?.into_owned();
        let (offset, bytes) = (entry.raw_file_position(), entry.size());
        // Checked here, once, so that a cut archive is no surprise in the middle of an epoch.
        if offset.checked_add(bytes).is_none_or(|end| end > total) {
            let cause = format!("the archive ends in the middle of {}", path.display());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, cause));
        }
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        entries.push(Entry {
            path,
            place: Place { offset, bytes },
        });
    }
    Ok(entries)
}
