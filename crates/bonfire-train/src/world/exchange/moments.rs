//! Mean and variance of channels, merged from parts (Chan, Golub and LeVeque 1979).
//!
//! Pure arithmetic in f64. Merging in the order of the ranks gives every rank the same bits.

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moments {
    /// The number of values of each channel.
    pub(crate) count: f64,
    pub(crate) mean: Vec<f64>,
    /// Sums of squared deviations from the mean.
    pub(crate) squares: Vec<f64>,
}

impl Moments {
    pub(crate) fn none(channels: usize) -> Self {
        Self { count: 0.0, mean: vec![0.0; channels], squares: vec![0.0; channels] }
    }

    /// Adds the values of `other`, which has the same channels. Parts without values change nothing, whatever their
    /// content.
    pub(crate) fn merge(&mut self, other: &Self) {
        assert_eq!(self.mean.len(), other.mean.len(), "the same channels");
        assert_eq!(self.squares.len(), other.squares.len(), "the same channels");
        if other.count <= 0.0 {
            return;
        }
        if self.count <= 0.0 {
            self.clone_from(other);
            return;
        }
        let total = self.count + other.count;
        for channel in 0..self.mean.len() {
            let apart = other.mean[channel] - self.mean[channel];
            self.mean[channel] += apart * (other.count / total);
            self.squares[channel] +=
                other.squares[channel] + apart * apart * (self.count * other.count / total);
        }
        self.count = total;
    }

    /// The biased variance of each channel; 0 without values.
    pub(crate) fn variance(&self) -> impl Iterator<Item = f64> {
        let divisor = self.count.max(1.0);
        self.squares.iter().map(move |squares| squares / divisor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By the definition, in two passes.
    fn defined(values: &[f64]) -> Moments {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count.max(1.0);
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum();
        Moments { count, mean: vec![mean], squares: vec![squares] }
    }

    #[test]
    fn parts_without_values_change_nothing_even_if_they_hold_nonsense() {
        let some = defined(&[1.0, 2.0, 6.0]);
        let nonsense = Moments { count: 0.0, mean: vec![f64::NAN], squares: vec![f64::INFINITY] };
        let mut merged = Moments::none(1);
        merged.merge(&nonsense);
        assert_eq!(merged, Moments::none(1));
        merged.merge(&some);
        merged.merge(&nonsense);
        assert_eq!(merged, some);
        assert_eq!(merged.variance().collect::<Vec<_>>(), [14.0 / 3.0]);
        assert_eq!(Moments::none(1).variance().collect::<Vec<_>>(), [0.0]);
    }

    #[test]
    #[should_panic(expected = "the same channels")]
    fn other_channels_are_a_mistake() {
        Moments::none(1).merge(&Moments::none(2));
    }

    proptest! {
        /// However values are divided, the parts merge into the moments of all of them. The mean is
        /// far from zero, where the textbook's sum of squares would lose everything.
        #[test]
        fn parts_merge_into_the_whole(
            parts in prop::collection::vec(prop::collection::vec(-1.0_f64..1.0, 0..20), 1..6),
        ) {
            const FAR: f64 = 1e6;
            let parts: Vec<Vec<f64>> = parts
                .into_iter()
                .map(|part| part.into_iter().map(|value| value + FAR).collect())
                .collect();
            let whole = defined(&parts.concat());
            let mut merged = Moments::none(1);
            for part in &parts {
                merged.merge(&defined(part));
            }
            prop_assert_eq!(merged.count, whole.count);
            // Each of the additions of a value near FAR rounds by at most u FAR.
            let rounding = (whole.count + 10.0) * f64::EPSILON * FAR;
            if whole.count > 0.0 {
                prop_assert!((merged.mean[0] - whole.mean[0]).abs() <= rounding);
                // Deviations are at most 2, and a mean that is off by `rounding` moves each.
                let allowed = whole.count * 8.0 * rounding;
                prop_assert!((merged.squares[0] - whole.squares[0]).abs() <= allowed);
            }
        }
    }
}
