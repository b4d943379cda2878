//! A queue of frames from one producer to one consumer, in shared memory.
//!
//! The queue has a fixed number of slots. A slot belongs to the producer until it publishes it and to the consumer
//! until that releases it; the two counters (`published`, `released`) say which is which. A ring has a region of its
//! own. Its [`Consumer`] is made with the region and its [`Producer`] can be claimed once, in whatever process, so
//! the borrow checker's "one owner at a time" holds across threads and processes.
//!
//! What a small frame costs is cache lines that go from one core to the other. So a slot says itself which frame it
//! holds, in the line in which the frame begins (its label): one line brings the news and the first bytes, and the
//! counters, which only sleepers need, stay with the core that advances them.
//!
//! Trust: every process that maps the region runs this code. Whoever passes the region's descriptor
//! on, or opens one, promises it by an `unsafe` call.

use std::cell::UnsafeCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::doorbell::Doorbell;
use crate::region::{OpenError, Region, RegionError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    slots: u32,
    slot_bytes: usize,
}

#[repr(C, align(64))]
struct Control {
    published: Doorbell,
    released: Doorbell,
    producer_claimed: AtomicU32,
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

impl RingLayout {
    /// A ring of `slots` frames of up to `slot_bytes` bytes each.
    ///
    /// # Panics
    /// If `slots` is not a power of two (the counters wrap) or `slot_bytes` is not in 1..2^32.
    pub fn new(slots: u32, slot_bytes: usize) -> Self {
        let (is_power, fits) = (slots.is_power_of_two(), u32::try_from(slot_bytes).is_ok());
        assert!(is_power, "slots must be a power of two, got {slots}");
        assert!(slot_bytes > 0, "a slot needs at least one byte");
        assert!(fits, "slot_bytes must fit u32, got {slot_bytes}");
        Self { slots, slot_bytes: slot_bytes.next_multiple_of(align_of::<SlotHead>()) }
    }

    /// Bytes of memory that the ring takes; a multiple of 64.
    pub fn bytes(&self) -> usize {
        size_of::<Control>() + self.slots as usize * (size_of::<SlotHead>() + self.slot_bytes)
    }

    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }
}

/// Both ends of a new ring between threads of this process.
///
/// Each end belongs to one thread at a time, and a slot to one end at a time:
///
/// ```compile_fail,E0499
/// let (mut producer, _) = bonfire_sys::ring::pair(bonfire_sys::ring::RingLayout::new(4, 64))?;
/// let (one, two) = (producer.free_slot(), producer.free_slot());
/// drop((one, two));
/// # Ok::<(), bonfire_sys::RegionError>(())
/// ```
///
/// There is no second end over the same memory:
///
/// ```compile_fail,E0599
/// let (producer, _) = bonfire_sys::ring::pair(bonfire_sys::ring::RingLayout::new(4, 64))?;
/// let second = producer.clone();
/// # Ok::<(), bonfire_sys::RegionError>(())
/// ```
pub fn pair(layout: RingLayout) -> Result<(Producer, Consumer), RegionError> {
    let region = Arc::new(Region::anonymous(layout.bytes())?);
    let producer = Producer::claim(Ring::new(Arc::clone(&region), layout));
    let producer = producer.expect("the region is new, so nothing is claimed");
    Ok((producer, Consumer::new(Ring::new(region, layout))))
}

/// Both ends share this view of the ring, which takes all of its region.
#[derive(Debug)]
struct Ring {
    /// The region's first byte. It is read for every frame, so it lies here and not behind the `Arc`.
    base: NonNull<u8>,
    layout: RingLayout,
    region: Arc<Region>,
}

// SAFETY: `base` is the first byte of `region`, which may be used from any thread and lives as long.
unsafe impl Send for Ring {}

impl Ring {
    fn new(region: Arc<Region>, layout: RingLayout) -> Self {
        let (given, needed) = (region.len(), layout.bytes());
        assert_eq!(given, needed, "the region holds the ring and nothing else");
        Self { base: region.base(), layout, region }
    }

    fn control(&self) -> &Control {
        // SAFETY: aligned, because a region starts on a page; inside the mapping of `layout.bytes()`; and Control is
        // made of atomics, for which zero bytes are valid and shared mutation is allowed.
        unsafe { self.base.cast::<Control>().as_ref() }
    }

    fn slot(&self, count: u32) -> NonNull<u8> {
        let index = (count & (self.layout.slots - 1)) as usize;
        let stride = size_of::<SlotHead>() + self.layout.slot_bytes;
        let offset = size_of::<Control>() + index * stride;
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

#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    published: u32,
    /// What `released` was when it was last read. The counter belongs to the consumer's core; it is
    /// only asked again when by this number all slots are taken.
    released: u32,
}

impl Producer {
    /// The producing end of a ring whose [`Consumer::shared`] another process made and described.
    ///
    /// ```compile_fail,E0133
    /// use bonfire_sys::ring::{Producer, RingLayout};
    /// // The file may be anything, and its other users may do anything to it.
    /// let file = std::fs::File::open("/proc/self/exe").unwrap().into();
    /// let _ = Producer::open(file, RingLayout::new(4, 64));
    /// ```
    ///
    /// # Errors
    /// If the ring cannot be mapped, or has a producer.
    ///
    /// # Safety
    /// The descriptor is that of a [`Consumer`] with this layout, and every other holder of it
    /// keeps to the contract of [`Consumer::descriptor`].
    pub unsafe fn open(file: OwnedFd, layout: RingLayout) -> Result<Self, OpenError> {
        // SAFETY: promised by the caller.
        let region = unsafe { Region::open_sized(&file, layout.bytes()) }?;
        Self::claim(Ring::new(Arc::new(region), layout))
    }

    fn claim(ring: Ring) -> Result<Self, OpenError> {
        let claimed = &ring.control().producer_claimed;
        let claimed = claimed.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        claimed.map_err(|_| OpenError::Claimed)?;
        Ok(Self { ring, published: 0, released: 0 })
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
        let (bytes, slot_bytes) = (self.ring.bytes(self.published), self.ring.layout.slot_bytes);
        // SAFETY: valid: part of the slot's head, inside the mapping. Aliasing: frame number `published` is not yet
        // published, and the frame that used this slot before was released (the acquire in the `count` that said so
        // orders the consumer's reads before our writes), so the consumer does not touch it; there is one producer,
        // borrowed mutably for as long as the reference lives.
        let label = unsafe { &mut *label };
        // SAFETY: valid: inside the mapping for slot_bytes. Aliasing: as for the label, from which the
        // bytes are disjoint.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes.as_ptr(), slot_bytes) };
        Some(Slot { label, bytes })
    }

    /// Whether all slots were taken when the consumer's counter was last read.
    fn is_full(&self) -> bool {
        self.published.wrapping_sub(self.released) % Doorbell::COUNTS >= self.ring.layout.slots
    }

    /// Hands the slot last returned by [`free_slot`](Self::free_slot) to the consumer as a frame of its label and its
    /// first `frame_bytes` bytes. After this the consumer sees them, and this side must ask for a slot again.
    ///
    /// # Panics
    /// If no slot is free, or the frame is larger than a slot.
    pub fn publish(&mut self, frame_bytes: usize) {
        let most = self.ring.layout.slot_bytes;
        assert!(frame_bytes <= most, "frame of {frame_bytes} bytes in a slot of {most}");
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

#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    released: u32,
}

impl Consumer {
    /// The consuming end of a new ring whose producer will be in another process, which needs its
    /// [`descriptor`](Self::descriptor).
    pub fn shared(layout: RingLayout) -> Result<Self, RegionError> {
        let region = Arc::new(Region::shared(layout.bytes())?);
        Ok(Self::new(Ring::new(region, layout)))
    }

    /// `ring` has no other consumer.
    fn new(ring: Ring) -> Self {
        Self { ring, released: 0 }
    }

    /// What the producer's process needs for [`Producer::open`]; `None` in a [`pair`].
    ///
    /// # Safety
    /// Every process that gets the descriptor uses it for [`Producer::open`] of this crate, with the
    /// layout of this ring, and for nothing else.
    pub unsafe fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: promised by the caller.
        unsafe { self.ring.region.descriptor() }
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
        // SAFETY: valid: part of the slot's head, inside the mapping. Aliasing: frame number `released` is published
        // (the acquire orders the producer's writes before our reads) and not released, so the producer does not
        // touch its slot; releasing it needs `&mut self`, which the returned borrow excludes.
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
        let published = &self.ring.control().published;
        published.sleep_past(self.released, slice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri runs a thousand times slower.
    const FRAMES: u32 = if cfg!(miri) { 70 } else { 10_000 };

    #[test]
    fn frames_arrive_in_order_and_unchanged_through_few_slots() {
        for slots in [1, 2, 4] {
            let (mut producer, mut consumer) = pair(RingLayout::new(slots, 100)).unwrap();
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
        let (mut producer, mut consumer) = pair(RingLayout::new(1, 8)).unwrap();
        producer.free_slot().unwrap().bytes[0] = 7;
        producer.publish(1);
        assert!(producer.free_slot().is_none());
        assert_eq!(consumer.front().unwrap().bytes, [7]);
        consumer.release();
        assert!(producer.free_slot().is_some());
    }

    /// The producing end, as another process has it: mapped again, at other addresses.
    fn producer_of(consumer: &Consumer, layout: RingLayout) -> Result<Producer, OpenError> {
        // SAFETY: it is used for the producer alone.
        let descriptor = unsafe { consumer.descriptor() }.unwrap();
        let file = descriptor.try_clone_to_owned().unwrap();
        // SAFETY: it is that of `consumer`; the tests that pass another layout are refused.
        unsafe { Producer::open(file, layout) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
    fn a_frame_passes_from_mapping_to_mapping() {
        let layout = RingLayout::new(2, 64);
        let mut consumer = Consumer::shared(layout).unwrap();
        let mut producer = producer_of(&consumer, layout).unwrap();
        producer.free_slot().unwrap().bytes[..2].copy_from_slice(&[3, 4]);
        producer.publish(2);
        assert_eq!(consumer.front().unwrap().bytes, [3, 4]);
        consumer.release();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory that processes share")]
    fn a_second_producer_or_another_layout_is_refused() {
        let layout = RingLayout::new(2, 64);
        let consumer = Consumer::shared(layout).unwrap();
        let other = producer_of(&consumer, RingLayout::new(4, 64));
        assert!(matches!(other, Err(OpenError::Region(_))), "{other:?}");
        let _first = producer_of(&consumer, layout).unwrap();
        let second = producer_of(&consumer, layout);
        assert!(matches!(second, Err(OpenError::Claimed)), "{second:?}");
    }

    #[test]
    #[should_panic(expected = "release without a frame")]
    fn releasing_nothing_is_a_bug() {
        let (_producer, mut consumer) = pair(RingLayout::new(2, 64)).unwrap();
        consumer.release();
    }
}
