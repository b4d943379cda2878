//! Bytes that nobody can guess.

use std::io;

use ring::rand::{SecureRandom, SystemRandom};

/// Fills `bytes` from the operating system's random source.
///
/// # Errors
/// If that has none.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let filled = SystemRandom::new().fill(bytes);
    filled.map_err(|_| io::Error::other("the operating system has no random bytes"))
}
