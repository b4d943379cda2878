//! How ranks reach each other's buffers, where all of them share memory.

use bonfire_plan::WorldSize;
use bonfire_sys::window::{Board, PANE_BYTES};
use bonfire_sys::{Arena, RegionError, memory_bytes};

/// The memory of a host, as one rank sees it.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) board: Board,
    /// Where this rank's buffers are. Threads share everything, but here large buffers are in huge pages.
    pub(crate) arena: Option<Arena>,
}

impl Sharing {
    /// Of all ranks of a group of threads, in rank order.
    pub(crate) fn of_threads(world_size: WorldSize) -> Result<Vec<Self>, RegionError> {
        let boards = Board::for_threads(world_size.len())?.into_iter();
        let sharing = |board| Self {
            board,
            // Where addresses are limited, ordinary memory will do.
            arena: Arena::for_threads(memory_bytes()).ok(),
        };
        Ok(boards.map(sharing).collect())
    }
}

/// Addresses that the arenas of one group may take in each process, which maps all of them. A process
/// has 128 TiB, and may be in several groups.
const ADDRESS_BYTES: usize = 16 << 40;

/// Address space for the buffers of one of so many ranks: as much as the machine has memory, which is
/// taken only when a buffer is made, or its share of the addresses. Where even addresses are limited,
/// next to none: operations then copy.
pub(crate) fn new_arena(ranks: WorldSize) -> Result<Arena, RegionError> {
    let capacity = memory_bytes().min(ADDRESS_BYTES / ranks.len());
    Arena::new(PANE_BYTES, capacity).or_else(|_| Arena::new(PANE_BYTES, PANE_BYTES))
}
