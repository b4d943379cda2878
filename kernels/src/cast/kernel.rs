//! The conversions in CubeCL.

use cubecl::prelude::*;

use super::Half;
use crate::types::Tail;

/// To nearest even: whole vectors in steps of the grid, then the tail, one element per unit.
#[cube(launch_unchecked)]
pub(crate) fn cast_nearest<S: Float, T: Float, N: Size>(
    source: &[Vector<S, N>],
    target: &mut [Vector<T, N>],
    vectors: u32,
    tail: u32,
    #[comptime] tail_by: Tail,
    #[define(S, T)] _elements: [ElemType; 2],
) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut index = ABSOLUTE_POS;
    while index < vectors as usize {
        nearest_at::<S, T, N, N>(source, target, index);
        index += stride;
    }
    if comptime!(tail_by == Tail::Scalars) {
        nearest_tail::<S, T, N>(source, target, vectors, tail);
    }
}

#[cube]
fn nearest_tail<S: Float, T: Float, N: Size>(
    source: &[Vector<S, N>],
    target: &mut [Vector<T, N>],
    vectors: u32,
    tail: u32,
) {
    if ABSOLUTE_POS < tail as usize {
        let index = vectors as usize * N::value() + ABSOLUTE_POS;
        nearest_at::<S, T, N, Const<1>>(source, target, index);
    }
}

#[cube]
fn nearest_at<S: Float, T: Float, N: Size, M: Size>(
    source: &[Vector<S, N>],
    target: &mut [Vector<T, N>],
    index: usize,
) {
    let source = source.with_vector_size::<M>();
    let target = target.with_vector_size_mut::<M>();
    target[index] = Vector::cast_from(source[index]);
}

/// Stochastically, to elements `T` of 16 bits.
#[cube(launch_unchecked)]
pub(crate) fn cast_stochastic<T: Float, N: Size>(
    source: &[Vector<f32, N>],
    target: &mut [Vector<T, N>],
    vectors: u32,
    tail: u32,
    seed_low: u32,
    seed_high: u32,
    first_low: u32,
    first_high: u32,
    #[comptime] half: Half,
    #[comptime] tail_by: Tail,
    #[define(T)] _element: ElemType,
) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut index = ABSOLUTE_POS;
    while index < vectors as usize {
        let mut lanes = Vector::<u16, N>::empty();
        #[unroll]
        for lane in 0..N::value() {
            let element = (index * N::value() + lane) as u32;
            let random = random_bits(seed_low, seed_high, first_low, first_high, element);
            let rounded = round(source[index].extract(lane), random, half);
            lanes.insert(lane, u16::cast_from(rounded));
        }
        target[index] = Vector::<T, N>::reinterpret(lanes);
        index += stride;
    }
    if comptime!(tail_by == Tail::Scalars) {
        let source = source.with_vector_size::<Const<1>>();
        let target = target.with_vector_size_mut::<Const<1>>();
        if ABSOLUTE_POS < tail as usize {
            let index = vectors as usize * N::value() + ABSOLUTE_POS;
            let element = index as u32;
            let random = random_bits(seed_low, seed_high, first_low, first_high, element);
            let rounded = round(source[index].extract(0usize), random, half);
            let bits = Vector::<u16, Const<1>>::cast_from(rounded);
            target[index] = Vector::<T, Const<1>>::reinterpret(bits);
        }
    }
}

/// Stochastically, two results in each word, the first in its lower half: for adapters that have no
/// 16-bit types.
#[cube(launch_unchecked)]
pub(crate) fn cast_stochastic_words(
    source: &[f32],
    target: &mut [u32],
    elems: u32,
    seed_low: u32,
    seed_high: u32,
    first_low: u32,
    first_high: u32,
    #[comptime] half: Half,
) {
    let stride = CUBE_COUNT as u32 * CUBE_DIM;
    let mut word = ABSOLUTE_POS as u32;
    while 2 * word < elems {
        let lower = 2 * word;
        let random = random_bits(seed_low, seed_high, first_low, first_high, lower);
        let mut bits = round(source[lower as usize], random, half);
        let upper = lower + 1;
        if upper < elems {
            let random = random_bits(seed_low, seed_high, first_low, first_high, upper);
            bits |= round(source[upper as usize], random, half) << 16;
        }
        target[word as usize] = bits;
        word += stride;
    }
}

/// [`Random::bits`](super::Random::bits), with numbers of 32 bits.
#[cube]
fn random_bits(seed_low: u32, seed_high: u32, first_low: u32, first_high: u32, index: u32) -> u32 {
    let counter_low = first_low + index;
    let carry = select(counter_low < first_low, 1u32, 0u32);
    let counter_high = first_high + carry;
    mix(mix(counter_low ^ seed_low) ^ counter_high ^ seed_high)
}

#[cube]
fn mix(bits: u32) -> u32 {
    let bits = (bits ^ (bits >> 16)) * 0x85eb_ca6bu32;
    let bits = (bits ^ (bits >> 13)) * 0xc2b2_ae35u32;
    bits ^ (bits >> 16)
}

/// The bits of the 16-bit float, as in `round_to_bf16` and `round_to_f16` of the reference.
#[cube]
fn round(value: f32, random: u32, #[comptime] half: Half) -> u32 {
    let bits = u32::reinterpret(value);
    match comptime!(half) {
        Half::Bf16 => round_to_bf16(bits, random),
        Half::F16 => round_to_f16(bits, random),
    }
}

#[cube]
fn round_to_bf16(value: u32, random: u32) -> u32 {
    let rounded = (value + (random >> 16)) >> 16;
    select(
        (value & 0x7fff_ffffu32) > 0x7f80_0000u32,
        0x7fffu32,
        rounded,
    )
}

#[cube]
fn round_to_f16(value: u32, random: u32) -> u32 {
    let magnitude = value & 0x7fff_ffffu32;
    let mut rounded = 0x7c00u32;
    if magnitude > 0x7f80_0000u32 {
        rounded = 0x7fffu32;
    } else if magnitude < 0x3880_0000u32 {
        let mantissa = (magnitude & 0x007f_ffffu32) | 0x0080_0000u32;
        let shift = 126u32 - (magnitude >> 23);
        rounded = 0u32;
        if shift <= 31u32 {
            rounded = (mantissa + (random >> (32u32 - shift))) >> shift;
        }
    } else if magnitude < 0x4780_0000u32 {
        rounded = (magnitude - 0x3800_0000u32 + (random >> 19)) >> 13;
    }
    ((value >> 16) & 0x8000u32) | rounded
}
