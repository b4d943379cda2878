//! The header that is sent in front of every frame, and the description of an operation in it.
//!
//! Sender and receiver both know which operation they are in; the header lets the receiver check
//! that they mean the same one before it looks at the data. All integers are little-endian.
//!
//! ```text
//! offset  0 magic u32 | 4 collective u8 | 5 algorithm u8 | 6 dtype u8 | 7 reduce op u8
//!         8 group u32 | 12 first rank u32 | 16 seq u40 | 21 step u24 | 24 count u64
//!        32 second rank u32 | 36 layout u32 | 40 payload_bytes u32
//!        44 call-site length u8 | 45 call-site, UTF-8, up to 75 bytes
//!       120 CRC-32C of the payload u32 | 124 CRC-32C of the bytes before u32 | 128 end
//! ```
//!
//! The sums are there on links that ask for them ([`seal`]), and zero on others.

use std::ops::Range;

use bonfire_plan::{Algorithm, CallSite, Collective, DType, NamedRanks, Operation, Rank, ReduceOp};

/// Bytes of an encoded header; a multiple of 64, so that a payload behind it stays aligned.
pub(crate) const HEADER_BYTES: usize = 128;
/// The bytes that two ranks in one operation encode alike, at the start of a header.
pub(crate) const AGREED_BYTES: usize = Operation::AGREED_BYTES;
const MAGIC: u32 = 0x4246_0003;
const SEQ_AT: usize = 16;
/// Bits of the number of an operation; above them is that of the step and 1, 0 for none.
const SEQ_BITS: u32 = 40;
const STEP_AT: usize = SEQ_AT + SEQ_BITS as usize / 8;
const STEPS: u64 = 1 << (u64::BITS - SEQ_BITS);
const PAYLOAD_BYTES_AT: usize = AGREED_BYTES;
const CALL_SITE_LEN_AT: usize = 44;
const CALL_SITE_AT: usize = 45;
const PAYLOAD_SUM_AT: usize = 120;
const _: () = assert!(CALL_SITE_AT + CallSite::BYTES_MAX == PAYLOAD_SUM_AT);
const NO_REDUCE: u8 = u8::MAX;
const NO_RANK: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WireError {
    /// Fewer bytes than a header has.
    #[error("a header has {HEADER_BYTES} bytes, got {0}")]
    Short(usize),
    /// Not written by this version of Bonfire.
    #[error("not a Bonfire frame (magic {0:#010x}); do all ranks run the same version?")]
    Magic(u32),
    /// The header is not as it was sent.
    #[error("a header was changed on the way")]
    Changed,
    #[error("unknown {field} code {code} in a frame header")]
    Code { field: &'static str, code: u8 },
}

/// Writes the header of a frame with `payload_bytes` bytes behind it.
pub(crate) fn encode_header(operation: &Operation, payload_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    let NamedRanks { first, second } = operation.collective.named();
    let rank = |rank: Option<Rank>| rank.map_or(NO_RANK, Rank::get).to_le_bytes();
    bytes[4] = operation.collective.code();
    bytes[5] = operation.algorithm.code();
    bytes[6] = operation.dtype.code();
    bytes[7] = operation.reduce.map_or(NO_REDUCE, ReduceOp::code);
    bytes[8..12].copy_from_slice(&operation.group.to_le_bytes());
    bytes[12..16].copy_from_slice(&rank(first));
    set_place(&mut bytes, operation.seq, operation.step);
    bytes[24..32].copy_from_slice(&operation.count.to_le_bytes());
    bytes[32..36].copy_from_slice(&rank(second));
    bytes[36..40].copy_from_slice(&operation.layout.to_le_bytes());
    set_payload_bytes(&mut bytes, payload_bytes);
    let site = operation.call_site.as_str().as_bytes();
    assert!(site.len() <= CallSite::BYTES_MAX, "CallSite cuts to {} bytes", CallSite::BYTES_MAX);
    bytes[CALL_SITE_LEN_AT] = site.len() as u8;
    bytes[CALL_SITE_AT..CALL_SITE_AT + site.len()].copy_from_slice(site);
    bytes
}

/// Says in an encoded header that its operation is number `seq` of the group, and of which step.
pub(crate) fn set_place(header: &mut [u8; HEADER_BYTES], seq: u64, step: Option<u32>) {
    let step = step.map_or(0, |step| u64::from(step) % (STEPS - 1) + 1);
    let place = (step << SEQ_BITS) | (seq % (1 << SEQ_BITS));
    header[SEQ_AT..SEQ_AT + 8].copy_from_slice(&place.to_le_bytes());
}

fn place(header: &[u8]) -> (u64, Option<u32>) {
    let place = u64_at(header, SEQ_AT);
    let step = (place >> SEQ_BITS).checked_sub(1);
    (place % (1 << SEQ_BITS), step.map(|step| step as u32))
}

/// Says in an encoded header that `payload_bytes` bytes follow it.
pub(crate) fn set_payload_bytes(header: &mut [u8; HEADER_BYTES], payload_bytes: u32) {
    header[PAYLOAD_BYTES_AT..PAYLOAD_BYTES_AT + 4].copy_from_slice(&payload_bytes.to_le_bytes());
}

/// How many payload bytes follow this header; cheap, for receivers that must know how far to read.
pub(crate) fn payload_bytes(header: &[u8]) -> Result<u32, WireError> {
    if header.len() < HEADER_BYTES {
        return Err(WireError::Short(header.len()));
    }
    let magic = u32_at(header, 0);
    if magic != MAGIC {
        return Err(WireError::Magic(magic));
    }
    Ok(u32_at(header, PAYLOAD_BYTES_AT))
}

/// Whether two headers are of different operations of all ranks in one place of the group's order, so that one of the
/// ranks went wrong. How the operations are run does not matter, and two headers that are alike never do. Only looks:
/// takes no memory and reads nothing behind the [`AGREED_BYTES`]. Panics if either has fewer bytes than those.
pub(crate) fn contradict(one: &[u8], other: &[u8]) -> bool {
    let same = |range: Range<usize>| one[range.clone()] == other[range];
    // The magic, the group and the number.
    let same_place = same(0..4) && same(8..12) && same(SEQ_AT..STEP_AT);
    // All that is agreed on but the algorithm and the layout.
    let same_operation = same(4..5) && same(6..8) && same(12..16) && same(STEP_AT..36);
    let is_of_all = |header| collective(header).is_some_and(|found| !found.is_point_to_point());
    same_place && !same_operation && is_of_all(one) && is_of_all(other)
}

/// What is done, with the ranks that it names.
fn collective(header: &[u8]) -> Option<Collective> {
    let rank = |at| Some(u32_at(header, at)).filter(|&rank| rank != NO_RANK);
    let named = NamedRanks { first: rank(12).map(Rank::new), second: rank(32).map(Rank::new) };
    Collective::from_parts(header[4], named)
}

/// Reads a header; the operation and the number of payload bytes behind it.
pub(crate) fn decode_header(header: &[u8]) -> Result<(Operation, u32), WireError> {
    let payload_bytes = payload_bytes(header)?;
    let code = |field, code| WireError::Code { field, code };
    let reduce = match header[7] {
        NO_REDUCE => None,
        byte => Some(ReduceOp::from_code(byte).ok_or(code("reduce op", byte))?),
    };
    let site_end = (CALL_SITE_AT + header[CALL_SITE_LEN_AT] as usize).min(PAYLOAD_SUM_AT);
    let site = String::from_utf8_lossy(&header[CALL_SITE_AT..site_end]);
    let (seq, step) = place(header);
    let operation = Operation {
        group: u32_at(header, 8),
        seq,
        step,
        collective: collective(header).ok_or(code("collective", header[4]))?,
        algorithm: Algorithm::from_code(header[5]).ok_or(code("algorithm", header[5]))?,
        dtype: DType::from_code(header[6]).ok_or(code("dtype", header[6]))?,
        reduce,
        count: u64_at(header, 24),
        layout: u32_at(header, 36),
        call_site: CallSite::from(site.into_owned()),
    };
    Ok((operation, payload_bytes))
}

// Checksums, on links that ask for them: CRC-32C (Castagnoli, as in RFC 3720) of the payload, and behind it CRC-32C
// of the header up to there. So a length or an operation that was changed on the way is not believed either. Every
// change of up to three bits of a frame of any length in use is found, of more all but one in 2^32.

/// Where the sum of the header is: at its end.
const HEADER_SUM_AT: usize = HEADER_BYTES - size_of::<u32>();
const _: () = assert!(PAYLOAD_SUM_AT + size_of::<u32>() == HEADER_SUM_AT);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The number of the operation in its group.
    pub(crate) seq: u64,
    sum: u32,
}

/// Writes the sums of a frame into its header, which may not change after that.
pub(crate) fn seal(header: &mut [u8; HEADER_BYTES], payload: &[u8]) {
    let sum = crc32c::crc32c(payload);
    header[PAYLOAD_SUM_AT..HEADER_SUM_AT].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32c::crc32c(&header[..HEADER_SUM_AT]);
    header[HEADER_SUM_AT..].copy_from_slice(&sum.to_le_bytes());
}

impl Seal {
    /// Reads the seal of a header. [`WireError::Changed`] if the header is not as it was sealed.
    pub(crate) fn read(header: &[u8]) -> Result<Self, WireError> {
        if header.len() < HEADER_BYTES {
            return Err(WireError::Short(header.len()));
        }
        if u32_at(header, HEADER_SUM_AT) != crc32c::crc32c(&header[..HEADER_SUM_AT]) {
            return Err(WireError::Changed);
        }
        Ok(Self { seq: place(header).0, sum: u32_at(header, PAYLOAD_SUM_AT) })
    }

    pub(crate) fn fits(self, payload: &[u8]) -> bool {
        crc32c::crc32c(payload) == self.sum
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    /// One collective of each kind.
    fn one_of_each() -> impl Iterator<Item = Collective> {
        let [one, two] = [1, 2].map(|rank| Some(Rank::new(rank)));
        let named = [(None, None), (one, None), (one, two)];
        (1..=11).map(move |code| {
            let ranks = named.map(|(first, second)| NamedRanks { first, second });
            let made = ranks.map(|named| Collective::from_parts(code, named));
            made.into_iter().flatten().next().expect("a code of a collective")
        })
    }

    fn operation(collective: Collective, algorithm: Algorithm) -> Operation {
        Operation {
            group: 7,
            seq: (1 << SEQ_BITS) - 2,
            step: Some(12),
            collective,
            algorithm,
            dtype: DType::BF16,
            reduce: Some(ReduceOp::Max),
            count: 1 << 40,
            layout: 0xdead_beef,
            call_site: CallSite::new(Location::caller()),
        }
    }

    #[test]
    fn every_operation_survives_the_wire() {
        for collective in one_of_each() {
            for &algorithm in Algorithm::ALL {
                let sent = operation(collective, algorithm);
                let header = encode_header(&sent, 77);
                assert_eq!(decode_header(&header), Ok((sent, 77)));
            }
        }
    }

    #[test]
    fn garbage_is_refused() {
        assert_eq!(decode_header(&[0; 5]), Err(WireError::Short(5)));
        assert_eq!(decode_header(&[0; HEADER_BYTES]), Err(WireError::Magic(0)));
        let mut header = encode_header(&operation(Collective::Barrier, Algorithm::Ring), 0);
        header[6] = 200;
        assert_eq!(decode_header(&header), Err(WireError::Code { field: "dtype", code: 200 }));
    }

    #[test]
    fn any_difference_but_the_call_site_is_a_mismatch() {
        let mine = operation(Collective::AllReduce, Algorithm::Ring);
        let mut theirs = Operation { call_site: CallSite::default(), ..mine.clone() };
        assert!(mine.matches(&theirs));
        theirs.count += 1;
        assert!(!mine.matches(&theirs));
        theirs.count -= 1;
        theirs.layout += 1;
        assert!(!mine.matches(&theirs));
    }

    #[test]
    fn only_other_operations_of_all_ranks_in_the_same_place_contradict() {
        let mine = operation(Collective::AllReduce, Algorithm::Ring);
        let header = |operation: &Operation| encode_header(operation, 5);
        let contradicts = |change: fn(&mut Operation)| {
            let mut theirs = mine.clone();
            change(&mut theirs);
            let contradict = contradict(&header(&mine), &header(&theirs));
            assert_eq!(super::contradict(&header(&theirs), &header(&mine)), contradict);
            contradict
        };
        let [one, two] = [1, 2].map(Rank::new);
        assert!(contradicts(|theirs| theirs.collective = Collective::AllGather));
        assert!(contradicts(|theirs| theirs.dtype = DType::F32));
        assert!(contradicts(|theirs| theirs.reduce = Some(ReduceOp::Min)));
        assert!(contradicts(|theirs| theirs.count += 1));
        assert!(!contradicts(|_| {}));
        assert!(!contradicts(|theirs| theirs.seq -= 1));
        assert!(!contradicts(|theirs| theirs.group -= 1));
        // Ranks that measure their links are in the operation already.
        assert!(!contradicts(|theirs| theirs.algorithm = Algorithm::OneShot));
        assert!(!contradicts(|theirs| theirs.layout = 0));
        // Numbers of pairs are others.
        assert!(!contradicts(|theirs| {
            let [source, target] = [1, 2].map(Rank::new);
            theirs.collective = Collective::Transfer { source, target };
        }));
        let roots = [one, two].map(|root| {
            let broadcast = operation(Collective::Broadcast { root }, Algorithm::Binomial);
            encode_header(&broadcast, 0)
        });
        assert!(contradict(&roots[0], &roots[1]), "two roots");
        let mut unknown = roots[0];
        unknown[4] = 200;
        assert!(!contradict(&roots[0], &unknown), "found by who reads it");
    }

    /// Whatever makes two operations differ is in the bytes that ranks compare, and nothing else.
    #[test]
    fn the_agreed_bytes_say_whether_operations_match() {
        let agreed = |operation: &Operation| encode_header(operation, 5)[..AGREED_BYTES].to_vec();
        let mine = operation(Collective::AllReduce, Algorithm::Ring);
        let elsewhere = Operation { call_site: CallSite::default(), ..mine.clone() };
        assert_eq!(agreed(&mine), agreed(&elsewhere));
        assert_eq!(agreed(&mine), encode_header(&mine, 6)[..AGREED_BYTES]);
        let mut others: Vec<_> =
            one_of_each().map(|collective| operation(collective, Algorithm::Ring)).collect();
        others.extend((0..2).map(|second| {
            let [first, second] = [3, second].map(Rank::new);
            let transfer = Collective::Transfer { source: first, target: second };
            operation(transfer, Algorithm::Ring)
        }));
        others.push(Operation { layout: 0, ..mine.clone() });
        others.push(Operation { reduce: None, ..mine.clone() });
        others.extend([None, Some(0), Some(13)].map(|step| Operation { step, ..mine.clone() }));
        for (index, left) in others.iter().enumerate() {
            for (other_index, right) in others.iter().enumerate() {
                assert_eq!(left.matches(right), index == other_index);
                assert_eq!(agreed(left) == agreed(right), index == other_index);
            }
        }
    }

    #[test]
    fn every_bit_of_a_frame_is_under_the_seal() {
        let operation = Operation {
            group: 1,
            seq: 77,
            step: None,
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
        assert_eq!(Seal::read(&header), Err(WireError::Changed), "not sealed yet");
        seal(&mut header, &payload);
        let found = Seal::read(&header).unwrap();
        assert_eq!(found.seq, 77);
        assert!(found.fits(&payload));
        let decoded = decode_header(&header).unwrap();
        assert_eq!(decoded, (operation, 12), "the sums are behind the call-site");
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
        assert_eq!(Seal::read(&header[1..]), Err(WireError::Short(HEADER_BYTES - 1)));
    }
}
