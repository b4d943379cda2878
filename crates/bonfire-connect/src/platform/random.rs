//! Bytes that nobody can guess.

/// Fills `bytes` from the operating system's random source.
pub fn fill(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    getrandom::fill(bytes)
}
