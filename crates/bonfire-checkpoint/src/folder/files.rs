//! Files and folders that are on the disk when a call returns, and errors that say where.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use crate::CheckpointError;

/// Opens a file, and nothing else: to open a pipe takes until another process writes to it.
pub(super) fn open(path: &Path) -> std::io::Result<File> {
    if path.metadata()?.is_file() {
        return File::open(path);
    }
    Err(std::io::Error::new(ErrorKind::InvalidInput, "it is not a file"))
}

pub(super) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let mut file = File::create(path).map_err(io("make", path))?;
    file.write_all(bytes).map_err(io("write", path))?;
    file.sync_all().map_err(io("sync", path))
}

pub(super) fn sync(folder: &Path) -> Result<(), CheckpointError> {
    let file = File::open(folder).map_err(io("open", folder))?;
    file.sync_all().map_err(io("sync", folder))
}

/// Makes a folder and those above it, and syncs the parent of each that is new: else a power cut takes all of them.
pub(super) fn make(folder: &Path) -> Result<(), CheckpointError> {
    let missing: Vec<&Path> = folder
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    fs::create_dir_all(folder).map_err(io("make", folder))?;
    for made in missing {
        match made.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync(parent)?,
            _ => sync(Path::new("."))?,
        }
    }
    Ok(())
}

/// Returns true if something has this name, were it a link to nothing.
pub(super) fn is_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Removes a folder with all that is in it, if it is there.
pub(super) fn clear(folder: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(io("remove", folder)),
    }
}

pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io("list", folder))?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(io("list", folder))
}

pub(super) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

pub(super) fn io(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Io { action, path, source }
}
