//! The operations of a model, and their share of a device's peak.
//!
//! Model FLOPs utilisation as the paper on PaLM defines it, <https://arxiv.org/abs/2204.02311>, appendix B: the
//! model's operations at the measured throughput, over the devices' peak. Recomputed activations do not count.

use serde::{Deserialize, Serialize};

/// Floating-point operations of a model: of a forward and a backward pass over one sample, and those that the device
/// of a rank can do in a second, if that is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ModelFlops {
    per_sample: f64,
    peak_per_second: Option<f64>,
}

impl ModelFlops {
    /// Sets the operations of a forward and a backward pass over one sample; where layers are divided among ranks,
    /// those of all of them.
    ///
    /// # Panics
    /// If the number is not finite and above 0.
    #[track_caller]
    pub fn per_sample(flops: f64) -> Self {
        Self { per_sample: checked(flops), peak_per_second: None }
    }

    /// Sets the peak FLOP/s of each rank's device, in the type that the model computes in.
    ///
    /// # Panics
    /// If the number is not finite and above 0.
    #[must_use]
    #[track_caller]
    pub fn with_peak(mut self, flops_per_second: f64) -> Self {
        self.peak_per_second = Some(checked(flops_per_second));
        self
    }

    /// Returns the FLOP/s of a rank with this throughput.
    pub fn achieved(&self, samples_per_second: f64) -> f64 {
        self.per_sample * samples_per_second
    }

    /// Returns the part of the peak that is used, from 0 to 1, if the peak is known.
    pub fn utilisation(&self, samples_per_second: f64) -> Option<f64> {
        Some(self.achieved(samples_per_second) / self.peak_per_second?)
    }

    /// Names and values for the results of a rank with this throughput.
    pub(crate) fn rows(&self, samples_per_second: f64) -> Vec<(String, String)> {
        let achieved = show(self.achieved(samples_per_second));
        let mut rows = vec![("model FLOP/s per rank".to_owned(), achieved)];
        let of = self.utilisation(samples_per_second);
        rows.extend(of.zip(self.peak_per_second).map(|(part, peak)| {
            let value = format!("{:.1} % of {}", 100.0 * part, show(peak));
            ("model FLOPs utilisation".to_owned(), value)
        }));
        rows
    }
}

#[track_caller]
fn checked(number: f64) -> f64 {
    let is_valid = number.is_finite() && number > 0.0;
    assert!(is_valid, "{number} FLOPs are given; they must be a number above 0");
    number
}

/// FLOP/s with the prefix that leaves up to three digits before the point.
fn show(flops_per_second: f64) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    let mut value = flops_per_second;
    let mut place = 0;
    // What is rounded up to 1000.0 has the next prefix.
    while value >= 999.95 && place + 1 < prefixes.len() {
        value /= 1000.0;
        place += 1;
    }
    format!("{value:.1} {}FLOP/s", prefixes[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_what_was_done_over_the_peak_and_needs_one() {
        let model = ModelFlops::per_sample(6e9);
        let [(name, achieved)] = &model.rows(50e3)[..] else { panic!("there is no peak") };
        assert_eq!((name.as_str(), achieved.as_str()), ("model FLOP/s per rank", "300.0 TFLOP/s"));
        assert_eq!(model.utilisation(50e3), None);
        let rows = model.with_peak(1e15).rows(50e3);
        assert_eq!(rows[0].1, "300.0 TFLOP/s");
        assert_eq!(rows[1].0, "model FLOPs utilisation");
        assert_eq!(rows[1].1, "30.0 % of 1.0 PFLOP/s");
    }

    #[test]
    fn flops_have_the_prefix_that_tells_something() {
        for (flops, shown) in [
            (0.0, "0.0 FLOP/s"),
            (31.24e9, "31.2 GFLOP/s"),
            (999_960.0, "1.0 MFLOP/s"),
            (2e18, "2000.0 PFLOP/s"),
        ] {
            assert_eq!(show(flops), shown);
        }
    }
}
