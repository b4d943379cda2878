//! Conversion between floats, to nearest even or stochastically.
//!
//! Stochastic rounding takes one of the two neighbours at random, the nearer one more often, so
//! that the result is right on average: small updates of a 16-bit parameter are not always lost. Its
//! random numbers are a function of a seed and the index of the element in [`Random`]: the same on
//! every device and for every division of the work.
//!
//! Bytes moved per element: both sizes; memory is the bound, random numbers included (about 25
//! integer operations per element).

use half::{bf16, f16};

use crate::element::{Arithmetic, Element, FloatArithmetic, FloatElement};
use crate::reduce::Width;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod kernel;
#[cfg(test)]
mod tests;

/// A conversion that there is a kernel for. Others go through f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conversion {
    /// From f32, to nearest even.
    Narrow(FloatElement),
    /// To f32; exact from 16 bits, to nearest even from f64.
    Widen(FloatElement),
    /// From f32 to one of its neighbours.
    Stochastic(Half),
}

/// The 16-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    /// 11 significant bits.
    F16,
    /// The exponent of f32.
    Bf16,
}

impl From<Half> for FloatElement {
    fn from(half: Half) -> Self {
        match half {
            Half::F16 => Self::F16,
            Half::Bf16 => Self::Bf16,
        }
    }
}

impl Conversion {
    /// What is read.
    #[must_use]
    pub fn source(self) -> FloatElement {
        match self {
            Self::Narrow(_) | Self::Stochastic(_) => FloatElement::F32,
            Self::Widen(source) => source,
        }
    }

    /// What is written.
    #[must_use]
    pub fn target(self) -> FloatElement {
        match self {
            Self::Narrow(target) => target,
            Self::Widen(_) => FloatElement::F32,
            Self::Stochastic(target) => target.into(),
        }
    }
}

/// One variant of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cast {
    /// From what, to what, and how it is rounded.
    pub conversion: Conversion,
    /// How much is read at once: 16 bytes of the larger type, or one element.
    pub width: Width,
}

impl Cast {
    /// Elements read and written at once.
    #[must_use]
    pub fn elems(self) -> usize {
        let source = Element::from(self.conversion.source());
        let target = Element::from(self.conversion.target());
        self.width.elems(source).min(self.width.elems(target))
    }
}

/// Where the random numbers of stochastic rounding come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Random {
    /// Another seed, other numbers: take the step, for example.
    pub seed: u64,
    /// The number of the first element, so that parts of a buffer can be done in several launches.
    pub first: u64,
}

impl Random {
    /// The 32 random bits of the element `index` places behind the first: the counter and the seed
    /// through the finalizer of MurmurHash3, once for each half.
    #[must_use]
    pub fn bits(self, index: u32) -> u32 {
        let counter = self.first.wrapping_add(u64::from(index));
        let low = mix(counter as u32 ^ self.seed as u32);
        mix(low ^ (counter >> 32) as u32 ^ (self.seed >> 32) as u32)
    }
}

/// The finalizer of MurmurHash3: every bit of the input changes half of the output's.
fn mix(mut bits: u32) -> u32 {
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
    bits ^ bits >> 16
}

/// What [`Conversion::Narrow`] and [`Conversion::Widen`] do, on the CPU.
///
/// # Panics
/// If the buffers differ in length.
pub fn reference<S, T>(source: &[S], target: &mut [T])
where
    S: FloatArithmetic + Into<f64>,
    T: FloatArithmetic + FromF64,
{
    assert_eq!(source.len(), target.len(), "source and target differ");
    for (target, &source) in target.iter_mut().zip(source) {
        *target = T::from_f64(source.into());
    }
}

/// The nearest element to an f64 that an f32 or a 16-bit float can be.
pub trait FromF64 {
    /// To nearest even, in one rounding where the value is an f32.
    fn from_f64(value: f64) -> Self;
}

impl FromF64 for f32 {
    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl FromF64 for f64 {
    fn from_f64(value: f64) -> Self {
        value
    }
}

impl FromF64 for f16 {
    fn from_f64(value: f64) -> Self {
        Self::narrow(value as f32)
    }
}

impl FromF64 for bf16 {
    fn from_f64(value: f64) -> Self {
        Self::narrow(value as f32)
    }
}

/// What [`Conversion::Stochastic`] does, on the CPU: the bits of the 16-bit floats.
///
/// # Panics
/// If the buffers differ in length.
pub fn reference_stochastic(half: Half, source: &[f32], target: &mut [u16], random: Random) {
    assert_eq!(source.len(), target.len(), "source and target differ");
    for (index, (target, source)) in target.iter_mut().zip(source).enumerate() {
        let bits = random.bits(index as u32);
        *target = match half {
            Half::Bf16 => round_to_bf16(source.to_bits(), bits),
            Half::F16 => round_to_f16(source.to_bits(), bits),
        };
    }
}

/// The bits that are dropped decide, together with as many random ones, about a carry.
fn round_to_bf16(value: u32, random: u32) -> u16 {
    if value & 0x7fff_ffff > 0x7f80_0000 {
        return 0x7fff;
    }
    // Infinity stays: below its last 16 bits there is nothing to carry into.
    (value.wrapping_add(random >> 16) >> 16) as u16
}

/// The same, with the exponents of f16: what is too large becomes infinite, what is small keeps as
/// many bits as a multiple of the smallest f16 has.
fn round_to_f16(value: u32, random: u32) -> u16 {
    const INFINITE: u32 = 0x7c00;
    let sign = value >> 16 & 0x8000;
    let magnitude = value & 0x7fff_ffff;
    let rounded = if magnitude > 0x7f80_0000 {
        0x7fff
    } else if magnitude >= 0x4780_0000 {
        // From 2^16 on.
        INFINITE
    } else if magnitude >= 0x3880_0000 {
        // From 2^-14 on: another bias of the exponent, 13 bits less.
        (magnitude - 0x3800_0000 + (random >> 19)) >> 13
    } else {
        // In units of 2^-24. What is below 2^-31 units is as good as zero.
        let mantissa = magnitude & 0x007f_ffff | 0x0080_0000;
        let shift = 126 - (magnitude >> 23);
        if shift > 31 {
            0
        } else {
            (mantissa + (random >> (32 - shift))) >> shift
        }
    };
    (sign | rounded) as u16
}
