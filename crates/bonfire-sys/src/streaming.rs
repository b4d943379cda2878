//! Results that are written past the caches.
//!
//! A store to memory that is in no cache first reads the line that it changes, and pushes another one
//! out. A streaming (non-temporal) store does neither, so a result that is larger than the caches costs
//! half the traffic. What is read again soon is better off in a cache.

use std::ops::Range;

use bytemuck::NoUninit;

/// Has `fill` make one block after another, each of the elements `range` of the result, and writes it there in all of
/// `targets`, the bytes of equally many elements. Past the caches on x86-64, with ordinary stores elsewhere.
///
/// # Panics
/// If `block` is empty, or the targets differ in length.
#[inline(always)]
pub fn write<T: NoUninit>(
    targets: &mut [&mut [u8]],
    block: &mut [T],
    mut fill: impl FnMut(Range<usize>, &mut [T]),
) {
    let bytes = targets.first().map_or(0, |target| target.len());
    for target in &*targets {
        assert_eq!(target.len(), bytes, "targets differ in length");
    }
    let len = bytes / size_of::<T>();
    let _fence = Fence;
    for start in (0..len).step_by(block.len()) {
        let range = start..len.min(start + block.len());
        let block = &mut block[..range.len()];
        fill(range.clone(), block);
        let place = range.start * size_of::<T>()..range.end * size_of::<T>();
        for target in &mut *targets {
            copy(bytemuck::cast_slice(block), &mut target[place.clone()]);
        }
    }
}

/// Last-level cache of a machine that does not say what it has.
const CACHE_BYTES: usize = 32 << 20;

/// The part of the last-level cache from which on results go past it. One core gains nothing below 8 MiB
/// of 32, and a fifth from 16 MiB on, also where the result is read next; of two cores, each has less of
/// it (AMD EPYC with 32 MiB, 2026-11-24).
const CACHE_SHARE: usize = 4;

/// Bytes of results, of all cores together, from which on it pays to write them past the caches.
pub fn bytes_min() -> usize {
    last_level_cache_bytes().unwrap_or(CACHE_BYTES) / CACHE_SHARE
}

/// Bytes of the cache that is furthest from the first core, as the kernel has it; `None` where it does not say.
fn last_level_cache_bytes() -> Option<usize> {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let kib = std::fs::read_to_string(path).ok()?;
        kib.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    // The first and second level, and the third if there is one.
    (0..8).map_while(size).max().map(|kib| kib << 10)
}

/// Orders the streaming stores of this thread before whatever it does next, also after a panic.
struct Fence;

#[cfg(all(target_arch = "x86_64", not(miri)))]
impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: SSE, which every x86-64 processor has; it touches no memory.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

/// Copies without reading the lines of `to`. A [`Fence`] must come before anybody reads them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn copy(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_stream_si128};

    let (head, words, tail) = bytemuck::pod_align_to_mut::<u8, __m128i>(to);
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(size_of_val(words));
    head.copy_from_slice(first);
    let values = middle.chunks_exact(size_of::<__m128i>());
    for (word, bytes) in words.iter_mut().zip(values) {
        let value = bytemuck::pod_read_unaligned(bytes);
        // SAFETY: SSE2, which every x86-64 processor has; `word` is valid, aligned and borrowed
        // exclusively. `write` borrows it until the fence, and touches it once, so nothing accesses it
        // between this store and the fence of this thread.
        unsafe { _mm_stream_si128(word, value) };
    }
    tail.copy_from_slice(last);
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements before and after keep what they hold.
    #[test]
    fn every_element_is_written_to_all_targets_wherever_they_begin() {
        for len in [0, 1, 3, 8, 31, 100] {
            for at in 0..5 {
                let mut held = [[7_u32; 110]; 2];
                let [one, other] = &mut held;
                let mut targets: [&mut [u8]; 2] = [
                    bytemuck::cast_slice_mut(&mut one[at..at + len]),
                    bytemuck::cast_slice_mut(&mut other[2..2 + len]),
                ];
                write(&mut targets, &mut [0_u32; 8], |range, block| {
                    for (index, element) in range.zip(block) {
                        *element = index as u32 + 100;
                    }
                });
                for (held, at) in [(&held[0], at), (&held[1], 2)] {
                    for (place, element) in held.iter().enumerate() {
                        let inside = (at..at + len).contains(&place);
                        let expected = if inside { (place - at + 100) as u32 } else { 7 };
                        assert_eq!(*element, expected, "{place} of {len} elements at {at}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "targets differ in length")]
    fn targets_of_different_lengths_are_a_bug() {
        write(&mut [&mut [0; 4], &mut [0; 8]], &mut [0_u32], |_, _| ());
    }
}
