//! A hash that is the same on every machine and in every version: FNV-1a of Fowler, Noll and Vo. It
//! identifies things and is not for security.

const OFFSET: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

pub(crate) fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that the authors publish.
    #[test]
    fn it_is_the_published_function() {
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv_1a(text.bytes()), hash, "{text:?}");
        }
    }
}
