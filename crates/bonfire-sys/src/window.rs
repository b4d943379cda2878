//! Windows: buffers that the ranks of a group open to each other for the length of one operation.
//!
//! Every rank has a *pane*, a small record in shared memory that says where its open buffer is. While
//! its window is open, rank r may read and write the elements of *shard r* of every open window, and
//! nobody may touch any other element. Shards are balanced and contiguous, as
//! `bonfire_plan::shard_range` has them, so no two ranks ever touch the same element of a window and
//! no order between them is needed for memory safety. What the values mean is the plan's business.
//!
//! Three rules make that hold in safe code:
//! - a pane is claimed once, as that of rank r of n, so "rank r" is one owner, borrowed mutably, and
//!   nobody enters a window whose owner has another place or number of ranks in mind: all who are inside
//!   agree on the shards;
//! - a window is open only inside [`Board::open`], which holds the buffer's `&mut` borrow;
//! - before it returns, `open` closes the pane and waits until no peer is inside (the *lease*).
//!
//! A peer that is stopped or dies inside a window of a group of processes never leaves it. Then the pages under the
//! buffer are replaced by private ones before the borrow ends: the peer's late writes go to memory that this process
//! no longer maps. Such a board opens no window any more, because the peer still counts as one that is inside.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::Arena;
use crate::lease::Lease;
use crate::region::{OpenError, Region, RegionError};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How long a close waits for a peer that is inside. A visit is one pass over one chunk, so only a
/// peer that is stopped or dead takes this long.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// One rank's record. All zero bytes are a closed pane.
#[repr(C, align(64))]
struct Pane {
    lease: Lease,
    /// Who claimed the pane, encoded by [`claim_of`].
    claimed: AtomicU32,
    /// Of what its owner brings: an address in this process (threads), or an offset in the owner's
    /// region (processes).
    input: AtomicU64,
    /// Of where the result goes; the same for an operation in place.
    target: AtomicU64,
    bytes: AtomicU64,
    element_bytes: AtomicU64,
    stamp: AtomicU64,
}

const _: () = assert!(size_of::<Pane>() == PANE_BYTES);

pub const PANE_BYTES: usize = 64;

/// One rank's view of the panes of all ranks.
#[derive(Debug)]
pub struct Board {
    me: usize,
    homes: Homes,
}

#[derive(Debug)]
enum Homes {
    /// One region of panes; buffers are anywhere in this process.
    Threads { panes: Arc<Region>, ranks: usize },
    /// Every rank's pane is at the start of its region, and its buffers are in the same region.
    Processes { mine: Arena, regions: Vec<Arc<Region>> },
}

#[derive(Debug)]
pub struct View<'a, T> {
    /// What it brings, if that is not what `target` holds; as many elements.
    pub input: Option<&'a [T]>,
    pub target: &'a mut [T],
}

impl<'a, T> View<'a, T> {
    pub fn in_place(target: &'a mut [T]) -> Self {
        Self { input: None, target }
    }

    pub fn source(&self) -> &[T] {
        self.input.unwrap_or(self.target)
    }
}

impl<T: Copy> View<'_, T> {
    /// Puts what the rank brings where the result goes.
    pub fn settle(&mut self) {
        if let Some(input) = self.input {
            self.target.copy_from_slice(input);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    Closed {
        rank: usize,
    },
    /// This rank's buffer has another length or element type, or is open for another operation.
    Differs {
        rank: usize,
    },
}

impl Board {
    /// The boards of all ranks that are threads of one process.
    ///
    /// A board belongs to one thread at a time, and so does a window of it:
    ///
    /// ```compile_fail,E0499
    /// # use bonfire_sys::window::{Board, View};
    /// let mut boards = Board::for_threads(2)?;
    /// let (mut one, mut two) = ([1_u32; 4], [1_u32; 4]);
    /// let [one, two] = [&mut one, &mut two].map(|data| View::in_place(&mut data[..]));
    /// boards[0].open(one, 7, |_| boards[0].open(two, 7, |_| ()));
    /// # Ok::<(), bonfire_sys::RegionError>(())
    /// ```
    pub fn for_threads(ranks: usize) -> Result<Vec<Self>, RegionError> {
        let panes = Arc::new(Region::anonymous(ranks.max(1) * PANE_BYTES)?);
        let board = |me| {
            let panes = Arc::clone(&panes);
            let board = Self::claim(me, Homes::Threads { panes, ranks });
            board.expect("the panes are new, so nothing is claimed")
        };
        Ok((0..ranks).map(board).collect())
    }

    /// The board of rank `me` among processes. `mine` is its arena, with at least [`PANE_BYTES`]
    /// reserved at its start; `peers` are the descriptors of the other ranks' arenas, in rank order.
    ///
    /// ```compile_fail,E0133
    /// use bonfire_sys::{Arena, window::{Board, PANE_BYTES}};
    /// let arena = Arena::new(PANE_BYTES, 4096)?;
    /// let _ = Board::for_processes(arena, 0, Vec::new()); // Is this the only board of rank 0?
    /// # Ok::<(), bonfire_sys::RegionError>(())
    /// ```
    ///
    /// # Errors
    /// If an arena cannot be mapped, or `mine` has a board already.
    ///
    /// # Safety
    /// The descriptors are those of the arenas of the other ranks, all different and none `mine`,
    /// and every other holder of one keeps to the contract of [`Arena::descriptor`].
    pub unsafe fn for_processes(
        mine: Arena,
        me: usize,
        peers: Vec<OwnedFd>,
    ) -> Result<Self, OpenError> {
        assert!(me <= peers.len(), "rank {me} of {}", peers.len() + 1);
        let mut regions = Vec::with_capacity(peers.len() + 1);
        for file in peers {
            // SAFETY: promised by the caller.
            regions.push(Arc::new(unsafe { Region::open(&file) }?));
        }
        regions.insert(me, Arc::clone(mine.region()));
        for region in &regions {
            let len = region.len();
            assert!(len >= PANE_BYTES, "no room for a pane in a region of {len}");
        }
        Self::claim(me, Homes::Processes { mine, regions })
    }

    fn claim(me: usize, homes: Homes) -> Result<Self, OpenError> {
        let board = Self { me, homes };
        let (claimed, claim) = (&board.pane(me).claimed, claim_of(me, board.ranks()));
        let claimed = claimed.compare_exchange(0, claim, Ordering::AcqRel, Ordering::Acquire);
        claimed.map_err(|_| OpenError::Claimed)?;
        Ok(board)
    }

    pub fn ranks(&self) -> usize {
        match &self.homes {
            Homes::Threads { ranks, .. } => *ranks,
            Homes::Processes { regions, .. } => regions.len(),
        }
    }

    /// Whether `data` is memory that peers can reach: any in a group of threads, a block of this
    /// rank's arena in a group of processes. Nothing is once a peer did not leave a window.
    pub fn reaches<T>(&self, data: &[T]) -> bool {
        match &self.homes {
            Homes::Threads { .. } => true,
            Homes::Processes { mine, .. } => mine.offset_of(data).is_some(),
        }
    }

    fn pane(&self, rank: usize) -> &Pane {
        let (region, offset) = match &self.homes {
            Homes::Threads { panes, .. } => (panes, rank * PANE_BYTES),
            Homes::Processes { regions, .. } => (&regions[rank], 0),
        };
        // SAFETY: offset + PANE_BYTES is inside the region, checked by the constructors.
        let pane = unsafe { region.base().add(offset) }.cast::<Pane>();
        // SAFETY: aligned: a page plus a multiple of 64; inside the mapping, which `self` keeps; a
        // Pane is made of atomics, for which any bytes are valid and shared mutation is allowed.
        unsafe { pane.as_ref() }
    }

    /// Opens the elements of `view` to the peers while `body` runs, for the operation that all of them
    /// call `stamp`. When this returns, nobody but the caller reaches them. An operation that failed
    /// leaves unspecified content in the target.
    ///
    /// # Panics
    /// If peers cannot [reach](Self::reaches) them, or input and target differ in length.
    pub fn open<T: Pod, R>(
        &mut self,
        view: View<'_, T>,
        stamp: u64,
        body: impl FnOnce(&mut Windows<'_, T>) -> R,
    ) -> R {
        let (len, bytes) = (view.target.len(), size_of_val(view.target));
        assert_eq!(view.source().len(), len, "input and target");
        let offsets = [view.source(), view.target].map(|data| match &self.homes {
            Homes::Threads { .. } => None,
            Homes::Processes { mine, .. } => {
                let offset = mine.offset_of(data);
                Some(offset.expect("the caller asked `reaches` before"))
            }
        });
        let apart = view.input.map(|input| NonNull::from(input).cast::<T>());
        let target = NonNull::from(view.target).cast::<T>();
        let own = [apart.unwrap_or(target), target];
        let start = |which: usize| {
            let address = || own[which].as_ptr().expose_provenance();
            offsets[which].unwrap_or_else(address) as u64
        };
        let pane = self.pane(self.me);
        pane.input.store(start(0), Ordering::Relaxed);
        pane.target.store(start(1), Ordering::Relaxed);
        pane.bytes.store(bytes as u64, Ordering::Relaxed);
        let element_bytes = size_of::<T>() as u64;
        pane.element_bytes.store(element_bytes, Ordering::Relaxed);
        pane.stamp.store(stamp, Ordering::Relaxed);
        pane.lease.open();
        // Closes also when `body` panics.
        let closer = Closer { board: self, starts: own.map(NonNull::cast), bytes };
        let mut windows = Windows { board: closer.board, own, len, stamp };
        body(&mut windows)
    }
}

/// The value that marks a pane as claimed by rank `me` of `ranks`.
fn claim_of(me: usize, ranks: usize) -> u32 {
    assert!(ranks <= usize::from(u16::MAX), "{ranks} ranks share memory");
    (ranks as u32) << 16 | me as u32
}

struct Closer<'a> {
    board: &'a Board,
    /// The input and the target.
    starts: [NonNull<u8>; 2],
    bytes: usize,
}

impl Drop for Closer<'_> {
    fn drop(&mut self) {
        let lease = &self.board.pane(self.board.me).lease;
        lease.shut();
        let started = Instant::now();
        let mut looks = 0_u32;
        while !lease.is_empty() {
            looks = looks.saturating_add(1);
            if looks < 1000 {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(Duration::from_micros(50));
            // A thread of this process cannot vanish inside a visit, which is one pass over a chunk.
            let foreign = matches!(self.board.homes, Homes::Processes { .. });
            // Where the kernel has no memory for the private pages, the buffer cannot be had back
            // before the peer leaves it or there is memory again.
            if foreign && started.elapsed() > LEAVE_PATIENCE && self.abandon().is_ok() {
                return;
            }
        }
    }
}

impl Closer<'_> {
    fn abandon(&self) -> Result<(), Errno> {
        let Homes::Processes { mine, .. } = &self.board.homes else {
            return Ok(());
        };
        let [input, target] = self.starts.map(|start| {
            let offset = start.addr().get() - mine.region().base().addr().get();
            offset..offset + self.bytes
        });
        mine.abandon(input, target)
    }
}

/// The open windows of all ranks, during one operation.
#[derive(Debug)]
pub struct Windows<'a, T> {
    board: &'a Board,
    /// This rank's input and target; the same for an operation in place.
    own: [NonNull<T>; 2],
    len: usize,
    stamp: u64,
}

impl<T: Pod> Windows<'_, T> {
    /// The elements that this rank may touch, in every window.
    pub fn shard(&self) -> Range<usize> {
        let (ranks, me) = (self.board.ranks(), self.board.me);
        let (base, longer) = (self.len / ranks, self.len % ranks);
        let start = me * base + me.min(longer);
        start..start + base + usize::from(me < longer)
    }

    /// Gives `body` the elements `range` of every rank's window, in rank order.
    ///
    /// Everything that a peer wrote before it opened its window is visible.
    ///
    /// # Errors
    /// If a window is closed or another one than this rank's; `body` is then not run.
    ///
    /// # Panics
    /// If `range` is not inside [`shard`](Self::shard).
    pub fn visit<R>(
        &mut self,
        range: Range<usize>,
        body: impl FnOnce(&mut [View<'_, T>]) -> R,
    ) -> Result<R, Shut> {
        let shard = self.shard();
        let is_own =
            shard.start <= range.start && range.start <= range.end && range.end <= shard.end;
        assert!(is_own, "elements {range:?} of shard {shard:?}");
        let mut visits = Visits { board: self.board, entered: 0 };
        let mut views: SmallVec<[View<'_, T>; 64]> = SmallVec::new();
        for rank in 0..self.board.ranks() {
            let [input, target] = visits.enter(rank, self)?;
            // SAFETY: the range is inside the window, whose `len` elements `enter` has checked.
            let first = unsafe { target.add(range.start) };
            // SAFETY: valid: the owner's `open` does not return, so its borrow of the buffer lasts, before this visit
            // has left (or, for a process, detaches the pages from its own mapping only). Any bytes are a T (Pod).
            // Aliasing: these are elements of shard `me`; every rank asserts its own shard above, shards of one
            // length are disjoint, `enter` checked that this window has that length and that its owner knows itself
            // as this rank of as many, each pane is claimed once, and `&mut self` makes this the only visit of this
            // rank. The slices of different ranks are different buffers, because each was opened through a `&mut`
            // borrow. The owner itself visits like a peer.
            let elements = unsafe { slice::from_raw_parts_mut(first.as_ptr(), range.len()) };
            let mut view = View::in_place(elements);
            if input != target {
                // SAFETY: inside the window, as above.
                let first = unsafe { input.add(range.start) };
                // SAFETY: valid as above. The owner opened it through a `&` borrow, which lasts as long:
                // nobody writes it, and no `&mut` borrow of any rank, so no target, overlaps it.
                view.input = Some(unsafe { slice::from_raw_parts(first.as_ptr(), range.len()) });
            }
            views.push(view);
        }
        Ok(body(&mut views))
    }
}

/// Leaves what was entered, also after an error or a panic.
struct Visits<'a> {
    board: &'a Board,
    entered: usize,
}

impl Visits<'_> {
    /// Enters the next rank's window and returns the first elements of its input and its target.
    fn enter<T: Pod>(
        &mut self,
        rank: usize,
        windows: &Windows<'_, T>,
    ) -> Result<[NonNull<T>; 2], Shut> {
        assert_eq!(rank, self.entered, "windows are entered in rank order");
        let pane = self.board.pane(rank);
        if !pane.lease.enter() {
            return Err(Shut::Closed { rank });
        }
        self.entered = rank + 1;
        let bytes = windows.len * size_of::<T>();
        let claim = claim_of(rank, self.board.ranks());
        let same = pane.claimed.load(Ordering::Relaxed) == claim
            && pane.stamp.load(Ordering::Relaxed) == windows.stamp
            && pane.bytes.load(Ordering::Relaxed) == bytes as u64
            && pane.element_bytes.load(Ordering::Relaxed) == size_of::<T>() as u64;
        if !same {
            return Err(Shut::Differs { rank });
        }
        if rank == self.board.me {
            return Ok(windows.own);
        }
        let place = |start: &AtomicU64| {
            let start = start.load(Ordering::Relaxed) as usize;
            if !start.is_multiple_of(align_of::<T>()) {
                return None;
            }
            match &self.board.homes {
                Homes::Threads { .. } => NonNull::new(ptr::with_exposed_provenance_mut::<T>(start)),
                Homes::Processes { regions, .. } => {
                    let region = &regions[rank];
                    // A peer that breaks the protocol must not make us touch memory outside its region.
                    let end = start.checked_add(bytes);
                    end.filter(|end| *end <= region.len())?;
                    // SAFETY: start is inside the region, checked above.
                    Some(unsafe { region.base().add(start) }.cast::<T>())
                }
            }
        };
        match (place(&pane.input), place(&pane.target)) {
            (Some(input), Some(target)) => Ok([input, target]),
            _ => Err(Shut::Differs { rank }),
        }
    }
}

impl Drop for Visits<'_> {
    fn drop(&mut self) {
        for rank in 0..self.entered {
            self.board.pane(rank).lease.leave();
        }
    }
}

#[cfg(test)]
mod tests;
