//! What repeated measurements say, and how surely.

use std::fmt;

/// The median of measurements with an interval that holds the true median in 95 of 100 cases, whatever
/// the measurements' distribution: between two order statistics, by the sign test (Conover, Practical
/// Nonparametric Statistics, 3.2, with the normal approximation).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value in the middle; of an even number the greater one.
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// Of at least one measurement, none of which is NaN.
    ///
    /// # Panics
    /// Without any.
    pub fn of(mut measurements: Vec<f64>) -> Self {
        assert!(!measurements.is_empty(), "no measurement has no median");
        measurements.sort_by(f64::total_cmp);
        let (count, last) = (measurements.len() as f64, measurements.len() - 1);
        let half_width = 0.98 * count.sqrt();
        let low = (count / 2.0 - half_width).floor().max(0.0) as usize;
        let high = ((count / 2.0 + half_width).ceil() as usize).min(last);
        Self {
            median: measurements[measurements.len() / 2],
            low: measurements[low],
            high: measurements[high],
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, low, high } = self;
        write!(f, "{median:.4} (95 %: {low:.4} to {high:.4})")
    }
}

#[cfg(test)]
mod tests {
    use chacha20::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn the_interval_holds_the_median_about_as_often_as_it_says() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for count in [15, 40, 101] {
            // Skewed, with the median 1.
            let mut measure = || 2.0_f64.powf(10.0 * (rng.random::<f64>() - 0.5));
            let holds = (0..2000).filter(|_| {
                let estimate = Estimate::of((0..count).map(|_| measure()).collect());
                estimate.low <= 1.0 && 1.0 <= estimate.high
            });
            let holds = holds.count();
            assert!((1870..1990).contains(&holds), "{holds} of 2000 with {count}");
        }
    }

    #[test]
    fn a_single_measurement_is_its_own_interval() {
        let estimate = Estimate::of(vec![3.0]);
        assert_eq!((estimate.low, estimate.median, estimate.high), (3.0, 3.0, 3.0));
    }
}
