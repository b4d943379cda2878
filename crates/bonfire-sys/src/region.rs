//! Memory that several threads or processes map at once.
//!
//! A region between processes is a sealed `memfd`: it has no name in any file system, so nothing is left behind when
//! its processes die, it does not count against the size of `/dev/shm`, and its size cannot change under a process
//! that mapped it (a shrunk file would raise SIGBUS). This module never hands out references into the memory;
//! [`ring`](crate::ring) and [`window`](crate::window) do, and prove it.
//!
//! Those proofs hold for processes that run this code. Whoever gives a descriptor away, or maps one
//! that came from elsewhere, promises that by an `unsafe` call.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// A huge page of x86-64, and of AArch64 with pages of 4 KiB: whole ones take one entry of the tables
/// that the processor looks addresses up in, where small pages take 512.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The machine has less memory than that left. Found before any page is taken, because the
    /// kernel would rather kill a process than refuse shared memory.
    #[error(
        "{bytes} bytes of shared memory asked for, {available} available: give the job or the \
         container more memory, or choose smaller chunks"
    )]
    TooLarge { bytes: usize, available: u64 },
    #[error(
        "no {bytes} bytes of shared memory to be had ({source}): give the job or the container \
         more memory, or choose smaller chunks"
    )]
    NoMemory { bytes: usize, source: Errno },
    /// A descriptor from another process is not the region it should be.
    #[error(
        "the shared region from another process has {found} bytes where {expected} were agreed"
    )]
    Size { expected: usize, found: u64 },
    /// A descriptor from another process could shrink while it is mapped.
    #[error("the shared region from another process is not sealed against shrinking")]
    NotSealed,
    #[error("{call} failed on a shared region")]
    System { call: &'static str, source: Errno },
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Somebody else holds the end that belongs to this process.
    #[error("this end of the shared memory is already claimed")]
    Claimed,
}

/// A mapped piece of shared memory, zero when created. Unmapped on drop.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    len: usize,
    /// The granularity of mappings: 4 KiB on x86-64, up to 64 KiB elsewhere.
    page: usize,
    /// Of memory that other processes may map; only the process that made it keeps it.
    file: Option<OwnedFd>,
}

// SAFETY: a Region is an address range that stays mapped until drop; it gives access to the bytes
// only through raw pointers (`base`), so moving it to another thread cannot create a data race.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` allows reading the address and the length, which never change.
unsafe impl Sync for Region {}

impl Region {
    /// Memory for the threads of this process, taken when it is touched.
    pub(crate) fn anonymous(len: usize) -> Result<Self, RegionError> {
        Self::private(len, MapFlags::PRIVATE)
    }

    /// Addresses for the threads of this process, as [`reserved`](Self::reserved) has them for processes.
    pub(crate) fn reserved_for_threads(len: usize) -> Result<Self, RegionError> {
        Self::private(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn private(len: usize, flags: MapFlags) -> Result<Self, RegionError> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is touched.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, READ_WRITE, flags) };
        let base = base.map_err(|source| RegionError::NoMemory { bytes: len, source })?;
        Ok(Self::mapped(base, len))
    }

    fn mapped(base: *mut c_void, len: usize) -> Self {
        let base = NonNull::new(base.cast());
        Self {
            base: base.expect("mmap without MAP_FIXED never returns the null page"),
            len,
            page: page_bytes(),
            file: None,
        }
    }

    /// Memory that other processes can map with [`open`](Self::open) once they hold its
    /// [`descriptor`](Self::descriptor). The bytes are reserved now, so a full machine is an error
    /// here and not a signal later.
    pub(crate) fn shared(len: usize) -> Result<Self, RegionError> {
        require_available(len)?;
        let region = Self::reserved(len)?;
        region.commit(0..len)?;
        Ok(region)
    }

    /// As [`shared`](Self::shared), but the bytes are only addresses: each range must be backed with
    /// [`commit`](Self::commit) before it is touched.
    pub(crate) fn reserved(len: usize) -> Result<Self, RegionError> {
        assert!(len > 0, "a region needs at least one byte, got {len}");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("bonfire-region", flags);
        let file = file.map_err(failed("memfd_create"))?;
        // The limit on the size of files counts here as well, and going beyond it is a signal.
        let limit = getrlimit(Resource::Fsize).current;
        let sized = if limit.is_some_and(|limit| len as u64 > limit) {
            Err(Errno::FBIG)
        } else {
            rustix::fs::ftruncate(&file, len as u64)
        };
        sized.map_err(|source| RegionError::NoMemory { bytes: len, source })?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        let mut region = Self::map(&file, len)?;
        region.file = Some(file);
        Ok(region)
    }

    /// Takes memory for these bytes now, so that a full machine is an error here and not a signal at
    /// the first touch. New bytes are zero. The memory is near the core that this thread runs on, and in
    /// huge pages where there are enough bytes and the kernel has them for those who ask.
    pub(crate) fn commit(&self, range: Range<usize>) -> Result<(), RegionError> {
        let bytes = range.len();
        require_available(bytes)?;
        if bytes >= HUGE_PAGE_BYTES {
            // A kernel without huge pages has small ones.
            let _ = self.advise(range.clone(), Advice::LinuxHugepage);
        }
        let taken = match (self.advise(range.clone(), Advice::LinuxPopulateWrite), &self.file) {
            // Before Linux 5.14. Memory of this process alone is then taken when it is touched.
            (Err(Errno::INVAL), Some(file)) => {
                let (start, len) = (range.start as u64, bytes as u64);
                rustix::fs::fallocate(file, FallocateFlags::empty(), start, len)
            }
            (Err(Errno::INVAL), None) => Ok(()),
            (taken, _) => taken,
        };
        taken.map_err(|source| {
            self.discard(range);
            RegionError::NoMemory { bytes, source }
        })
    }

    #[cfg(test)]
    pub(crate) fn in_pages(mut self, page: usize) -> Self {
        self.page = page;
        self
    }

    pub(crate) fn page(&self) -> usize {
        self.page
    }

    /// Gives the memory of these whole pages back; they read as zero until committed again, in every
    /// process that maps the region.
    pub(crate) fn discard(&self, range: Range<usize>) {
        self.assert_whole_pages(&range);
        // Failing costs memory and nothing else: the next commit of the range clears it.
        let _ = match &self.file {
            Some(file) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, range.start as u64, range.len() as u64)
            }
            None => self.advise(range, Advice::LinuxDontNeed),
        };
    }

    /// Tells the kernel what is to become of these whole pages, which nobody uses.
    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<(), Errno> {
        self.assert_whole_pages(&range);
        // SAFETY: range.start is inside the mapping, or its end.
        let start = unsafe { self.base.add(range.start) };
        // SAFETY: whole pages of this mapping, which stays where it is. The advice takes memory or
        // makes the bytes zero, which is what the callers say of bytes that nobody has.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), range.len(), advice) }
    }

    /// Takes these bytes out of the memory that other processes see, in this process only. Their
    /// content is void. What else lies on their first and last page keeps its content, also if
    /// another thread writes it meanwhile, and is not shared any more either.
    ///
    /// For memory that another process may still write. The caller must own the bytes exclusively, as far as this
    /// process is concerned. After an error any part of this may have been done, and it may be tried again.
    pub(crate) fn detach(&self, range: Range<usize>) -> Result<(), Errno> {
        let len = self.len;
        let is_inside = range.start <= range.end && range.end <= len;
        assert!(is_inside, "{range:?} of a region of {len}");
        let Some(file) = self.file.as_ref().filter(|_| !range.is_empty()) else {
            return Ok(());
        };
        let inner = range.start.next_multiple_of(self.page)..self.page_of(range.end);
        if !inner.is_empty() {
            self.replace_by_zeros(inner)?;
        }
        let first = self.page_of(range.start);
        if first != range.start {
            self.copy_page_on_write(file, range.start)?;
        }
        let last = self.page_of(range.end);
        if last != range.end && (last != first || first == range.start) {
            self.copy_page_on_write(file, range.end - 1)?;
        }
        Ok(())
    }

    /// Private zero pages in the place of these.
    fn replace_by_zeros(&self, pages: Range<usize>) -> Result<(), Errno> {
        let (flags, len) = (MapFlags::PRIVATE | MapFlags::FIXED, pages.len());
        // SAFETY: pages.start is inside the mapping.
        let start = unsafe { self.base.add(pages.start) }.as_ptr().cast();
        // SAFETY: replaces whole pages of this mapping, which `self` owns, by as many at the same place: every
        // pointer into them stays valid. All of their bytes are the caller's, who declares the content void.
        unsafe { rustix::mm::mmap_anonymous(start, len, READ_WRITE, flags) }.map(drop)
    }

    /// As [`detach`](Self::detach), for bytes that other processes only read: they keep their content.
    /// Pages that have some of `detached` are left as they are: they are private already.
    pub(crate) fn detach_kept(
        &self,
        range: Range<usize>,
        detached: Range<usize>,
    ) -> Result<(), Errno> {
        let pages_of = |range: &Range<usize>| {
            let len = self.len;
            assert!(range.end <= len, "{range:?} of a region of {len}");
            self.page_of(range.start)..range.end.next_multiple_of(self.page)
        };
        let (pages, private) = (pages_of(&range), pages_of(&detached));
        let pages = if range.start < detached.start {
            pages.start..pages.end.min(private.start)
        } else {
            pages.start.max(private.end)..pages.end
        };
        match &self.file {
            Some(file) if !pages.is_empty() => self.copy_on_write(file, pages),
            _ => Ok(()),
        }
    }

    /// A private copy in the place of the page with this byte, which is the caller's and becomes
    /// zero. The kernel makes the copy at the first write after the old page is gone from this
    /// process, so no write of another thread beside the byte is lost.
    fn copy_page_on_write(&self, file: &OwnedFd, byte: usize) -> Result<(), Errno> {
        let page = self.page_of(byte);
        self.copy_on_write(file, page..page + self.page)?;
        // SAFETY: inside the mapping.
        let own = unsafe { self.base.add(byte) };
        // SAFETY: valid and writable; no other thread of this process uses the byte, which is the
        // caller's. Volatile, because the write is for the kernel.
        unsafe { own.write_volatile(0) };
        Ok(())
    }

    /// A private view in the place of these pages, of which the kernel copies each at the first write.
    fn copy_on_write(&self, file: &OwnedFd, pages: Range<usize>) -> Result<(), Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the pages are inside the mapping.
        let start = unsafe { self.base.add(pages.start) }.as_ptr().cast();
        let (len, offset) = (pages.len(), pages.start as u64);
        // SAFETY: replaces whole pages of this mapping, which `self` owns, by a private view of the same
        // bytes of the same file: every pointer into them stays valid, and a reader through one
        // sees what was there before. The file cannot shrink, so the pages stay backed.
        unsafe { rustix::mm::mmap(start, len, READ_WRITE, flags, file, offset) }.map(drop)
    }

    /// Maps all of a region that another process made and sent here.
    ///
    /// # Safety
    /// Every process that has the descriptor, or gets it while this mapping lives, changes the memory
    /// only by the protocols of this crate.
    pub(crate) unsafe fn open(file: &OwnedFd) -> Result<Self, RegionError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(failed("fcntl(F_GET_SEALS)"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::NotSealed);
        }
        let found = size_of_file(file)?;
        match usize::try_from(found) {
            Ok(len) if len > 0 => Self::map(file, len),
            _ => Err(RegionError::Size { expected: 1, found }),
        }
    }

    /// As [`open`](Self::open), for a region of a known size.
    ///
    /// # Safety
    /// As for [`open`](Self::open).
    pub(crate) unsafe fn open_sized(file: &OwnedFd, expected: usize) -> Result<Self, RegionError> {
        let found = size_of_file(file)?;
        if found != expected as u64 {
            return Err(RegionError::Size { expected, found });
        }
        // SAFETY: promised by the caller.
        unsafe { Self::open(file) }
    }

    fn map(file: &OwnedFd, len: usize) -> Result<Self, RegionError> {
        let (anywhere, flags) = (ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a null hint lets the kernel choose the place, so no existing mapping is touched;
        // the file has `len` bytes and is sealed against shrinking, so every page stays backed.
        let base = unsafe { rustix::mm::mmap(anywhere, len, READ_WRITE, flags, file, 0) };
        Ok(Self::mapped(base.map_err(failed("mmap"))?, len))
    }

    /// The descriptor to send to other processes; `None` for memory of this process only, and for
    /// memory that another process made.
    ///
    /// # Safety
    /// Every process that gets the descriptor changes the memory only by the protocols of this crate,
    /// and neither writes to the file nor changes its size or its holes.
    pub(crate) unsafe fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes in this region; never none.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The kernel rounds lengths up to pages, and would do the same to what lies behind.
    fn assert_whole_pages(&self, range: &Range<usize>) {
        let (len, page) = (self.len, self.page);
        let is_edge = |byte: usize| self.page_of(byte) == byte || byte == len;
        let is_inside = range.start <= range.end && range.end <= len;
        assert!(
            is_inside && is_edge(range.start) && is_edge(range.end),
            "{range:?} of a region of {len} in pages of {page}"
        );
    }

    /// Where the page of this byte begins.
    fn page_of(&self, byte: usize) -> usize {
        byte / self.page * self.page
    }

    /// First byte; page-aligned, valid for `len` bytes while this Region lives.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what mmap returned and were never unmapped before; every
        // pointer into the region comes with the Arc around it, so there is none any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

fn size_of_file(file: &OwnedFd) -> Result<u64, RegionError> {
    let status = rustix::fs::fstat(file).map_err(failed("fstat"))?;
    Ok(status.st_size as u64)
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> RegionError {
    move |source| RegionError::System { call, source }
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

/// Whether this process can make memory that others map: a filter of system calls may refuse it.
pub fn can_share_memory() -> bool {
    rustix::fs::memfd_create("bonfire-probe", MemfdFlags::CLOEXEC).is_ok()
}

pub fn memory_bytes() -> usize {
    let info = rustix::system::sysinfo();
    info.totalram as usize * info.mem_unit as usize
}

/// Memory that can still be taken without swapping, as Linux estimates it, and without more than the
/// control groups of this process may have; `None` where the files that say so are missing.
fn available_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    // A container may show its own group as the root, whatever its path is outside.
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(own.unwrap_or_default());
    let groups = own.ancestors().take_while(|group| group.starts_with(root));
    let left = groups.filter_map(left_in_group).min();
    let of_host = std::fs::read_to_string("/proc/meminfo").ok();
    let of_host = of_host.and_then(|text| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    });
    of_host.into_iter().chain(left).min()
}

/// What a control group (version 2) may still take. The kernel gives files' pages up before it kills.
fn left_in_group(group: &Path) -> Option<u64> {
    let text = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let limit: u64 = text("memory.max")?.trim().parse().ok()?;
    let taken: u64 = text("memory.current")?.trim().parse().ok()?;
    let files = text("memory.stat").and_then(|stat| {
        let mut lines = stat.lines();
        let line = lines.find_map(|line| line.strip_prefix("inactive_file "))?;
        line.trim().parse::<u64>().ok()
    });
    Some(limit.saturating_sub(taken.saturating_sub(files.unwrap_or(0))))
}

#[cfg(test)]
mod tests;
