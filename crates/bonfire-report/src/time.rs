//! The time of a training by activity, and the rank that delays the others.

use std::time::Duration;

use bonfire_plan::Rank;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A straggler works longer than the median rank by this ratio, and by `STRAGGLER_LOST_MIN`.
const STRAGGLER_RATIO_MIN: f64 = 1.05;
const STRAGGLER_LOST_MIN: Duration = Duration::from_millis(100);

/// The time of a training on one rank, by activity.
///
/// The parts do not overlap, and their sum is the total. In JSON they are seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSplit {
    /// Waiting for data, and copying it to the device.
    #[serde(with = "seconds")]
    pub data: Duration,
    /// Forward and backward, with all communication that hides behind them.
    #[serde(with = "seconds")]
    pub forward_backward: Duration,
    /// Waiting for communication that backward did not hide.
    #[serde(with = "seconds")]
    pub exposed_communication: Duration,
    /// Clipping gradients, and the optimizer's step.
    #[serde(with = "seconds")]
    pub optimizer: Duration,
    /// Passes over validation data, between training steps.
    #[serde(with = "seconds")]
    pub evaluation: Duration,
    /// Writing checkpoints, as far as the training waits.
    #[serde(with = "seconds")]
    pub checkpoint: Duration,
    /// The program's other work, such as start-up.
    #[serde(with = "seconds", default)]
    pub other: Duration,
}

/// A rank that the others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SlowRank {
    /// The rank that is behind the median.
    pub rank: Rank,
    /// Its work, as [`TimeSplit::work`] counts it.
    #[serde(with = "seconds")]
    pub work: Duration,
    /// The work of the median rank (of an even number, the faster of the two).
    #[serde(with = "seconds")]
    pub median: Duration,
}

impl TimeSplit {
    /// The number of parts of a split.
    pub const PARTS: usize = 7;

    /// Returns all of training itself: everything but evaluation and checkpoints.
    pub fn training(&self) -> Duration {
        self.work() + self.exposed_communication + self.other
    }

    /// Returns the time in which this rank worked, rather than waited.
    pub fn work(&self) -> Duration {
        self.data + self.forward_backward + self.optimizer
    }

    /// Returns the parts with their names.
    pub fn parts(&self) -> [(&'static str, Duration); Self::PARTS] {
        [
            ("data", self.data),
            ("forward+backward", self.forward_backward),
            ("exposed communication", self.exposed_communication),
            ("optimizer", self.optimizer),
            ("evaluation", self.evaluation),
            ("checkpoint", self.checkpoint),
            ("other", self.other),
        ]
    }

    /// Returns the time that was added since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, then) = (self.to_seconds(), earlier.to_seconds());
        Self::from_seconds(std::array::from_fn(|part| now[part] - then[part]))
    }

    /// Converts the parts to seconds, to send them.
    pub fn to_seconds(self) -> [f64; Self::PARTS] {
        self.parts().map(|(_, part)| part.as_secs_f64())
    }

    /// Converts seconds from another rank, whose values may be invalid.
    pub fn from_seconds(seconds: [f64; Self::PARTS]) -> Self {
        let valid = |part| Duration::try_from_secs_f64(part).unwrap_or_default();
        let mut parts = seconds.into_iter().map(valid);
        let mut next = || parts.next().expect("a part for each name");
        Self {
            data: next(),
            forward_backward: next(),
            exposed_communication: next(),
            optimizer: next(),
            evaluation: next(),
            checkpoint: next(),
            other: next(),
        }
    }
}

impl SlowRank {
    /// Finds the slowest of `ranks`, if its work is well behind the median; a fast rank's waiting counts as
    /// communication.
    pub fn among(ranks: &[TimeSplit]) -> Option<Self> {
        let mut work: Vec<(Duration, u32)> = ranks.iter().map(TimeSplit::work).zip(0..).collect();
        work.sort_unstable();
        let (slowest, rank) = *work.last()?;
        let (median, _) = work[(work.len() - 1) / 2];
        let behind = slowest.as_secs_f64() > STRAGGLER_RATIO_MIN * median.as_secs_f64();
        (behind && slowest - median >= STRAGGLER_LOST_MIN).then_some(Self {
            rank: Rank::new(rank),
            work: slowest,
            median,
        })
    }

    /// Returns the time that the others lost.
    pub fn lost(&self) -> Duration {
        self.work.saturating_sub(self.median)
    }
}

/// Durations as seconds. Invalid times become zero.
pub(crate) mod seconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(data_ms: u64, exposed_ms: u64) -> TimeSplit {
        TimeSplit {
            data: Duration::from_millis(data_ms),
            forward_backward: Duration::from_millis(1000),
            exposed_communication: Duration::from_millis(exposed_ms),
            ..TimeSplit::default()
        }
    }

    #[test]
    fn the_rank_with_the_most_work_is_the_straggler_and_waiting_is_no_work() {
        let ranks = [split(10, 900), split(20, 890), split(900, 0), split(0, 910)];
        let straggler = SlowRank::among(&ranks).unwrap();
        assert_eq!(straggler.rank, Rank::new(2));
        assert_eq!(straggler.lost(), Duration::from_millis(890));
    }

    #[test]
    fn equal_ranks_and_a_single_one_have_no_straggler() {
        assert_eq!(SlowRank::among(&[split(0, 0), split(50, 0)]), None);
        assert_eq!(SlowRank::among(&[split(3, 0)]), None);
        let [short, shorter] =
            [90, 1].map(|ms| TimeSplit { data: Duration::from_millis(ms), ..TimeSplit::default() });
        assert_eq!(SlowRank::among(&[short, shorter]), None);
        assert_eq!(SlowRank::among(&[]), None);
    }

    #[test]
    fn a_split_is_sent_and_nonsense_of_a_peer_counts_nothing() {
        let sent = split(250, 125);
        assert_eq!(TimeSplit::from_seconds(sent.to_seconds()), sent);
        assert_eq!(
            TimeSplit::from_seconds([f64::NAN, -1.0, f64::INFINITY, 0.0, 0.0, 0.0, 0.0]),
            TimeSplit::default()
        );
    }

    #[test]
    fn an_interval_is_the_difference_of_two_totals() {
        let interval = split(250, 125).since(&split(50, 25));
        assert_eq!(interval.data, Duration::from_millis(200));
        assert_eq!(interval.exposed_communication, Duration::from_millis(100));
        assert_eq!(interval.forward_backward, Duration::ZERO);
    }
}
