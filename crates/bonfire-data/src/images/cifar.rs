//! CIFAR-10 in its binary version: Krizhevsky, "Learning multiple layers of features from tiny
//! images", 2009, and the description beside the data.
//!
//! A record is one byte of label and 3072 of picture: 32 rows of 32 red values, then green, then blue.

use std::fs;
use std::path::{Path, PathBuf};

use super::archive::Archive;
use super::picture::CHANNELS;
use super::{Picture, PictureError, PictureSize, Pictures};

const SIDE: usize = 32;
const PIXELS: usize = SIDE * SIDE;
const RECORD_BYTES: usize = 1 + PIXELS * CHANNELS;

const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

const INNER_FOLDER: &str = "cifar-10-batches-bin";

/// A part of the CIFAR-10 data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CifarPart {
    /// The training part: `data_batch_*.bin`, 50,000 pictures in all.
    Train,
    /// The test part: `test_batch.bin`, 10,000 pictures.
    Test,
}

impl CifarPart {
    const fn wanted(self) -> &'static str {
        match self {
            Self::Train => "data_batch_*.bin",
            Self::Test => "test_batch.bin",
        }
    }

    fn contains(self, path: &Path) -> bool {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        match self {
            Self::Train => name.starts_with("data_batch_") && name.ends_with(".bin"),
            Self::Test => name == self.wanted(),
        }
    }
}

/// CIFAR-10, held in memory: 3 kB per picture.
#[derive(Debug)]
pub struct Cifar10 {
    name: String,
    classes: Vec<String>,
    labels: Vec<usize>,
    records: Vec<u8>,
}

impl Cifar10 {
    /// Reads a part of the data set from the folder of its files, from the folder above it, or from a tar archive
    /// that has them anywhere. The files are taken in the order of their names, as many as there are.
    ///
    /// # Errors
    /// [`PictureError::Unreadable`], [`PictureError::Compressed`], [`PictureError::NoCifar`] or
    /// [`PictureError::NotCifar`].
    pub fn open(path: impl AsRef<Path>, part: CifarPart) -> Result<Self, PictureError> {
        let path = path.as_ref();
        let mut files =
            if path.is_dir() { in_folder(path, part)? } else { in_archive(path, part)? };
        if files.is_empty() {
            return Err(PictureError::NoCifar { path: path.to_path_buf(), wanted: part.wanted() });
        }
        files.sort();
        let mut cifar = Self {
            name: path.display().to_string(),
            classes: CLASSES.map(str::to_owned).to_vec(),
            labels: Vec::new(),
            records: Vec::new(),
        };
        for (name, bytes) in files {
            cifar.append(&name, &bytes)?;
        }
        Ok(cifar)
    }

    fn append(&mut self, name: &Path, bytes: &[u8]) -> Result<(), PictureError> {
        let other =
            |cause: String| PictureError::NotCifar { name: name.display().to_string(), cause };
        if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD_BYTES) {
            let found = bytes.len();
            return Err(other(format!(
                "it has {found} bytes, which is not a multiple of {RECORD_BYTES}; get it again"
            )));
        }
        for (index, record) in bytes.chunks_exact(RECORD_BYTES).enumerate() {
            let label = usize::from(record[0]);
            if label >= CLASSES.len() {
                return Err(other(format!(
                    "its record {index} has the label {label}, but there are only 10 classes"
                )));
            }
            self.labels.push(label);
        }
        self.records.extend_from_slice(bytes);
        Ok(())
    }
}

impl Pictures for Cifar10 {
    fn name(&self) -> &str {
        &self.name
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn picture(&self, index: usize) -> Result<Picture, PictureError> {
        let planes = &self.records[index * RECORD_BYTES + 1..][..PIXELS * CHANNELS];
        Ok(Picture::from_fn(PictureSize::square(SIDE), |x, y| {
            let place = y * SIDE + x;
            [0, 1, 2].map(|channel| planes[channel * PIXELS + place])
        }))
    }
}

type Found = Vec<(PathBuf, Vec<u8>)>;

fn in_folder(folder: &Path, part: CifarPart) -> Result<Found, PictureError> {
    let inner = folder.join(INNER_FOLDER);
    let folder = if inner.is_dir() { &inner } else { folder };
    let unreadable = PictureError::unreadable;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable(folder))? {
        let path = entry.map_err(unreadable(folder))?.path();
        if part.contains(&path) {
            let bytes = fs::read(&path).map_err(unreadable(&path))?;
            files.push((path, bytes));
        }
    }
    Ok(files)
}

fn in_archive(path: &Path, part: CifarPart) -> Result<Found, PictureError> {
    let (archive, mut entries) = Archive::open(path)?;
    entries.retain(|entry| part.contains(&entry.path));
    entries.into_iter().map(|entry| Ok((entry.path, archive.read(entry.place)?))).collect()
}

#[cfg(test)]
mod tests;
