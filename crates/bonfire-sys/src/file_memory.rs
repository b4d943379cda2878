//! Memory whose content is in a file, so that the kernel can write it out and take its pages for something else.
//!
//! The file has no name and is gone with the memory. Its blocks are taken when it is made: a full disk is an
//! error then, and not a signal at a write. File systems that copy on write (btrfs, ZFS, bcachefs) take new
//! blocks for each page that they write out again, so there a disk that fills up later is a SIGBUS.

use std::fs::File;
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes that are written at once to a file system that cannot take blocks by themselves.
const ZEROS_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileMemoryError {
    #[error("{} takes no file: {source}; choose another folder", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("no {bytes} bytes left in {}: {source}; make room or choose another folder", folder.display())]
    Full { folder: PathBuf, bytes: usize, source: io::Error },
    #[error("{bytes} bytes of a file in {} cannot be mapped: {source}", folder.display())]
    Map { folder: PathBuf, bytes: usize, source: Errno },
}

/// Bytes in a file without a name, zero when made. Page-aligned.
#[derive(Debug)]
pub struct FileMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its mapping as a `Box<[u8]>` owns its memory, and any thread may unmap it.
unsafe impl Send for FileMemory {}
// SAFETY: `&FileMemory` gives `&[u8]` alone; writing takes `&mut FileMemory`.
unsafe impl Sync for FileMemory {}

impl FileMemory {
    /// Memory of `bytes` in a file of its own, on the file system of `folder`.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn zeroed(folder: &Path, bytes: usize) -> Result<Self, FileMemoryError> {
        assert!(bytes > 0, "memory in a file needs at least one byte");
        let named = || folder.to_owned();
        let mut file = tempfile::tempfile_in(folder)
            .map_err(|source| FileMemoryError::Folder { folder: named(), source })?;
        reserve(&mut file, bytes).map_err(|source| FileMemoryError::Full {
            folder: named(),
            bytes,
            source,
        })?;
        let (anywhere, flags) = (ptr::null_mut(), MapFlags::SHARED);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is touched. The file has
        // `bytes` bytes, all with blocks. It has no name, and its descriptor is closed below: nobody can shrink
        // or write it.
        let mapped = unsafe { rustix::mm::mmap(anywhere, bytes, protection, flags, &file, 0) };
        let base =
            mapped.map_err(|source| FileMemoryError::Map { folder: named(), bytes, source })?;
        let base = NonNull::new(base.cast()).expect("the null page is never given out");
        Ok(Self { base, len: bytes })
    }

    /// Says that the content is not needed soon: its pages are the first that the kernel takes when memory is short.
    pub fn set_idle(&self) {
        let base = self.base.as_ptr().cast();
        // SAFETY: all of an own mapping; the advice changes no content. A kernel that does not know it says so.
        let _ = unsafe { rustix::mm::madvise(base, self.len, Advice::LinuxCold) };
    }
}

impl Deref for FileMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, readable and initialized for `len` bytes until drop; written through `&mut self` alone.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for FileMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes sure that nobody else looks.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        // SAFETY: what mmap returned, unmapped once; every reference into it borrows `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "an own mapping: {unmapped:?}");
    }
}

fn reserve(file: &mut File, bytes: usize) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(&*file, FallocateFlags::empty(), 0, bytes as u64) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            // As posix_fallocate does it.
            Err(Errno::OPNOTSUPP) => return write_zeros(file, bytes),
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_zeros(file: &mut File, bytes: usize) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES.min(bytes)];
    for start in (0..bytes).step_by(ZEROS_BYTES) {
        file.write_all(&zeros[..ZEROS_BYTES.min(bytes - start)])?;
    }
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_what_is_written_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [1, 4096, 3 * 4096 + 5] {
            let mut memory = FileMemory::zeroed(folder.path(), bytes).unwrap();
            assert_eq!(memory[..], vec![0; bytes]);
            memory.fill(7);
            memory.set_idle();
            assert_eq!(memory[..], vec![7; bytes]);
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        }
    }

    #[test]
    fn blocks_can_be_taken_by_writing_them() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = 2 * ZEROS_BYTES + 3;
        write_zeros(&mut file, bytes).unwrap();
        assert_eq!(file.metadata().unwrap().len(), bytes as u64);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = FileMemory::zeroed(folder.path(), 1 << 55).unwrap_err();
        assert!(matches!(error, FileMemoryError::Full { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&folder.path().display().to_string()), "{text}");
    }

    #[test]
    fn a_folder_that_is_none_is_an_error() {
        let folder = Path::new("/proc/no such folder");
        let error = FileMemory::zeroed(folder, 1).unwrap_err();
        assert!(matches!(error, FileMemoryError::Folder { .. }), "{error}");
    }
}
