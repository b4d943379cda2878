//! A tar archive whose files are read one by one, in any order, without unpacking it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use super::PictureError;

const GZIP: [u8; 2] = [0x1F, 0x8B];

/// Bytes of a block. An archive ends with blocks of zeros.
const BLOCK: usize = 512;

/// Links from link to link that are followed, as the system does.
const LINKS_MAX: usize = 40;

#[derive(Debug)]
pub(super) struct Archive {
    path: PathBuf,
    file: File,
    others: Vec<Other>,
}

/// A link whose target is not a file in the archive, or a file in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) path: PathBuf,
    pub(super) target: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) place: Place,
}

/// Offset and length of a file's bytes in its archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    offset: u64,
    bytes: usize,
}

impl Archive {
    /// Opens an archive and lists its files, in its own order. A link to one of them is one more.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Entry>), PictureError> {
        let entries = || -> Result<(File, Listed), ListError> {
            // A pipe would be waited for, and could not be read in any order.
            if !path.metadata()?.is_file() {
                let cause = "it is not a regular file; give a tar archive on disk";
                return Err(io::Error::new(ErrorKind::InvalidInput, cause).into());
            }
            let file = File::open(path)?;
            let mut start = [0; GZIP.len()];
            if file.read_at(&mut start, 0)? == GZIP.len() && start == GZIP {
                return Err(ListError::Compressed);
            }
            let listed = list(&file)?;
            Ok((file, listed))
        };
        let path = path.to_path_buf();
        match entries() {
            Ok((file, Listed { files, others })) => Ok((Self { path, file, others }, files)),
            Err(ListError::Compressed) => Err(PictureError::Compressed { path }),
            Err(ListError::Io(source)) => Err(PictureError::Unreadable { path, source }),
        }
    }

    pub(super) fn others(&self) -> &[Other] {
        &self.others
    }

    pub(super) fn read(&self, place: Place) -> Result<Vec<u8>, PictureError> {
        let mut bytes = vec![0; place.bytes];
        let read = self.file.read_exact_at(&mut bytes, place.offset);
        read.map_err(PictureError::unreadable(&self.path))?;
        Ok(bytes)
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

#[derive(Default)]
struct Listed {
    files: Vec<Entry>,
    others: Vec<Other>,
}

fn list(file: &File) -> io::Result<Listed> {
    let total = file.metadata()?.len();
    let mut archive = tar::Archive::new(BufReader::new(file));
    let mut listed = Listed::default();
    let mut end = 0;
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        let bytes = match kind {
            // Its size is that of the file without the gaps left out.
            EntryType::GNUSparse => entry.header().entry_size()?,
            _ => entry.size(),
        };
        let offset = entry.raw_file_position();
        // Checked here, once, so that a cut archive does not fail in the middle of an epoch.
        let after = offset.checked_add(bytes).filter(|&end| end <= total);
        let Some(after) = after else {
            return Err(cut(&format!("in the middle of {}", path.display())));
        };
        end = end.max(after.next_multiple_of(BLOCK as u64));
        match kind {
            EntryType::Regular | EntryType::Continuous => {
                let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
                let place = Place { offset, bytes };
                listed.files.push(Entry { path, place });
            }
            EntryType::Directory | EntryType::XGlobalHeader => {}
            _ => {
                let target = entry.link_name()?.map(|name| match kind {
                    EntryType::Symlink => path.parent().unwrap_or(Path::new("")).join(name),
                    _ => name.into_owned(),
                });
                listed.others.push(Other { path, target });
            }
        }
    }
    // One that was cut between two files lacks only this.
    let mut mark = [1; BLOCK];
    if file.read_at(&mut mark, end)? < mark.len() || mark != [0; BLOCK] {
        return Err(cut("without the blocks of zeros that end an archive"));
    }
    Ok(listed.linked())
}

impl Listed {
    fn linked(mut self) -> Self {
        if self.others.is_empty() {
            return self;
        }
        let files = self.files.iter();
        let places: HashMap<PathBuf, Place> =
            files.map(|file| (normal(&file.path), file.place)).collect();
        let links = self.others.iter();
        let links: HashMap<PathBuf, PathBuf> = links
            .filter_map(|link| Some((normal(&link.path), normal(link.target.as_ref()?))))
            .collect();
        let file = |other: &Other| {
            let mut target = links.get(&normal(&other.path))?;
            for _ in 0..LINKS_MAX {
                match links.get(target) {
                    Some(next) => target = next,
                    None => return places.get(target),
                }
            }
            None
        };
        let mut left = Vec::new();
        for other in std::mem::take(&mut self.others) {
            match file(&other) {
                Some(&place) => self.files.push(Entry { path: other.path, place }),
                None => left.push(other),
            }
        }
        self.others = left;
        self
    }
}

/// Normalizes a path without `.` and `..`, so that all names of a file are equal.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            _ => {}
        }
    }
    normal
}

fn cut(place: &str) -> io::Error {
    let cause = format!("the archive ends {place}: it was cut, so copy it again");
    io::Error::new(ErrorKind::UnexpectedEof, cause)
}
