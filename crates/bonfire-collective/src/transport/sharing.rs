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

/// Address space for the buffers of one rank: as much as the machine has memory, which is taken only
/// when a buffer is made. Where even addresses are limited, next to none: operations then copy.
pub(crate) fn new_arena() -> Result<Arena, RegionError> {
    Arena::new(PANE_BYTES, memory_bytes()).or_else(|_| Arena::new(PANE_BYTES, PANE_BYTES))
}
