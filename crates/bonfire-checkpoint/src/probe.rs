//! Checks that files can be written to a folder that may not exist yet.
//!
//! A training that cannot keep what it learns should end before it begins, and one that ends before it
//! has learnt anything should leave nothing behind. So folders are tried first and made later.

use std::fs;
use std::io;
use std::path::Path;

/// Checks that a folder can be made, if it does not exist, and written to. Nothing is left behind.
///
/// # Errors
/// The operating system's error, if not.
pub fn is_writable(folder: &Path) -> io::Result<()> {
    // The last ancestor of a relative path is empty, and is not found.
    let mut ancestors = folder.ancestors();
    let existing = ancestors.find(|ancestor| ancestor.exists());
    let existing = existing.unwrap_or(Path::new("."));
    for attempt in 0_u32.. {
        let trial = existing.join(format!(".bonfire-{}-{attempt}", std::process::id()));
        match fs::create_dir(&trial) {
            Ok(()) => return fs::remove_dir(&trial),
            // Another thread of this process tries, too.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("some number is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_can_be_made_is_not() {
        let folder = tempfile::tempdir().unwrap();
        is_writable(folder.path()).unwrap();
        is_writable(&folder.path().join("runs/a")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn below_a_file_there_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for below in [file.clone(), file.join("runs")] {
            assert!(is_writable(&below).is_err(), "{}", below.display());
        }
    }
}
