//! Finds out if a JPEG file is complete: ITU-T T.81, annex B.
//!
//! The end marker may also stand in a thumbnail, so it is not enough to look for it: segments are skipped by their
//! lengths, and entropy-coded data, in which a marker cannot occur by chance, is searched for the next one.

const PREFIX: u8 = 0xFF;
const START_OF_IMAGE: u8 = 0xD8;
const END_OF_IMAGE: u8 = 0xD9;
/// Markers without a length inside of entropy-coded data.
const RESTARTS: std::ops::RangeInclusive<u8> = 0xD0..=0xD7;

pub(super) fn is_complete(file: &[u8]) -> bool {
    if file.get(..2) != Some(&[PREFIX, START_OF_IMAGE]) {
        return false;
    }
    let mut at = 2;
    while let Some((marker, segment)) = next_marker(file, at) {
        if marker == END_OF_IMAGE {
            return true;
        }
        let Some(length) = file.get(segment..segment + 2) else {
            return false;
        };
        // The length counts itself.
        at = segment + usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
    }
    false
}

/// The next marker that begins a segment or ends the picture, and where it ends itself. Before it
/// there may be fill bytes, or the entropy-coded data of the scan that has just begun, where a zero
/// follows every prefix that is not one.
fn next_marker(file: &[u8], at: usize) -> Option<(u8, usize)> {
    let is_marker = |pair: &[u8]| {
        pair[0] == PREFIX && pair[1] != 0 && pair[1] != PREFIX && !RESTARTS.contains(&pair[1])
    };
    let at = at + file.get(at..)?.windows(2).position(is_marker)?;
    Some((file[at + 1], at + 2))
}
