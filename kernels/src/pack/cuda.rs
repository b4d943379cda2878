//! The copy of segments as CUDA C++.
//!
//! Arguments: the address that sources count from, the address that targets count from (both
//! multiples of 16), the table of the tiles (device memory, [`Tiles::table`](super::Tiles::table));
//! no scalars. The lengths in the last argument are `u64` here.

use cubecl::ir::AddressType;
use cubecl::prelude::*;

use super::kernel::pack;
use super::{Pack, Tiles};
use crate::element::Element;
use crate::reduce::VECTOR_BYTES;
use crate::source::{Grid, KernelSource, Launch, SourceError, Target, compile};
use crate::types::{self, Tail};

/// Threads per block: each moves eight vectors of a whole tile.
const UNITS: u32 = 256;

impl Pack {
    /// The kernel as CUDA C++.
    ///
    /// # Errors
    /// Only through a defect of this crate or of CubeCL: every variant is compiled in its tests.
    pub fn cuda_source(&self) -> Result<KernelSource, SourceError> {
        let Target { settings, device, target } = Target::cuda(UNITS);
        let buffer = || BufferCompilationArg { inplace: None };
        let kernel = pack::Pack::new(
            settings.address_type(AddressType::U64),
            device,
            target,
            buffer(),
            buffer(),
            buffer(),
            VECTOR_BYTES / self.element.bytes(),
            Tail::Scalars,
            [types::unsigned(self.element), types::stored(Element::U64)],
        );
        compile(&kernel, 3, UNITS)
    }

    /// A launch for these tiles. There must be at least one.
    ///
    /// # Panics
    /// If there is none, or more than a grid has blocks.
    #[must_use]
    pub fn cuda_launch(&self, tiles: &Tiles) -> Launch {
        let cubes = tiles.count();
        assert!(
            (1..=i32::MAX as usize).contains(&cubes),
            "{cubes} tiles, but a grid has 1 to {} blocks",
            i32::MAX
        );
        let grid = Grid { cubes: cubes as u32, units: UNITS, shared_bytes: 0 };
        Launch::of_unknown_lengths(grid, 3)
    }
}
