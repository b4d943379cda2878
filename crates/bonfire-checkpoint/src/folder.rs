//! Checkpoints on a disk: each has its own folder, which exists completely or not at all.

mod draft;
mod files;
mod lock;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bonfire_collective::Mutex;

use crate::manifest::{Entry, Manifest};
use crate::{Best, CheckpointError, Keep, Milestone, is_writable};
use files::{clear, entries, io, is_taken, make, name_of, open, read, sync, write_synced};
use lock::Lock;

pub use draft::Draft;

const MANIFEST: &str = "manifest.json";

/// Folders that begin like this are not checkpoints yet, or not any more.
const UNFINISHED: &str = ".unfinished-";

/// A checkpoint whose files match its manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The folder of this checkpoint.
    pub path: PathBuf,
    /// The step and the metric of the training.
    pub milestone: Milestone,
    /// The number of ranks that saved it.
    pub world_size: u32,
    /// The names of its files, in the order in which they were written.
    pub files: Vec<String>,
}

/// The folder that holds checkpoints. Clones share its state.
///
/// Checkpoints are of one history, in the order in which they were saved: their steps never go down. One that is saved at
/// a step below those of others begins a new history, and the others are set aside.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until something is saved here.
    lock: Option<Lock>,
    /// Checkpoints whose files were found to be others than those that were written.
    damaged: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct Saved {
    path: PathBuf,
    manifest: Manifest,
}

#[derive(Debug)]
enum Fault {
    /// Its files do not match the manifest.
    Damage(String),
    /// Unknown, because the files cannot be read at present.
    Unreadable(String),
}

impl Folder {
    /// Names a folder without touching the disk.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), state: Arc::default() }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the folder can be made and written to: it is made with the first checkpoint. Warns if another
    /// training saves there.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn prepare(&self) -> Result<(), CheckpointError> {
        is_writable(&self.path).map_err(io("write to", &self.path))?;
        if self.state.lock().lock.is_none()
            && let Some(by) = Lock::holder(&self.path)
        {
            tracing::warn!(
                folder = %self.path.display(),
                by,
                "another training saves in this folder: as long as it does, no other one can"
            );
        }
        Ok(())
    }

    /// Begins a checkpoint of `world_size` ranks. It stays hidden until [`finish`](Draft::finish). The first one
    /// clears away what an interrupted training has left half-done.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`], [`CheckpointError::Io`].
    pub fn begin(
        &self,
        milestone: Milestone,
        world_size: u32,
    ) -> Result<Draft<'_>, CheckpointError> {
        self.claim()?;
        let mut manifest = Manifest::new(milestone, world_size);
        let all = self.newest_first()?;
        manifest.saved = all.first().map_or(0, |newest| newest.manifest.saved) + 1;
        let path_of = |Manifest { step, revision, .. }: &Manifest| {
            self.path.join(match revision {
                0 => format!("step-{step:09}"),
                revision => format!("step-{step:09}.{revision}"),
            })
        };
        // Saved again after a resume: the older one stays until this one is complete.
        while is_taken(&path_of(&manifest)) {
            manifest.revision += 1;
        }
        let target = path_of(&manifest);
        // A damaged one that is gone may have had this name.
        self.state.lock().damaged.remove(&target);
        let unfinished = self.unfinished(&target);
        clear(&unfinished)?;
        fs::create_dir(&unfinished).map_err(io("make", &unfinished))?;
        Ok(Draft { folder: self, manifest, target, unfinished })
    }

    /// Removes checkpoints that `keep` does not name. The last one saved is always kept. Damaged ones are always
    /// removed, and do not count. Checkpoints of another history are set aside.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`], [`CheckpointError::Io`].
    pub fn retain(&self, keep: Keep) -> Result<(), CheckpointError> {
        if self.all()?.is_empty() {
            return Ok(());
        }
        self.claim()?;
        let (damaged, whole): (Vec<Saved>, Vec<Saved>) =
            self.newest_first()?.into_iter().partition(|saved| self.is_damaged(saved));
        let newest = whole.first().map_or(0, |newest| newest.manifest.saved);
        // Steps go down from the newest checkpoint to those before it.
        let mut step = u64::MAX;
        let (present, other): (Vec<Saved>, Vec<Saved>) = whole.into_iter().partition(|saved| {
            let is_before = saved.manifest.step <= step;
            step = step.min(saved.manifest.step);
            is_before
        });
        self.set_aside(other.iter().map(|saved| saved.path.as_path()))?;
        let best = keep.best.and_then(|best| best_of(&present, best));
        let mut kept = 0;
        let mut last_step = None;
        for Saved { path, manifest } in &present {
            // Of a step that was saved twice, the later one counts.
            let superseded = last_step == Some(manifest.step);
            last_step = Some(manifest.step);
            if !superseded && kept < keep.last.max(1) {
                kept += 1;
            } else if superseded || best != Some(manifest.step) {
                self.remove(path)?;
            }
        }
        // The training has come further than these.
        let mut obsolete = damaged.iter().filter(|saved| saved.manifest.saved < newest);
        obsolete.try_for_each(|saved| self.remove(&saved.path))
    }

    /// Sets all checkpoints aside, for a new training in this folder.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`], [`CheckpointError::Io`].
    pub fn set_all_aside(&self) -> Result<(), CheckpointError> {
        let all = self.all()?;
        if all.is_empty() {
            return Ok(());
        }
        self.claim()?;
        self.set_aside(all.iter().map(PathBuf::as_path))
    }

    /// Replaces the metric of the checkpoint of a step that was saved last; does nothing without one.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`], [`CheckpointError::Io`].
    pub fn rate(&self, milestone: Milestone) -> Result<(), CheckpointError> {
        let mut all = self.newest_first()?.into_iter();
        let Some(mut saved) = all.find(|saved| saved.manifest.step == milestone.step) else {
            return Ok(());
        };
        self.claim()?;
        saved.manifest.set_metric(milestone.metric);
        let written = saved.path.join("manifest.new");
        write_synced(&written, &saved.manifest.text())?;
        fs::rename(&written, saved.path.join(MANIFEST)).map_err(io("rename", &written))?;
        sync(&saved.path)
    }

    /// Returns the last intact checkpoint, or `None` if the folder has none. Every file of it is read once, a piece
    /// at a time.
    ///
    /// # Errors
    /// [`CheckpointError::AllDamaged`], [`CheckpointError::Io`].
    pub fn newest(&self) -> Result<Option<Found>, CheckpointError> {
        let mut paths: Vec<PathBuf> =
            self.newest_first()?.into_iter().map(|saved| saved.path).collect();
        let mut others = self.all()?;
        others.retain(|path| !paths.contains(path));
        paths.splice(0..0, others.into_iter().rev());
        let mut first = None;
        for path in &paths {
            let cause = match check(path) {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Unreadable(cause)) => cause,
                Err(Fault::Damage(cause)) => {
                    self.state.lock().damaged.insert(path.clone());
                    cause
                }
            };
            tracing::warn!(
                checkpoint = %path.display(),
                cause,
                "this checkpoint is damaged; taking the one before"
            );
            first.get_or_insert(cause);
        }
        match first {
            None => Ok(None),
            Some(cause) => Err(CheckpointError::AllDamaged {
                folder: self.path.clone(),
                count: paths.len(),
                cause,
            }),
        }
    }

    /// Returns the checkpoints of a step, the one saved last at the end.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn revisions(&self, step: u64) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut found = self.all()?;
        found.retain(|path| step_of(path).is_some_and(|(found, _)| found == step));
        Ok(found)
    }

    /// Removes a checkpoint: renamed first, so that no half-removed one is ever seen.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn remove(&self, path: &Path) -> Result<(), CheckpointError> {
        let unfinished = self.unfinished(path);
        clear(&unfinished)?;
        fs::rename(path, &unfinished).map_err(io("rename", path))?;
        clear(&unfinished)
    }

    /// Makes the folder, if it does not exist, and locks it against other trainings.
    fn claim(&self) -> Result<(), CheckpointError> {
        let mut state = self.state.lock();
        if state.lock.is_some() {
            return Ok(());
        }
        make(&self.path)?;
        let lock = Lock::take(&self.path)?;
        for path in entries(&self.path)? {
            if name_of(&path).starts_with(UNFINISHED) {
                clear(&path)?;
            }
        }
        state.lock = Some(lock);
        Ok(())
    }

    /// Moves checkpoints to a folder within this one, which is not searched.
    fn set_aside<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> Result<(), CheckpointError> {
        let mut paths = paths.peekable();
        if paths.peek().is_none() {
            return Ok(());
        }
        let mut free = (1_u64..).map(|number| self.path.join(format!("earlier-{number}")));
        let target = free.find(|target| !is_taken(target));
        let target = target.expect("some number is free");
        fs::create_dir(&target).map_err(io("make", &target))?;
        let mut names = Vec::new();
        for path in paths {
            let name = name_of(path);
            fs::rename(path, target.join(&name)).map_err(io("rename", path))?;
            names.push(name);
        }
        tracing::warn!(
            checkpoints = names.join(", "),
            "these checkpoints are not of this training, which has begun at an earlier step: they are now in {}",
            target.display()
        );
        sync(&target)?;
        sync(&self.path)
    }

    /// All checkpoints, damaged ones too, in the order of their names.
    fn all(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut found = entries(&self.path)?;
        found.retain(|path| step_of(path).is_some());
        found.sort_by_key(|path| step_of(path));
        Ok(found)
    }

    /// Checkpoints whose manifests can be read, the one saved last at the front.
    fn newest_first(&self) -> Result<Vec<Saved>, CheckpointError> {
        let saved = self.all()?.into_iter().filter_map(|path| {
            let text = read(&path.join(MANIFEST)).ok()?;
            let manifest = Manifest::parse(&text).ok()?;
            Some(Saved { path, manifest })
        });
        let mut saved: Vec<Saved> = saved.collect();
        saved.sort_by_key(|Saved { path, manifest }| {
            Reverse((manifest.saved, manifest.step, step_of(path)))
        });
        Ok(saved)
    }

    /// Returns true if the files are known to differ from the manifest, without reading all of them.
    fn is_damaged(&self, saved: &Saved) -> bool {
        let differs = |entry: &Entry| match fs::metadata(saved.path.join(&entry.name)) {
            Ok(found) => found.len() != entry.bytes as u64,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        self.state.lock().damaged.contains(&saved.path) || saved.manifest.files.iter().any(differs)
    }

    fn unfinished(&self, path: &Path) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{}", name_of(path)))
    }
}

/// The step whose metric is best; the earliest of equals.
fn best_of(newest_first: &[Saved], best: Best) -> Option<u64> {
    let with_metric = newest_first.iter().rev().filter_map(|saved| {
        let metric = saved.manifest.metric?;
        let smaller_is_better = match best {
            Best::Highest => -metric,
            Best::Lowest => metric,
        };
        Some((saved.manifest.step, smaller_is_better))
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

fn check(path: &Path) -> Result<Found, Fault> {
    let said = |name: &str, error: std::io::Error| {
        let cause = format!("{name}: {error}");
        match error.kind() {
            ErrorKind::NotFound => Fault::Damage(cause),
            _ => Fault::Unreadable(cause),
        }
    };
    let manifest = read(&path.join(MANIFEST)).map_err(|error| said(MANIFEST, error))?;
    let manifest = Manifest::parse(&manifest).map_err(Fault::Damage)?;
    for entry in &manifest.files {
        let name = &entry.name;
        // A name is a name, not a way out of the folder.
        if name.contains('/') {
            return Err(Fault::Damage(format!("its manifest names {name:?}")));
        }
        let file = open(&path.join(name)).map_err(|error| said(name, error))?;
        let found = Entry::read(name, &mut &file).map_err(|error| said(name, error))?;
        entry.check(&found).map_err(Fault::Damage)?;
    }
    Ok(Found {
        path: path.to_owned(),
        milestone: manifest.milestone(),
        world_size: manifest.world_size,
        files: manifest.files.into_iter().map(|file| file.name).collect(),
    })
}

impl Found {
    /// Opens the checkpoint at `path`, if it is intact.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    pub fn at(path: PathBuf) -> Result<Self, CheckpointError> {
        check(&path).map_err(|fault| match fault {
            Fault::Damage(cause) | Fault::Unreadable(cause) => {
                CheckpointError::Damaged { path, cause }
            }
        })
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// [`CheckpointError::Io`].
    pub fn read(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path.join(name);
        read(&path).map_err(io("read", &path))
    }
}

#[cfg(test)]
mod tests;
