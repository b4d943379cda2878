//! A queue of frames from one producer to one consumer, in shared memory.
//!
//! The queue has a fixed number of slots. A slot belongs to the producer until it publishes it and
//! to the consumer until that releases it; the two counters (`published`, `released`) say which is
//! which. [`Producer`] and [`Consumer`] can each be claimed once per ring, in whatever process, so
//! the borrow checker's "one owner at a time" holds across threads and processes.
//!
//! What a small frame costs is cache lines that go from one core to the other. So a slot says itself
//! which frame it holds, in the line in which the frame begins (its label): one line brings the news
//! and the first bytes, and the counters, which only sleepers need, stay with the core that advances
//! them.
//!
//! Trust: every process that maps the region runs this code. The region's descriptor travels only
//! over connections that proved knowledge of the job's token.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Doorbell, Region};

/// Geometry of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    slots: u32,
    slot_bytes: usize,
}

/// What precedes the slots.
#[repr(C, align(64))]
struct Control {
    published: Doorbell,
    released: Doorbell,
    producer_claimed: AtomicU32,
    consumer_claimed: AtomicU32,
}

/// Bytes at the start of a slot that share a cache line with the word that publishes it.
pub const LABEL_BYTES: usize = 56;

/// What precedes the bytes of a slot.
#[repr(C, align(64))]
struct SlotHead {
    /// One more than the number of the frame that was last published here. Slot `s` first holds frame
    /// `s`, so the zero of new memory, and whatever an earlier frame left, is not the next frame's.
    published: AtomicU32,
    frame_bytes: AtomicU32,
    label: UnsafeCell<[u8; LABEL_BYTES]>,
}

/// A slot that belongs to the producer, to be filled. Its content is unspecified.
#[derive(Debug)]
pub struct Slot<'a> {
    /// Arrives with the news that there is a frame; its end is 16-aligned.
    pub label: &'a mut [u8; LABEL_BYTES],
    /// The rest, all of [`RingLayout::slot_bytes`]; 64-aligned.
    pub bytes: &'a mut [u8],
}

/// A published frame, which belongs to the consumer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// As the producer left it.
    pub label: &'a [u8; LABEL_BYTES],
    /// As many bytes as were published; 64-aligned.
    pub bytes: &'a [u8],
}

const _: () = assert!(size_of::<Control>() == 192);
const _: () = assert!(size_of::<SlotHead>() == 64);

/// One end of this ring is already claimed.
#[derive(Debug, thiserror::Error)]
#[error("the {end} of this ring is already claimed")]
pub struct Claimed {
    end: &'static str,
}

impl RingLayout {
    /// A ring of `slots` frames of up to `slot_bytes` bytes each.
    ///
    /// # Panics
    /// If `slots` is not a power of two (the counters wrap) or `slot_bytes` is not in 1..2^32.
    pub fn new(slots: u32, slot_bytes: usize) -> Self {
        assert!(
            slots.is_power_of_two(),
            "slots must be a power of two, got {slots}"
        );
        assert!(slot_bytes > 0, "a slot needs at least one byte");
        assert!(
            u32::try_from(slot_bytes).is_ok(),
            "slot_bytes must fit u32, got {slot_bytes}"
        );
        Self {
            slots,
            slot_bytes: slot_bytes.next_multiple_of(align_of::<SlotHead>()),
        }
    }

    /// Bytes of region that the ring takes; a multiple of 64.
    pub fn bytes(&self) -> usize {
        size_of::<Control>() + self.slots as usize * (size_of::<SlotHead>() + self.slot_bytes)
    }

    /// Largest frame, in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }
}

/// Both ends share this view of the ring.
#[derive(Debug)]
struct Ring {
    base: NonNull<u8>,
    layout: RingLayout,
    /// Keeps the mapping alive.
    _region: Arc<Region>,
}

// SAFETY: the pointer is into the region that the Arc keeps mapped, and all access to it follows
// the slot protocol, which does not depend on the thread.
unsafe impl Send for Ring {}

impl Ring {
    fn new(region: Arc<Region>, offset: usize, layout: RingLayout) -> Self {
        assert!(
            offset.is_multiple_of(64),
            "a ring starts on a cache line, got offset {offset}"
        );
        let end = offset
            .checked_add(layout.bytes())
            .expect("offset and size fit the address space");
        assert!(
            end <= region.len(),
            "ring ends at {end}, region at {}",
            region.len()
        );
        // SAFETY: offset < region.len(), checked above, so the pointer stays inside the mapping.
        let base = unsafe { region.base().add(offset) };
        Self {
            base,
            layout,
            _region: region,
        }
    }

    fn control(&self) -> &Control {
        // SAFETY: `base` is 64-aligned (page plus a multiple of 64), inside the mapping for
        // `layout.bytes()`, and Control is made of atomics, for which zero bytes are valid and
        // shared mutation is allowed.
        unsafe { self.base.cast::<Control>().as_ref() }
    }

    /// Start of the slot that frame number `count` lives in.
    fn slot(&self, count: u32) -> NonNull<u8> {
        let index = (count & (self.layout.slots - 1)) as usize;
        let offset =
            size_of::<Control>() + index * (size_of::<SlotHead>() + self.layout.slot_bytes);
        // SAFETY: index < slots, so the offset is below layout.bytes(), inside the mapping.
        unsafe { self.base.add(offset) }
    }

    fn head(&self, count: u32) -> &SlotHead {
        // SAFETY: a slot starts 64-aligned with its SlotHead, inside the mapping; atomics and the
        // UnsafeCell may be shared while others write them, and zero bytes are valid for them.
        unsafe { self.slot(count).cast::<SlotHead>().as_ref() }
    }

    fn bytes(&self, count: u32) -> NonNull<u8> {
        // SAFETY: the slot has SlotHead and then slot_bytes bytes, all inside the mapping.
        unsafe { self.slot(count).add(size_of::<SlotHead>()) }
    }
}

/// The end that fills slots and publishes them.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    published: u32,
    /// What `released` was when it was last read. The counter belongs to the consumer's core; it is
    /// only asked again when by this number all slots are taken.
    released: u32,
}

impl Producer {
    /// Claims the producing end of the ring at `offset`.
    pub fn claim(region: Arc<Region>, offset: usize, layout: RingLayout) -> Result<Self, Claimed> {
        let ring = Ring::new(region, offset, layout);
        claim(&ring.control().producer_claimed, "producer")?;
        Ok(Self {
            ring,
            published: 0,
            released: 0,
        })
    }

    /// The next slot to fill, or `None` while the consumer holds them all. Nothing is visible to the
    /// consumer before [`publish`](Self::publish).
    pub fn free_slot(&mut self) -> Option<Slot<'_>> {
        if self.is_full() {
            self.released = self.ring.control().released.count();
            if self.is_full() {
                return None;
            }
        }
        let label = self.ring.head(self.published).label.get();
        let bytes = self.ring.bytes(self.published);
        // SAFETY: valid: part of the slot's head, inside the mapping. Aliasing: frame number
        // `published` is not yet published, and the frame that used this slot before was released (the
        // acquire in the `count` that said so orders the consumer's reads before our writes), so the
        // consumer does not touch it; there is one producer, borrowed mutably for as long as the
        // reference lives.
        let label = unsafe { &mut *label };
        // SAFETY: valid: inside the mapping for slot_bytes. Aliasing: as for the label, from which the
        // bytes are disjoint.
        let bytes =
            unsafe { slice::from_raw_parts_mut(bytes.as_ptr(), self.ring.layout.slot_bytes) };
        Some(Slot { label, bytes })
    }

    /// Whether all slots were taken when the consumer's counter was last read.
    fn is_full(&self) -> bool {
        self.published.wrapping_sub(self.released) % Doorbell::COUNTS >= self.ring.layout.slots
    }

    /// Hands the slot last returned by [`free_slot`](Self::free_slot) to the consumer as a frame of
    /// its label and its first `frame_bytes` bytes. After this the consumer sees them, and this side
    /// must ask for a slot again.
    ///
    /// # Panics
    /// If no slot is free, or the frame is larger than a slot.
    pub fn publish(&mut self, frame_bytes: usize) {
        let layout = self.ring.layout;
        assert!(
            frame_bytes <= layout.slot_bytes,
            "frame of {frame_bytes} bytes in a slot of {}",
            layout.slot_bytes
        );
        assert!(self.free_slot().is_some(), "publish without a free slot");
        let frame_bytes = u32::try_from(frame_bytes).expect("slot_bytes fits u32");
        let head = self.ring.head(self.published);
        head.frame_bytes.store(frame_bytes, Ordering::Relaxed);
        self.published = self.published.wrapping_add(1);
        // Release pairs with the acquire in `front`: who sees the number sees the frame.
        head.published.store(self.published, Ordering::Release);
        // For a consumer that sleeps.
        self.ring.control().published.ring();
    }

    /// Sleeps until a slot may have become free, or `slice` is over.
    pub fn sleep(&self, slice: Duration) {
        let full_at = self.published.wrapping_sub(self.ring.layout.slots);
        self.ring.control().released.sleep_past(full_at, slice);
    }
}

/// The end that reads frames and releases their slots.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    released: u32,
}

impl Consumer {
    /// Claims the consuming end of the ring at `offset`.
    pub fn claim(region: Arc<Region>, offset: usize, layout: RingLayout) -> Result<Self, Claimed> {
        let ring = Ring::new(region, offset, layout);
        claim(&ring.control().consumer_claimed, "consumer")?;
        Ok(Self { ring, released: 0 })
    }

    /// The oldest frame not yet released, or `None` while there is none. It keeps its content and
    /// its address until [`release`](Self::release).
    pub fn front(&self) -> Option<Frame<'_>> {
        let head = self.ring.head(self.released);
        if head.published.load(Ordering::Acquire) != self.released.wrapping_add(1) {
            return None;
        }
        // A peer that breaks the protocol must not make us read outside the slot.
        let frame_bytes = head.frame_bytes.load(Ordering::Relaxed) as usize;
        let frame_bytes = frame_bytes.min(self.ring.layout.slot_bytes);
        let bytes = self.ring.bytes(self.released);
        // SAFETY: valid: part of the slot's head, inside the mapping. Aliasing: frame number
        // `released` is published (the acquire orders the producer's writes before our reads) and not
        // released, so the producer does not touch its slot; releasing it needs `&mut self`, which the
        // returned borrow excludes.
        let label = unsafe { &*head.label.get() };
        // SAFETY: valid: inside the mapping for frame_bytes <= slot_bytes. Aliasing: as for the label.
        let bytes = unsafe { slice::from_raw_parts(bytes.as_ptr(), frame_bytes) };
        Some(Frame { label, bytes })
    }

    /// Gives the slot of the oldest frame back to the producer.
    ///
    /// # Panics
    /// If there is no frame.
    pub fn release(&mut self) {
        assert!(self.front().is_some(), "release without a frame");
        self.released = self.released.wrapping_add(1);
        self.ring.control().released.ring();
    }

    /// Sleeps until a frame may have arrived, or `slice` is over.
    pub fn sleep(&self, slice: Duration) {
        self.ring
            .control()
            .published
            .sleep_past(self.released, slice);
    }
}

fn claim(word: &AtomicU32, end: &'static str) -> Result<(), Claimed> {
    word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
        .map(|_| ())
        .map_err(|_| Claimed { end })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri runs a thousand times slower.
    const FRAMES: u32 = if cfg!(miri) { 70 } else { 10_000 };

    fn pair(layout: RingLayout) -> (Producer, Consumer) {
        let region = Arc::new(Region::anonymous(layout.bytes()).unwrap());
        let producer = Producer::claim(Arc::clone(&region), 0, layout).unwrap();
        (producer, Consumer::claim(region, 0, layout).unwrap())
    }

    #[test]
    fn frames_arrive_in_order_and_unchanged_through_few_slots() {
        for slots in [1, 2, 4] {
            let (mut producer, mut consumer) = pair(RingLayout::new(slots, 100));
            let writer = std::thread::spawn(move || {
                for frame in 0..FRAMES {
                    while producer.free_slot().is_none() {
                        producer.sleep(Duration::from_secs(5));
                    }
                    let slot = producer.free_slot().unwrap();
                    let len = (frame % 64) as usize;
                    slot.label.fill(!frame as u8);
                    slot.label[..4].copy_from_slice(&frame.to_le_bytes());
                    slot.bytes[..len].fill(frame as u8);
                    producer.publish(len);
                }
            });
            for frame in 0..FRAMES {
                while consumer.front().is_none() {
                    consumer.sleep(Duration::from_secs(5));
                }
                let Frame { label, bytes } = consumer.front().unwrap();
                assert_eq!(label[..4], frame.to_le_bytes());
                assert!(label[4..].iter().all(|byte| *byte == !frame as u8));
                assert_eq!(bytes.len(), (frame % 64) as usize);
                assert!(bytes.iter().all(|byte| *byte == frame as u8));
                consumer.release();
            }
            writer.join().unwrap();
        }
    }

    #[test]
    fn an_unreleased_slot_is_not_given_to_the_producer_again() {
        let (mut producer, mut consumer) = pair(RingLayout::new(1, 8));
        producer.free_slot().unwrap().bytes[0] = 7;
        producer.publish(1);
        assert!(producer.free_slot().is_none());
        assert_eq!(consumer.front().unwrap().bytes, [7]);
        consumer.release();
        assert!(producer.free_slot().is_some());
    }

    #[test]
    fn an_end_can_be_claimed_once() {
        let layout = RingLayout::new(2, 64);
        let region = Arc::new(Region::anonymous(layout.bytes()).unwrap());
        let _first = Producer::claim(Arc::clone(&region), 0, layout).unwrap();
        assert!(Producer::claim(Arc::clone(&region), 0, layout).is_err());
        assert!(Consumer::claim(region, 0, layout).is_ok());
    }

    #[test]
    #[should_panic(expected = "release without a frame")]
    fn releasing_nothing_is_a_bug() {
        let (_producer, mut consumer) = pair(RingLayout::new(2, 64));
        consumer.release();
    }
}
