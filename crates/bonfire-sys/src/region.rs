//! Memory that several threads or processes map at once.
//!
//! A region between processes is a sealed `memfd`: it has no name in any file system, so nothing is
//! left behind when its processes die, it does not count against the size of `/dev/shm`, and its
//! size cannot change under a process that mapped it (a shrunk file would raise SIGBUS).
//! This module never hands out references into the memory; [`ring`](crate::ring) does, and proves it.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The granularity of mappings.
pub(crate) const PAGE_BYTES: usize = 4096;

/// A shared region cannot be made or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The machine has less memory than that left. Found before any page is taken, because the
    /// kernel would rather kill a process than refuse shared memory.
    #[error(
        "{bytes} bytes of shared memory asked for, {available} available: give the job or the \
         container more memory, or choose smaller chunks"
    )]
    TooLarge {
        /// Size asked for.
        bytes: usize,
        /// What the machine can still give.
        available: u64,
    },
    /// The operating system refused memory.
    #[error(
        "no {bytes} bytes of shared memory to be had ({source}): give the job or the container \
         more memory, or choose smaller chunks"
    )]
    NoMemory {
        /// Size asked for.
        bytes: usize,
        /// What the operating system said.
        source: Errno,
    },
    /// A descriptor from another process is not the region it should be.
    #[error(
        "the shared region from another process has {found} bytes where {expected} were agreed"
    )]
    Size {
        /// Size agreed at set-up.
        expected: usize,
        /// Size of what was received.
        found: u64,
    },
    /// A descriptor from another process could shrink while it is mapped.
    #[error("the shared region from another process is not sealed against shrinking")]
    NotSealed,
    /// Another call failed.
    #[error("{call} failed on a shared region")]
    System {
        /// The call.
        call: &'static str,
        /// What the operating system said.
        source: Errno,
    },
}

/// A mapped piece of shared memory, zero when created. Unmapped on drop.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
}

// SAFETY: a Region is an address range that stays mapped until drop; it gives access to the bytes
// only through raw pointers (`base`), so moving it to another thread cannot create a data race.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` allows reading the address and the length, which never change.
unsafe impl Sync for Region {}

impl Region {
    /// Memory for the threads of this process.
    pub fn anonymous(len: usize) -> Result<Self, RegionError> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        // Miri knows private mappings only; to the threads of one process they are the same.
        let flags = if cfg!(miri) {
            MapFlags::PRIVATE
        } else {
            MapFlags::SHARED
        };
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is touched.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }
        .map_err(|source| RegionError::NoMemory { bytes: len, source })?;
        Ok(Self {
            base: non_null(base.cast()),
            len,
            file: None,
        })
    }

    /// Memory that other processes can map with [`open`](Self::open) once they hold its
    /// [`descriptor`](Self::descriptor). The bytes are reserved now, so a full machine is an error
    /// here and not a signal later.
    pub fn shared(len: usize) -> Result<Self, RegionError> {
        require_available(len)?;
        let region = Self::reserved(len)?;
        region.commit(0..len)?;
        Ok(region)
    }

    /// As [`shared`](Self::shared), but the bytes are only addresses: each range must be backed with
    /// [`commit`](Self::commit) before it is touched.
    pub(crate) fn reserved(len: usize) -> Result<Self, RegionError> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        let file = rustix::fs::memfd_create(
            "bonfire-region",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .map_err(|source| RegionError::System {
            call: "memfd_create",
            source,
        })?;
        rustix::fs::ftruncate(&file, len as u64)
            .map_err(|source| RegionError::NoMemory { bytes: len, source })?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|source| RegionError::System {
            call: "fcntl(F_ADD_SEALS)",
            source,
        })?;
        Self::map(file, len)
    }

    /// Takes memory for these bytes now, so that a full machine is an error here and not a signal at
    /// the first touch. New bytes are zero.
    pub(crate) fn commit(&self, range: Range<usize>) -> Result<(), RegionError> {
        assert!(
            range.end <= self.len,
            "{range:?} of a region of {}",
            self.len
        );
        let Some(file) = &self.file else {
            return Ok(());
        };
        let bytes = range.len();
        require_available(bytes)?;
        let (start, len) = (range.start as u64, bytes as u64);
        rustix::fs::fallocate(file, FallocateFlags::empty(), start, len)
            .map_err(|source| RegionError::NoMemory { bytes, source })
    }

    /// Gives the memory of these whole pages back; they read as zero until committed again, in every
    /// process that maps the region.
    pub(crate) fn discard(&self, range: Range<usize>) {
        assert!(
            range.end <= self.len,
            "{range:?} of a region of {}",
            self.len
        );
        if let Some(file) = &self.file {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Failing costs memory and nothing else: whoever commits the range again clears it.
            let _ = rustix::fs::fallocate(file, flags, range.start as u64, range.len() as u64);
        }
    }

    /// Replaces the mapping of these bytes by private zero pages, in this process only. What else lies
    /// on their first and last page keeps its content.
    ///
    /// For memory that another process may still write and whose content is void. The caller must own
    /// the bytes exclusively, as far as this process is concerned.
    pub(crate) fn detach(&self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of a region of {}",
            self.len
        );
        let pages = range.start / PAGE_BYTES * PAGE_BYTES
            ..range.end.next_multiple_of(PAGE_BYTES).min(self.len);
        let before = self.copy_of(pages.start..range.start);
        let after = self.copy_of(range.end..pages.end);
        // SAFETY: pages.start is inside the mapping.
        let start = unsafe { self.base.add(pages.start) };
        // SAFETY: replaces pages of this mapping, which `self` owns, by as many zero pages at the same
        // place: every pointer into them stays valid. The content changes under no reference but the
        // caller's own, who declares it void.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                start.as_ptr().cast(),
                pages.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        };
        // Without memory for the page tables there is no safe way to go on.
        mapped.expect("private pages can replace shared ones");
        self.restore(pages.start, &before);
        self.restore(range.end, &after);
    }

    fn copy_of(&self, range: Range<usize>) -> Vec<u8> {
        let mut copy = vec![0; range.len()];
        // SAFETY: the range is inside the mapping, checked by the caller.
        let from = unsafe { self.base.add(range.start) };
        // SAFETY: both are valid for the length and do not overlap: `copy` is new.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), copy.as_mut_ptr(), copy.len()) };
        copy
    }

    fn restore(&self, start: usize, bytes: &[u8]) {
        // SAFETY: the bytes were copied from here, so they fit the mapping.
        let to = unsafe { self.base.add(start) };
        // SAFETY: both are valid for the length and do not overlap: `bytes` is memory of our own.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Maps a region of a known size that another process made with [`shared`](Self::shared) and sent
    /// here.
    pub fn open(file: OwnedFd, expected_len: usize) -> Result<Self, RegionError> {
        let found = size_of_file(&file)?;
        if found != expected_len as u64 {
            return Err(RegionError::Size {
                expected: expected_len,
                found,
            });
        }
        Self::open_whole(file)
    }

    /// Maps all of a region that another process made and sent here.
    pub fn open_whole(file: OwnedFd) -> Result<Self, RegionError> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|source| RegionError::System {
            call: "fcntl(F_GET_SEALS)",
            source,
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::NotSealed);
        }
        let len = size_of_file(&file)?;
        match usize::try_from(len) {
            Ok(len) if len > 0 => Self::map(file, len),
            _ => Err(RegionError::Size {
                expected: 1,
                found: len,
            }),
        }
    }

    fn map(file: OwnedFd, len: usize) -> Result<Self, RegionError> {
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is touched;
        // the file has `len` bytes and is sealed against shrinking, so every page stays backed.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .map_err(|source| RegionError::System {
            call: "mmap",
            source,
        })?;
        Ok(Self {
            base: non_null(base.cast()),
            len,
            file: Some(file),
        })
    }

    /// The descriptor to send to other processes; `None` for memory of this process only.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes in this region.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// First byte; page-aligned, valid for `len` bytes while this Region lives.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what mmap returned and were never unmapped before; whoever
        // points into the region holds the Arc around it, so nobody does any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(
            unmapped.is_ok(),
            "munmap of an own mapping cannot fail: {unmapped:?}"
        );
    }
}

fn size_of_file(file: &OwnedFd) -> Result<u64, RegionError> {
    let status = rustix::fs::fstat(file).map_err(|source| RegionError::System {
        call: "fstat",
        source,
    })?;
    Ok(status.st_size as u64)
}

/// The kernel would rather kill a process than refuse shared memory, so the question comes first.
fn require_available(bytes: usize) -> Result<(), RegionError> {
    match available_bytes() {
        Some(available) if bytes as u64 > available => {
            Err(RegionError::TooLarge { bytes, available })
        }
        _ => Ok(()),
    }
}

/// Memory that can still be taken without swapping, as Linux estimates it; `None` where the file
/// that says so is missing.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn non_null(base: *mut u8) -> NonNull<u8> {
    NonNull::new(base).expect("mmap without MAP_FIXED never returns the null page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_region_opens_through_its_descriptor() {
        let made = Region::shared(8192).unwrap();
        let file = made.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert_eq!(Region::open(file, 8192).unwrap().len(), 8192);
    }

    #[test]
    fn a_region_of_another_size_is_refused() {
        let made = Region::shared(4096).unwrap();
        let file = made.descriptor().unwrap().try_clone_to_owned().unwrap();
        let error = Region::open(file, 8192).unwrap_err();
        assert!(
            matches!(
                error,
                RegionError::Size {
                    expected: 8192,
                    found: 4096
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_could_shrink_is_refused() {
        let file = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(matches!(
            Region::open(file, 4096),
            Err(RegionError::NotSealed)
        ));
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        assert!(available_bytes().is_some(), "the check below relies on it");
        assert!(matches!(
            Region::shared(1 << 50),
            Err(RegionError::TooLarge { .. })
        ));
    }
}
