//! Checksums of a frame, on links that ask for them.
//!
//! CRC-32C (Castagnoli, as in RFC 3720) of the payload, and behind it CRC-32C of the header up to there:
//! so a length or an operation that was changed on the way is not believed either. Every change of up to
//! three bits of a frame of any length in use is found, of more all but one in 2^32.

use super::{HEADER_BYTES, PAYLOAD_SUM_AT, SEQ_AT, WireError, u32_at, u64_at};

/// Where the sum of the header is: at its end.
const HEADER_SUM_AT: usize = HEADER_BYTES - size_of::<u32>();

const _: () = assert!(PAYLOAD_SUM_AT + size_of::<u32>() == HEADER_SUM_AT);

/// What a sealed header says of the payload behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The number of the operation in its group.
    pub seq: u64,
    sum: u32,
}

/// Writes the sums of a frame into its header, which may not change after that.
pub fn seal(header: &mut [u8; HEADER_BYTES], payload: &[u8]) {
    let sum = crc32c::crc32c(payload);
    header[PAYLOAD_SUM_AT..HEADER_SUM_AT].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32c::crc32c(&header[..HEADER_SUM_AT]);
    header[HEADER_SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

impl Seal {
    /// Reads the seal of a header.
    ///
    /// # Errors
    /// [`WireError::Changed`] if the header is not as it was sealed.
    pub fn read(header: &[u8]) -> Result<Self, WireError> {
        if header.len() < HEADER_BYTES {
            return Err(WireError::Short(header.len()));
        }
        if u32_at(header, HEADER_SUM_AT) != crc32c::crc32c(&header[..HEADER_SUM_AT]) {
            return Err(WireError::Changed);
        }
        Ok(Self {
            seq: u64_at(header, SEQ_AT),
            sum: u32_at(header, PAYLOAD_SUM_AT),
        })
    }

    /// Whether this is the payload that was sealed.
    pub fn fits(self, payload: &[u8]) -> bool {
        crc32c::crc32c(payload) == self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CallSite, Operation, decode_header, encode_header};
    use crate::{Algorithm, Collective, DType};

    #[test]
    fn every_bit_of_a_frame_is_under_the_seal() {
        let operation = Operation {
            group: 1,
            seq: 77,
            collective: Collective::AllReduce,
            algorithm: Algorithm::Ring,
            dtype: DType::F32,
            reduce: None,
            count: 3,
            layout: 0,
            call_site: CallSite::from("x".repeat(200)),
        };
        let payload = *b"twelve bytes";
        let mut header = encode_header(&operation, payload.len() as u32);
        assert_eq!(
            Seal::read(&header),
            Err(WireError::Changed),
            "not sealed yet"
        );
        seal(&mut header, &payload);
        let found = Seal::read(&header).unwrap();
        assert_eq!(found.seq, 77);
        assert!(found.fits(&payload));
        let decoded = decode_header(&header).unwrap();
        assert_eq!(
            decoded,
            (operation, 12),
            "the sums are behind the call-site"
        );
        for bit in 0..HEADER_BYTES * 8 {
            let mut changed = header;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seal::read(&changed), Err(WireError::Changed), "bit {bit}");
        }
        for bit in 0..payload.len() * 8 {
            let mut changed = payload;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!found.fits(&changed), "bit {bit}");
        }
        assert_eq!(
            Seal::read(&header[1..]),
            Err(WireError::Short(HEADER_BYTES - 1))
        );
    }
}
