//! Bytes that follow from the seed.

use std::io;

use crate::simulation::place::here;

/// Fills `bytes`.
///
/// # Errors
/// Never; the source of a real machine may.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let place = here();
    let mut state = place.lock();
    for byte in bytes {
        *byte = state.chance.number() as u8;
    }
    Ok(())
}
