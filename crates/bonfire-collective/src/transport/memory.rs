//! Frames through shared memory: one ring per ordered pair of ranks, which the receiver made.

use bonfire_plan::WorldSize;
use bonfire_sys::RegionError;
use bonfire_sys::ring::{self, Consumer, LABEL_BYTES, Producer, RingLayout};

use super::wire::{AGREED_BYTES, HEADER_BYTES};
use super::{Frame, Links, SLOTS};

/// Payload that fits a slot's label behind what ranks compare: with it, a frame is one cache line that
/// goes from one core to the other.
const SHORT_BYTES: usize = LABEL_BYTES - AGREED_BYTES;
/// Where in the bytes of a slot a longer payload starts: behind the rest of the header, on a cache line. Nobody reads
/// that rest unless the ranks disagree, so its lines stay with the core that wrote them.
const PAYLOAD_AT: usize = (HEADER_BYTES - AGREED_BYTES).next_multiple_of(64);

// So that a short payload is aligned for every element type.
const _: () = assert!(SHORT_BYTES == 16);

/// Both directions between this rank and one peer.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    pub(crate) outbox: Producer,
    pub(crate) inbox: Consumer,
}

impl MemoryLink {
    /// Both ends of the pair of rings between two threads.
    fn between_threads(layout: RingLayout) -> Result<[Self; 2], RegionError> {
        let (to_other, at_other) = ring::pair(layout)?;
        let (to_one, at_one) = ring::pair(layout)?;
        let one = Self { outbox: to_other, inbox: at_one };
        let other = Self { outbox: to_one, inbox: at_other };
        Ok([one, other])
    }

    /// Copies a frame into the next slot and publishes it; nothing while none is free.
    pub(super) fn try_put(&mut self, header: &[u8; HEADER_BYTES], payload: &[u8]) -> Option<()> {
        let slot = self.outbox.free_slot()?;
        let end = PAYLOAD_AT + payload.len();
        assert!(end <= slot.bytes.len(), "frame of {end} bytes in a slot of {}", slot.bytes.len());
        let (agreed, rest) = header.split_at(AGREED_BYTES);
        let (label, short) = slot.label.split_at_mut(AGREED_BYTES);
        label.copy_from_slice(agreed);
        slot.bytes[..rest.len()].copy_from_slice(rest);
        if payload.len() <= SHORT_BYTES {
            short[..payload.len()].copy_from_slice(payload);
        } else {
            slot.bytes[PAYLOAD_AT..end].copy_from_slice(payload);
        }
        self.outbox.publish(end);
        Some(())
    }

    #[inline]
    pub(super) fn front(&self) -> Option<Frame<'_>> {
        let frame = self.inbox.front()?;
        let (agreed, short) = frame.label.split_at(AGREED_BYTES);
        // A peer that breaks the protocol must not make us panic: its header will not agree.
        let rest = frame.bytes.get(..HEADER_BYTES - AGREED_BYTES);
        let payload = frame.bytes.get(PAYLOAD_AT..).unwrap_or_default();
        let payload = short.get(..payload.len()).unwrap_or(payload);
        Some(Frame::new([agreed, rest.unwrap_or_default()], payload))
    }
}

/// The rings of frames with up to `chunk_bytes` of payload.
pub(crate) fn ring_layout(chunk_bytes: usize) -> RingLayout {
    RingLayout::new(SLOTS, PAYLOAD_AT + chunk_bytes)
}

/// The links of all ranks of a group of threads, in rank order.
pub(crate) fn local_links(
    world_size: WorldSize,
    chunk_bytes: usize,
) -> Result<Vec<Links>, RegionError> {
    let layout = ring_layout(chunk_bytes);
    let ranks = world_size.ranks();
    let mut links: Vec<Links> = ranks.map(|me| Links::new(me, world_size)).collect();
    for one in world_size.ranks() {
        for other in world_size.ranks().filter(|other| *other > one) {
            let [of_one, of_other] = MemoryLink::between_threads(layout)?;
            links[one.index()].add_memory(other, of_one);
            links[other.index()].add_memory(one, of_other);
        }
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Short payloads lie elsewhere than long ones.
    #[test]
    fn payloads_of_all_lengths_arrive() {
        let [mut zero, mut one] = MemoryLink::between_threads(ring_layout(64)).unwrap();
        let header: [u8; HEADER_BYTES] = std::array::from_fn(|index| index as u8);
        for len in 0..=64 {
            let payload: Vec<u8> = (0..len).map(|byte| byte as u8 ^ 0x5a).collect();
            assert!(zero.try_put(&header, &payload).is_some());
            let frame = one.front().unwrap();
            assert_eq!(frame.payload(), payload);
            assert_eq!(frame.payload().as_ptr().align_offset(16), 0, "{len} bytes");
            assert!(frame.agrees_with(&header));
            one.inbox.release();
        }
    }
}
