//! A worker's message of its differences, and the mean of all workers.

use bonfire_collective::{CollectiveError, ProcessGroup, ReduceOp};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::OuterGradients;

/// Parameters that share a scale.
const BLOCK: usize = 256;

/// Differences in an exchange: those of one worker, and afterwards their mean.
#[derive(Debug)]
pub(crate) enum Message {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    Int8 {
        lengths: Vec<usize>,
        /// This worker's, as [`quantized`], one parameter after the other: no block has values of two.
        own: Vec<u8>,
        mean: Vec<f32>,
    },
}

impl Message {
    /// Makes a message of parameters with these lengths, one after the other.
    pub(crate) fn new(differences: Vec<f32>, lengths: Vec<usize>, kind: OuterGradients) -> Self {
        match kind {
            OuterGradients::F32 => Self::F32(differences),
            OuterGradients::Bf16 => {
                let mut rounded = vec![bf16::ZERO; differences.len()];
                rounded.convert_from_f32_slice(&differences);
                Self::Bf16(rounded)
            }
            OuterGradients::Int8 => {
                let mut rest = &differences[..];
                let mut own = Vec::new();
                for len in &lengths {
                    let (values, after) = rest.split_at(*len);
                    own.extend(quantized(values));
                    rest = after;
                }
                Self::Int8 { lengths, own, mean: differences }
            }
        }
    }

    /// Averages over the workers: the same bits on all of them.
    pub(crate) fn average(&mut self, group: &ProcessGroup) -> Result<(), CollectiveError> {
        match self {
            Self::F32(values) => group.all_reduce(values, ReduceOp::Mean),
            Self::Bf16(values) => group.all_reduce(values, ReduceOp::Mean),
            Self::Int8 { lengths, own, mean } => {
                mean.fill(0.0);
                for bytes in group.all_gather_bytes(own)? {
                    let (mut sums, mut bytes) = (&mut mean[..], &bytes[..]);
                    for len in lengths.iter() {
                        let (values, after) = sums.split_at_mut(*len);
                        bytes = add_quantized(values, bytes);
                        sums = after;
                    }
                }
                let workers = group.world_size().get() as f32;
                mean.iter_mut().for_each(|value| *value /= workers);
                Ok(())
            }
        }
    }

    pub(crate) fn into_values(self) -> Vec<f32> {
        match self {
            Self::F32(values) | Self::Int8 { mean: values, .. } => values,
            Self::Bf16(values) => values.to_f32_vec(),
        }
    }
}

/// For each block its scale, as the four bytes of an f32, and the values as integers of one byte.
fn quantized(values: &[f32]) -> Vec<u8> {
    let blocks = values.len().div_ceil(BLOCK);
    let mut bytes = Vec::with_capacity(values.len() + 4 * blocks);
    for block in values.chunks(BLOCK) {
        // A value that is not finite makes the scale so, and with it the complete block.
        let largest = block.iter().fold(0.0_f32, |largest, value| match value.abs() {
            value if value > largest || value.is_nan() => value,
            _ => largest,
        });
        let scale = largest / 127.0;
        bytes.extend_from_slice(&scale.to_ne_bytes());
        let integer = |value: &f32| match scale {
            0.0 => 0_i8,
            scale => (value / scale).round_ties_even() as i8,
        };
        bytes.extend(block.iter().map(|value| integer(value).cast_unsigned()));
    }
    bytes
}

/// Adds a message of [`quantized`] with as many values, and returns the bytes behind it.
fn add_quantized<'a>(sums: &mut [f32], bytes: &'a [u8]) -> &'a [u8] {
    let mut rest = bytes;
    for block in sums.chunks_mut(BLOCK) {
        let (scale, after) = rest.split_first_chunk::<4>().expect("a scale before each block");
        let (integers, after) = after.split_at(block.len());
        let scale = f32::from_ne_bytes(*scale);
        for (sum, integer) in block.iter_mut().zip(integers) {
            *sum += scale * f32::from(integer.cast_signed());
        }
        rest = after;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(values: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; values.len()];
        add_quantized(&mut sums, &quantized(values));
        sums
    }

    #[test]
    fn integers_are_off_by_half_a_step_at_most() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() * i as f32).collect();
        for (found, block) in through(&values).chunks(BLOCK).zip(values.chunks(BLOCK)) {
            let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            for (found, value) in found.iter().zip(block) {
                assert!((found - value).abs() <= largest / 127.0 * 0.5001, "{found} for {value}");
            }
        }
        assert_eq!(through(&[0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(quantized(&values).len(), 1000 + 4 * 4);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let found = through(&[1.0, bad, 2.0]);
            assert!(found.iter().any(|value| !value.is_finite()), "{bad} is lost");
        }
        // A NaN behind larger values, too.
        assert!(through(&[f32::NAN, 1.0])[1].is_nan() && through(&[1e9, f32::NAN])[0].is_nan());
    }
}
