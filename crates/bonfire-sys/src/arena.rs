//! Typed blocks of a region that other ranks reach: threads, or processes that map it.
//!
//! The region is address space; memory is taken when a block is allocated and given back when it is
//! dropped. This module hands out each byte to one block at a time. What peers may do with the bytes
//! of a block, and when, is said and proved in [`window`](crate::window).

use crate::lock::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use rustix::io::Errno;

use crate::region::{HUGE_PAGE_BYTES, Region, RegionError, page_bytes};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    #[error(
        "no {bytes} bytes in a row are left of the {capacity} that a group shares: drop buffers, or \
         allocate fewer and larger ones"
    )]
    Full { bytes: usize, capacity: usize },
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// An allocator over a region. Clones share it. Blocks start and end on pages, so that their memory
/// can be given back, and those of a huge page or more on huge ones, so that the kernel can use them.
#[derive(Clone, Debug)]
pub struct Arena {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    region: Arc<Region>,
    free: Mutex<Gaps>,
    /// What was taken from a peer that did not leave; see [`Arena::abandon`].
    lost: OnceLock<[Range<usize>; 2]>,
}

/// Free ranges by start, never adjacent to one another.
#[derive(Debug)]
struct Gaps {
    base: usize,
    /// Bytes of a page; all gaps begin and end on one.
    page: usize,
    gaps: BTreeMap<usize, usize>,
}

/// A run of elements inside an arena, zero when new. Its memory is given back on drop.
pub struct Block<T> {
    inner: Arc<Inner>,
    bytes: Range<usize>,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: a Block owns its elements as a Vec does; they are reached through `&self` and `&mut self`
// only, and by peers only under the rules of `window`, which hold a `&mut` borrow of them.
unsafe impl<T: Send> Send for Block<T> {}
// SAFETY: as above: `&Block` gives `&[T]`.
unsafe impl<T: Sync> Sync for Block<T> {}

impl Arena {
    /// Address space for `capacity` bytes of blocks behind the first `reserved` bytes, which are
    /// backed by memory now and belong to the caller.
    pub fn new(reserved: usize, capacity: usize) -> Result<Self, RegionError> {
        let [start, len] = [reserved, capacity].map(|bytes| bytes.next_multiple_of(page_bytes()));
        Self::over(Region::reserved(start + len)?, reserved)
    }

    /// Address space for the blocks of a thread whose peers are threads of the same process.
    pub fn for_threads(capacity: usize) -> Result<Self, RegionError> {
        let len = capacity.next_multiple_of(page_bytes());
        Self::over(Region::reserved_for_threads(len)?, 0)
    }

    fn over(region: Region, reserved: usize) -> Result<Self, RegionError> {
        let page = region.page();
        let start = reserved.next_multiple_of(page);
        if start > 0 {
            region.commit(0..start)?;
        }
        let gaps = Gaps {
            base: region.base().addr().get(),
            page,
            gaps: BTreeMap::from([(start, region.len() - start)]),
        };
        let inner = Arc::new(Inner {
            region: Arc::new(region),
            free: Mutex::new(gaps),
            lost: OnceLock::new(),
        });
        Ok(Self { inner })
    }

    /// What other processes need to reach the blocks, through
    /// [`Board::for_processes`](crate::window::Board::for_processes).
    ///
    /// # Panics
    /// If the arena is [for threads](Self::for_threads).
    ///
    /// ```compile_fail,E0133
    /// let arena = bonfire_sys::Arena::new(64, 4096)?;
    /// arena.descriptor(); // Whoever has it can change what safe references point to.
    /// # Ok::<(), bonfire_sys::RegionError>(())
    /// ```
    ///
    /// # Safety
    /// Every process that gets the descriptor uses it for
    /// [`Board::for_processes`](crate::window::Board::for_processes) of this crate and for nothing else.
    pub unsafe fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: promised by the caller.
        let descriptor = unsafe { self.inner.region.descriptor() };
        descriptor.expect("the arena of a process has a descriptor")
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.inner.region
    }

    pub fn allocate<T: Pod>(&self, len: usize) -> Result<Block<T>, ArenaError> {
        let (page, align) = (self.inner.region.page(), align_of::<T>());
        assert!(page.is_multiple_of(align), "elements are aligned to {align}, pages to {page}");
        let capacity = self.inner.region.len();
        let full = |bytes| ArenaError::Full { bytes, capacity };
        let granule = |bytes| granule_of(bytes, page);
        let in_granules = |bytes: usize| bytes.max(1).checked_next_multiple_of(granule(bytes));
        let bytes = len.checked_mul(size_of::<T>()).and_then(in_granules);
        let bytes = bytes.ok_or(full(usize::MAX))?;
        let start = self.inner.free.lock().take(bytes).ok_or(full(bytes))?;
        let range = start..start + bytes;
        if let Err(error) = self.inner.region.commit(range.clone()) {
            self.inner.free.lock().give(range);
            return Err(error.into());
        }
        Ok(Block { inner: Arc::clone(&self.inner), bytes: range, len, element: PhantomData })
    }

    /// Where in the region `elements` lies, or `None` if it is not in a block of this arena, or if
    /// part of the arena was abandoned: then peers see only some of it.
    pub(crate) fn offset_of<T>(&self, elements: &[T]) -> Option<usize> {
        if self.inner.lost.get().is_some() {
            return None;
        }
        let base = self.inner.region.base().addr().get();
        let start = elements.as_ptr().addr().checked_sub(base)?;
        let end = start.checked_add(size_of_val(elements))?;
        (end <= self.inner.region.len()).then_some(start)
    }

    /// Takes these bytes, which blocks own, from a peer that may read `input` and write `target` for ever. No block
    /// of this arena is open to peers afterwards, and the ranges are not used for another block.
    pub(crate) fn abandon(&self, input: Range<usize>, target: Range<usize>) -> Result<(), Errno> {
        let region = self.region();
        region.detach(target.clone())?;
        if input != target {
            region.detach_kept(input.clone(), target.clone())?;
        }
        // Nothing is open to peers after the first time, so there is no second.
        let _ = self.inner.lost.set([input, target]);
        Ok(())
    }
}

impl Gaps {
    /// Takes from the first gap that is large enough.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let granule = granule_of(bytes, self.page);
        let place = |start: usize| match granule {
            _ if granule == self.page => start,
            _ => (self.base + start).next_multiple_of(granule) - self.base,
        };
        let (start, end) = self.gaps.iter().find_map(|(&start, &len)| {
            let end = start + len;
            (place(start).checked_add(bytes)? <= end).then_some((start, end))
        })?;
        let taken = place(start);
        self.gaps.remove(&start);
        for (start, end) in [(start, taken), (taken + bytes, end)] {
            if start < end {
                self.gaps.insert(start, end - start);
            }
        }
        Some(taken)
    }

    fn give(&mut self, range: Range<usize>) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &len)) = self.gaps.range(..start).next_back() {
            assert!(before + len <= start, "a free range was given back");
            if before + len == start {
                self.gaps.remove(&before);
                start = before;
            }
        }
        if let Some(len) = self.gaps.remove(&end) {
            end += len;
        }
        self.gaps.insert(start, end - start);
    }
}

/// The page size of a block of `bytes`, where small blocks have `page`.
fn granule_of(bytes: usize, page: usize) -> usize {
    match bytes {
        HUGE_PAGE_BYTES.. => HUGE_PAGE_BYTES.max(page),
        _ => page,
    }
}

impl<T> Block<T> {
    fn start(&self) -> NonNull<T> {
        // SAFETY: the range lies inside the region, by construction in `allocate`.
        unsafe { self.inner.region.base().add(self.bytes.start) }.cast()
    }
}

impl<T: Pod> Deref for Block<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: valid: committed memory of at least len elements, mapped while `inner` lives, and
        // any bytes are a T (Pod). Aligned: blocks start on pages, checked in `allocate`. Aliasing:
        // no other block has these bytes; peers write them only while `window` holds `&mut [T]`.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes it the only access from this process.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        // Gives the memory back before anybody else can have the range, and makes it zero again.
        self.inner.region.discard(self.bytes.clone());
        // What was abandoned is not zero, and not the memory that peers see: nobody has it again.
        let is_lost =
            |lost: &Range<usize>| lost.start < self.bytes.end && self.bytes.start < lost.end;
        if !self.inner.lost.get().into_iter().flatten().any(is_lost) {
            self.inner.free.lock().give(self.bytes.clone());
        }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Block<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of Linux on AArch64 servers.
    const LARGE_PAGE: usize = 64 << 10;

    /// Where the kernel has large pages, a piece of one cannot be cleared or given away by itself.
    #[test]
    fn a_block_that_is_dropped_leaves_its_neighbours_where_pages_are_large() {
        for region in [
            Region::reserved(16 * LARGE_PAGE).unwrap(),
            Region::reserved_for_threads(16 * LARGE_PAGE).unwrap(),
        ] {
            let arena = Arena::over(region.in_pages(LARGE_PAGE), 64).unwrap();
            let before = arena.allocate::<u8>(1).unwrap();
            let mut dropped = arena.allocate::<u8>(5000).unwrap();
            let mut behind = arena.allocate::<u8>(LARGE_PAGE + 1).unwrap();
            let places = [&before, &dropped, &behind].map(|block| arena.offset_of(block));
            assert_eq!(places, [1, 2, 3].map(|page| Some(page * LARGE_PAGE)));
            dropped.fill(7);
            behind.fill(7);
            drop(dropped);
            assert!(behind.iter().all(|byte| *byte == 7));
            let again = arena.allocate::<u8>(5000).unwrap();
            assert_eq!(arena.offset_of(&again), Some(2 * LARGE_PAGE));
            assert!(again.iter().all(|byte| *byte == 0), "old content is gone");
            // As of a peer that never leaves a window: whole pages of this block, and no others.
            let own = 3 * LARGE_PAGE..4 * LARGE_PAGE;
            arena.abandon(own.clone(), own).unwrap();
            assert_eq!(behind[LARGE_PAGE], 7, "the next page keeps its content");
            behind.fill(8);
        }
    }

    #[test]
    fn blocks_do_not_overlap_and_are_zero_again_when_reused() {
        let arena = Arena::new(64, 16 * page_bytes()).unwrap();
        let mut first = arena.allocate::<f32>(1000).unwrap();
        let mut second = arena.allocate::<u8>(3 * page_bytes()).unwrap();
        first.fill(1.0);
        second.fill(2);
        assert!(first.iter().all(|value| *value == 1.0));
        let at = arena.offset_of(&first[10..]).unwrap();
        assert_eq!(at, page_bytes() + 40);
        drop(first);
        let again = arena.allocate::<f32>(1000).unwrap();
        assert_eq!(arena.offset_of(&again), Some(page_bytes()));
        assert!(again.iter().all(|value| *value == 0.0), "old content is gone");
        assert!(second.iter().all(|value| *value == 2));
    }

    #[test]
    fn gaps_join_so_that_all_of_the_arena_can_be_had_again() {
        let arena = Arena::new(0, 8 * page_bytes()).unwrap();
        let blocks: Vec<_> = (0..8).map(|_| arena.allocate::<u8>(page_bytes()).unwrap()).collect();
        let error = arena.allocate::<u8>(1).unwrap_err();
        assert!(matches!(error, ArenaError::Full { .. }), "{error}");
        let (even, odd): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        drop(even);
        assert!(arena.allocate::<u8>(2 * page_bytes()).is_err());
        drop(odd);
        assert!(arena.allocate::<u8>(8 * page_bytes()).is_ok());
    }

    #[test]
    fn large_blocks_begin_at_huge_pages_and_leave_what_is_before_them() {
        for arena in [
            Arena::new(64, 3 * HUGE_PAGE_BYTES).unwrap(),
            Arena::for_threads(3 * HUGE_PAGE_BYTES).unwrap(),
        ] {
            let small = arena.allocate::<u8>(1).unwrap();
            let mut large = arena.allocate::<u64>(HUGE_PAGE_BYTES / 8 + 1).unwrap();
            assert!(large.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            let beside = arena.allocate::<u8>(page_bytes()).unwrap();
            let (beside, small) = (arena.offset_of(&beside), arena.offset_of(&small));
            assert_eq!(beside, small.map(|at| at + page_bytes()));
            large.fill(7);
            drop(large);
            let again = arena.allocate::<u64>(HUGE_PAGE_BYTES / 8 + 1).unwrap();
            assert!(again.iter().all(|word| *word == 0), "old content is gone");
        }
    }

    #[test]
    fn other_memory_is_not_in_the_arena() {
        let arena = Arena::new(0, page_bytes()).unwrap();
        assert_eq!(arena.offset_of(&[1_u8, 2]), None);
        let empty = arena.allocate::<u64>(0).unwrap();
        assert!(empty.is_empty());
    }
}
