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

/// Address space for the buffers of one of `ranks` ranks, and whether there is any: as much as the machine has
/// memory, which is taken only when a buffer is made, or its share of the addresses. Where addresses or the sizes of
/// files are limited, buffers are in the rank's own memory, and operations copy.
pub(crate) fn new_arena(ranks: WorldSize) -> Result<(Arena, bool), RegionError> {
    let capacity = memory_bytes().min(ADDRESS_BYTES / ranks.len());
    match Arena::new(PANE_BYTES, capacity) {
        Ok(arena) => Ok((arena, true)),
        Err(_) => Ok((Arena::new(PANE_BYTES, PANE_BYTES)?, false)),
    }
}
