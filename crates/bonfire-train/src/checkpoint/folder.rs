//! Checkpoints on a disk: each a folder of its own, which is there as a whole or not at all.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::manifest::{Entry, Manifest};
use super::{Best, CheckpointError, Keep, Milestone};
use crate::checkpoint::probe::is_writable;

const MANIFEST: &str = "manifest.json";

/// Folders that begin like this are not checkpoints yet, or not any more.
const UNFINISHED: &str = ".unfinished-";

/// Everything of a checkpoint: its files in the order of its manifest.
pub(super) type Content = (Manifest, Vec<Vec<u8>>);

/// The folder that holds them.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn path_of(&self, manifest: &Manifest) -> PathBuf {
        let Manifest { step, revision, .. } = manifest;
        self.0.join(match revision {
            0 => format!("step-{step:09}"),
            revision => format!("step-{step:09}.{revision}"),
        })
    }

    /// Removes what was left half-done in the folder, or sees that it can be made: it is, with the first
    /// checkpoint.
    pub(super) fn prepare(&self) -> Result<(), CheckpointError> {
        is_writable(&self.0).map_err(io("write to", &self.0))?;
        for path in self.entries()? {
            if name_of(&path).starts_with(UNFINISHED) {
                fs::remove_dir_all(&path).map_err(io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Begins a checkpoint. Until the last rename nothing can be seen of it.
    pub(super) fn begin(
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
    pub(super) fn retain(&self, keep: Keep) -> Result<(), CheckpointError> {
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

    /// The last checkpoint that is whole; nothing if there is none at all.
    pub(super) fn newest(&self) -> Result<Option<Content>, CheckpointError> {
        let mut damaged = Vec::new();
        let mut found: Vec<PathBuf> = self.entries()?;
        found.retain(|path| step_of(path).is_some());
        found.sort_by_key(|path| std::cmp::Reverse(step_of(path)));
        for path in &found {
            match read(path) {
                Ok(content) => return Ok(Some(content)),
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

    /// The manifests that can be read.
    fn newest_first(&self) -> Result<Vec<Manifest>, CheckpointError> {
        let manifests = self.entries()?.into_iter().filter_map(|path| {
            step_of(&path)?;
            let text = fs::read(path.join(MANIFEST)).ok()?;
            Manifest::parse(&text).ok()
        });
        let mut manifests: Vec<Manifest> = manifests.collect();
        manifests.sort_by_key(|manifest| std::cmp::Reverse((manifest.step, manifest.revision)));
        Ok(manifests)
    }

    /// Renamed first, so that no half-removed checkpoint is ever seen.
    pub(super) fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        let unfinished = self.unfinished(path);
        fs::rename(path, &unfinished).map_err(io("rename", path))?;
        fs::remove_dir_all(&unfinished).map_err(io("remove", &unfinished))
    }

    fn unfinished(&self, path: &Path) -> PathBuf {
        self.0.join(format!("{UNFINISHED}{}", name_of(path)))
    }

    pub(super) fn entries(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io("list", &self.0))?,
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect::<Result<_, _>>().map_err(io("list", &self.0))
    }
}

/// A checkpoint that is being written.
pub(super) struct Draft<'a> {
    folder: &'a Folder,
    manifest: Manifest,
    target: PathBuf,
    unfinished: PathBuf,
}

impl Draft<'_> {
    /// Where a file is to be written, for [`adopt`](Self::adopt).
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.unfinished.join(name)
    }

    /// Takes in a file that has been written there.
    pub(super) fn adopt(&mut self, name: &str) -> Result<(), CheckpointError> {
        let path = self.path_of(name);
        let mut file = File::open(&path).map_err(io("open", &path))?;
        let entry = Entry::read(name, &mut file).map_err(io("read", &path))?;
        self.manifest.files.push(entry);
        file.sync_all().map_err(io("sync", &path))
    }

    /// Writes a file.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.manifest.files.push(Entry::of(name, bytes));
        write_synced(&self.unfinished.join(name), bytes)
    }

    /// Gives the checkpoint its name.
    pub(super) fn finish(self) -> Result<(), CheckpointError> {
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
pub(super) fn step_of(path: &Path) -> Option<(u64, u32)> {
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

/// A checkpoint, or what is wrong with it.
pub(super) fn read(path: &Path) -> Result<Content, String> {
    let read = |name: &str| fs::read(path.join(name)).map_err(|error| format!("{name}: {error}"));
    let manifest = Manifest::parse(&read(MANIFEST)?)?;
    let mut files = Vec::with_capacity(manifest.files.len());
    for entry in &manifest.files {
        // A name is a name, not a way out of the folder.
        if entry.name.contains('/') {
            return Err(format!("its manifest names {:?}", entry.name));
        }
        let bytes = read(&entry.name)?;
        entry.check(&bytes)?;
        files.push(bytes);
    }
    Ok((manifest, files))
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
