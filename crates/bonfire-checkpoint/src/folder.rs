//! Checkpoints on a disk: each a folder of its own, which is there as a whole or not at all.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::manifest::{Entry, Manifest};
use crate::{Best, CheckpointError, Keep, Milestone, is_writable};

const MANIFEST: &str = "manifest.json";

/// Folders that begin like this are not checkpoints yet, or not any more.
const UNFINISHED: &str = ".unfinished-";

/// A checkpoint whose files are all as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its own folder.
    pub path: PathBuf,
    /// Where the training was.
    pub milestone: Milestone,
    /// How many ranks trained.
    pub world_size: u32,
    /// The names of its files, in the order in which they were written.
    pub files: Vec<String>,
}

/// The folder that holds checkpoints.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// At a path. Nothing is done there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn path_of(&self, manifest: &Manifest) -> PathBuf {
        let Manifest { step, revision, .. } = manifest;
        self.0.join(match revision {
            0 => format!("step-{step:09}"),
            revision => format!("step-{step:09}.{revision}"),
        })
    }

    /// Removes what was left half-done in the folder, or sees that it can be made: it is, with the first
    /// checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn prepare(&self) -> Result<(), CheckpointError> {
        is_writable(&self.0).map_err(io("write to", &self.0))?;
        for path in self.entries()? {
            if name_of(&path).starts_with(UNFINISHED) {
                fs::remove_dir_all(&path).map_err(io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Begins a checkpoint of so many ranks. Until [`finish`](Draft::finish) nothing can be seen of it.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn begin(
        &self,
        milestone: Milestone,
        world_size: u32,
    ) -> Result<Draft<'_>, CheckpointError> {
        let mut manifest = Manifest::new(milestone, world_size);
        // Saved again after a resume: the older one stays until this one is whole.
        while self.path_of(&manifest).exists() {
            manifest.revision += 1;
        }
        let target = self.path_of(&manifest);
        let unfinished = self.unfinished(&target);
        fs::create_dir_all(&unfinished).map_err(io("make", &unfinished))?;
        Ok(Draft {
            folder: self,
            manifest,
            target,
            unfinished,
        })
    }

    /// Removes what is not to be kept.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn retain(&self, keep: Keep) -> Result<(), CheckpointError> {
        let all = self.newest_first()?;
        let best = keep.best.and_then(|best| best_of(&all, best));
        let mut kept = 0;
        let mut last_step = None;
        for manifest in &all {
            // Of a step that was saved twice, the later one counts.
            let superseded = last_step == Some(manifest.step);
            last_step = Some(manifest.step);
            if !superseded && kept < keep.last.max(1) {
                kept += 1;
            } else if superseded || best != Some(manifest.step) {
                self.remove(&self.path_of(manifest))?;
            }
        }
        Ok(())
    }

    /// The last checkpoint that is whole; nothing if there is none at all. Every file of it is read once, a piece at
    /// a time.
    ///
    /// # Errors
    /// [`CheckpointError::AllDamaged`], [`CheckpointError::Io`].
    pub fn newest(&self) -> Result<Option<Found>, CheckpointError> {
        let mut damaged = Vec::new();
        for path in self.all()?.into_iter().rev() {
            match check(&path) {
                Ok(found) => return Ok(Some(found)),
                Err(cause) => {
                    tracing::warn!(
                        checkpoint = %path.display(),
                        cause,
                        "this checkpoint is damaged; taking the one before"
                    );
                    damaged.push(cause);
                }
            }
        }
        let count = damaged.len();
        match damaged.into_iter().next() {
            None => Ok(None),
            Some(cause) => Err(CheckpointError::AllDamaged {
                folder: self.0.clone(),
                count,
                cause,
            }),
        }
    }

    /// The checkpoints of a step, the one saved last at the end.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn revisions(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut found = self.all()?;
        found.retain(|path| step_of(path).is_some_and(|(found, _)| found == step));
        Ok(found)
    }

    /// All checkpoints, damaged ones too, in the order in which they were saved.
    fn all(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut found = self.entries()?;
        found.retain(|path| step_of(path).is_some());
        found.sort_by_key(|path| step_of(path));
        Ok(found)
    }

    /// The manifests that can be read.
    fn newest_first(&self) -> Result<Vec<Manifest>, CheckpointError> {
        let manifests = self.all()?.into_iter().filter_map(|path| {
            let text = fs::read(path.join(MANIFEST)).ok()?;
            Manifest::parse(&text).ok()
        });
        let mut manifests: Vec<Manifest> = manifests.collect();
        manifests.sort_by_key(|manifest| std::cmp::Reverse((manifest.step, manifest.revision)));
        Ok(manifests)
    }

    /// Removes a checkpoint: renamed first, so that no half-removed one is ever seen.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        let unfinished = self.unfinished(path);
        fs::rename(path, &unfinished).map_err(io("rename", path))?;
        fs::remove_dir_all(&unfinished).map_err(io("remove", &unfinished))
    }

    fn unfinished(&self, path: &Path) -> PathBuf {
        self.0.join(format!("{UNFINISHED}{}", name_of(path)))
    }

    fn entries(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io("list", &self.0))?,
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect::<Result<_, _>>().map_err(io("list", &self.0))
    }
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub struct Draft<'a> {
    folder: &'a Folder,
    manifest: Manifest,
    target: PathBuf,
    unfinished: PathBuf,
}

impl Draft<'_> {
    /// Where a file is to be written, for [`adopt`](Self::adopt).
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.unfinished.join(name)
    }

    /// Takes in a file that has been written there.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn adopt(&mut self, name: &str) -> Result<(), CheckpointError> {
        let path = self.path_of(name);
        let mut file = File::open(&path).map_err(io("open", &path))?;
        let entry = Entry::read(name, &mut file).map_err(io("read", &path))?;
        self.manifest.files.push(entry);
        file.sync_all().map_err(io("sync", &path))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.manifest.files.push(Entry::of(name, bytes));
        write_synced(&self.unfinished.join(name), bytes)
    }

    /// Gives the checkpoint its name.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn finish(self) -> Result<(), CheckpointError> {
        let text = serde_json::to_vec_pretty(&self.manifest).expect("a manifest is plain data");
        write_synced(&self.unfinished.join(MANIFEST), &text)?;
        sync(&self.unfinished)?;
        fs::rename(&self.unfinished, &self.target).map_err(io("rename", &self.unfinished))?;
        sync(self.folder.path())
    }
}

/// The step whose metric is best; the earliest of equals.
fn best_of(newest_first: &[Manifest], best: Best) -> Option<u64> {
    let with_metric = newest_first.iter().rev().filter_map(|manifest| {
        let metric = manifest.metric?;
        Some((
            manifest.step,
            if best == Best::Highest {
                -metric
            } else {
                metric
            },
        ))
    });
    let (step, _) = with_metric.min_by(|(_, left), (_, right)| left.total_cmp(right))?;
    Some(step)
}

/// Step and revision, if a folder's name is that of a checkpoint.
fn step_of(path: &Path) -> Option<(u64, u32)> {
    let name = name_of(path);
    let number = name.strip_prefix("step-")?;
    match number.split_once('.') {
        None => Some((number.parse().ok()?, 0)),
        Some((step, revision)) => Some((step.parse().ok()?, revision.parse().ok()?)),
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A checkpoint whose files are those of its manifest, or what is wrong with it.
///
/// # Errors
/// What is wrong, in words.
fn check(path: &Path) -> Result<Found, String> {
    let said = |name: &str, error: std::io::Error| format!("{name}: {error}");
    let manifest = fs::read(path.join(MANIFEST)).map_err(|error| said(MANIFEST, error))?;
    let manifest = Manifest::parse(&manifest)?;
    for entry in &manifest.files {
        let name = &entry.name;
        // A name is a name, not a way out of the folder.
        if name.contains('/') {
            return Err(format!("its manifest names {name:?}"));
        }
        let file = File::open(path.join(name)).map_err(|error| said(name, error))?;
        let found = Entry::read(name, &mut &file).map_err(|error| said(name, error))?;
        entry.check(&found)?;
    }
    Ok(Found {
        path: path.to_owned(),
        milestone: manifest.milestone(),
        world_size: manifest.world_size,
        files: manifest.files.into_iter().map(|file| file.name).collect(),
    })
}

impl Found {
    /// That of a path, if it is whole.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    pub fn at(path: PathBuf) -> Result<Self, CheckpointError> {
        check(&path).map_err(|cause| CheckpointError::Damaged { path, cause })
    }

    /// The content of a file.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path.join(name);
        fs::read(&path).map_err(io("read", &path))
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut file = File::create(path).map_err(io("make", path))?;
    file.write_all(bytes).map_err(io("write", path))?;
    file.sync_all().map_err(io("sync", path))
}

/// Brings the entries of a folder to the disk.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    let file = File::open(folder).map_err(io("open", folder))?;
    file.sync_all().map_err(io("sync", folder))
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io {
        action,
        path,
        source,
    }
}
