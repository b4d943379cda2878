//! Who keeps the others waiting, found out before it is fatal.
//!
//! In a collective all ranks wait for the last one to come, so the rank that waits least is the one that is waited
//! for. Operations of two ranks do not count: in a pipeline each rank waits for its turn. Each rank adds up for how
//! long it waits and sends the sum with its heartbeats; rank 0 compares the sums over a window of time. No clocks of
//! different hosts are compared. A difference is time lost only as far as nothing else was done meanwhile: where
//! communication runs beside computation, it is the most that can be lost.
//!
//! Pure: the time is an argument, and each sum comes with the time in which it was made.

use std::fmt;
use std::time::{Duration, Instant};

use bonfire_plan::Rank;
use serde::{Deserialize, Serialize};

/// How long sums are compared over: many heartbeats, few enough that news is new.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// A rank is slow from this part of the time on that the others lose by it. Less comes and goes with
/// what else a machine does.
const LOST_SHARE_MIN: f64 = 0.1;
/// Time between two lines that say so.
const LOG_PERIOD: Duration = Duration::from_secs(60);
/// The part of the ranks that wait less than what counts as usual.
const USUAL_QUANTILE: f64 = 0.75;
/// Slow ranks that are named one by one.
const NAMED_MAX: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    /// The step that its program has begun, if it says so.
    pub(crate) step: Option<u64>,
    /// How long its operations have taken since they first waited for another rank, all together.
    pub(crate) waited: Duration,
    /// For how long it has been counting.
    pub(crate) alive: Duration,
}

/// Which ranks of a group keep the others waiting, and what that costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StragglerReport {
    /// For how long the ranks were watched.
    pub window: Duration,
    /// How long a step took, if the program says when it begins one; see
    /// [`ProcessGroup::progress`](crate::ProcessGroup::progress).
    pub step_time: Option<Duration>,
    /// The latest step at that time.
    pub step: Option<u64>,
    /// The slow ranks, the slowest first; none if all keep pace.
    pub stragglers: Vec<Straggler>,
    /// The part of the time that each rank spent in operations once it had begun to wait there, in rank order.
    pub waiting: Vec<f64>,
}

/// A slow rank and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// The number of the slow rank.
    pub rank: Rank,
    /// The part of the time that the others wait longer than this one: what it costs at most that this rank is slow.
    pub lost_share: f64,
}

impl StragglerReport {
    /// What a slow rank costs of every step, if the program says when it begins one.
    pub fn lost_per_step(&self, straggler: &Straggler) -> Option<Duration> {
        Some(self.step_time?.mul_f64(straggler.lost_share))
    }
}

impl fmt::Display for StragglerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stragglers.is_empty() {
            return write!(f, "no rank is slow");
        }
        for (index, straggler) in self.stragglers.iter().take(NAMED_MAX).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let Straggler { rank, lost_share } = straggler;
            write!(f, "{separator}rank {rank} is slow: the others wait for it ")?;
            match (self.lost_per_step(straggler), self.step_time) {
                (Some(lost), Some(step)) => {
                    let ms = |time: Duration| time.as_secs_f64() * 1e3;
                    write!(f, "{:.1} ms of each step of {:.1} ms", ms(lost), ms(step))?;
                }
                _ => write!(f, "{:.0} % of the time", lost_share * 100.0)?,
            }
        }
        if self.stragglers.len() > NAMED_MAX {
            write!(f, "; so are {} more ranks", self.stragglers.len() - NAMED_MAX)?;
        }
        match self.step {
            Some(step) => write!(f, " (up to step {step})"),
            None => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Stragglers {
    /// Of each rank, its first heartbeat in the window and its latest.
    ranks: Vec<Option<(Heartbeat, Heartbeat)>>,
    began: Instant,
    logged: Option<Instant>,
}

impl Stragglers {
    pub(crate) fn new(world_size: u32, now: Instant) -> Self {
        Self { ranks: vec![None; world_size as usize], began: now, logged: None }
    }

    pub(crate) fn receive_beat(&mut self, rank: Rank, heartbeat: Heartbeat) {
        let place = &mut self.ranks[rank.index()];
        match place {
            Some((first, latest)) => {
                // A program that counts steps has begun with the first of them.
                if first.step.is_none() && heartbeat.step.is_some() {
                    first.clone_from(&heartbeat);
                }
                *latest = heartbeat;
            }
            // It has not begun to count.
            None if heartbeat.alive.is_zero() => {}
            None => *place = Some((heartbeat.clone(), heartbeat)),
        }
    }

    /// The report at the end of a window, for which every rank must have reported twice.
    pub(crate) fn report(&mut self, now: Instant) -> Option<StragglerReport> {
        let window = now.saturating_duration_since(self.began);
        if window < WINDOW {
            return None;
        }
        self.began = now;
        let report = self.compare(window);
        for (first, latest) in self.ranks.iter_mut().flatten() {
            first.clone_from(latest);
        }
        report
    }

    /// Whether it is time to say so again.
    pub(crate) fn is_worth_a_line(&mut self, report: &StragglerReport, now: Instant) -> bool {
        let logged = self.logged.map(|logged| now.saturating_duration_since(logged));
        if report.stragglers.is_empty() || logged.is_some_and(|ago| ago < LOG_PERIOD) {
            return false;
        }
        self.logged = Some(now);
        true
    }

    fn compare(&self, window: Duration) -> Option<StragglerReport> {
        let ranks: Option<Vec<&(Heartbeat, Heartbeat)>> =
            self.ranks.iter().map(Option::as_ref).collect();
        let ranks = ranks?;
        let waiting: Option<Vec<f64>> = ranks.iter().map(|(one, two)| share(one, two)).collect();
        let waiting = waiting?;
        let mut sorted = waiting.clone();
        sorted.sort_by(f64::total_cmp);
        let usual = sorted[((sorted.len() - 1) as f64 * USUAL_QUANTILE).round() as usize];
        let mut stragglers: Vec<Straggler> = (0..)
            .map(Rank::new)
            .zip(&waiting)
            .map(|(rank, waiting)| Straggler { rank, lost_share: usual - waiting })
            .filter(|straggler| straggler.lost_share >= LOST_SHARE_MIN)
            .collect();
        stragglers.sort_by(|one, two| two.lost_share.total_cmp(&one.lost_share));
        let (first, latest) = ranks[0];
        Some(StragglerReport {
            window,
            step_time: step_time(first, latest),
            step: latest.step,
            stragglers,
            waiting,
        })
    }
}

/// The part of the time between two heartbeats that a rank waited; nothing if they are one.
fn share(first: &Heartbeat, latest: &Heartbeat) -> Option<f64> {
    let alive = latest.alive.checked_sub(first.alive)?;
    let waited = latest.waited.saturating_sub(first.waited);
    (!alive.is_zero()).then(|| (waited.as_secs_f64() / alive.as_secs_f64()).min(1.0))
}

fn step_time(first: &Heartbeat, latest: &Heartbeat) -> Option<Duration> {
    let steps = latest.step?.checked_sub(first.step?)?;
    let steps = u32::try_from(steps).ok().filter(|steps| *steps > 0)?;
    Some(latest.alive.saturating_sub(first.alive) / steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of steps of 100 ms, in each of which the ranks wait for so many milliseconds.
    fn report(waits_ms: &[u64]) -> StragglerReport {
        let start = Instant::now();
        let mut stragglers = Stragglers::new(waits_ms.len() as u32, start);
        for steps in [100, 150, 200] {
            for (rank, wait_ms) in (0..).map(Rank::new).zip(waits_ms) {
                let heartbeat = Heartbeat {
                    step: Some(steps),
                    waited: Duration::from_millis(wait_ms * steps),
                    // Clocks of ranks begin at different times.
                    alive: Duration::from_millis(100 * steps + 7_000 * u64::from(rank.get())),
                };
                stragglers.receive_beat(rank, heartbeat);
            }
            assert_eq!(stragglers.report(start + WINDOW / 2), None);
        }
        let report = stragglers.report(start + WINDOW).unwrap();
        assert_eq!(stragglers.report(start + WINDOW), None, "the next window begins");
        report
    }

    fn slow(waits_ms: &[u64]) -> Vec<u32> {
        let report = report(waits_ms);
        report.stragglers.iter().map(|straggler| straggler.rank.get()).collect()
    }

    #[test]
    fn the_rank_that_never_waits_is_slow_with_what_it_costs() {
        let report = report(&[22, 20, 1, 21]);
        assert_eq!(report.step_time, Some(Duration::from_millis(100)));
        assert_eq!(
            report.to_string(),
            "rank 2 is slow: the others wait for it 20.0 ms of each step of 100.0 ms (up to step 200)"
        );
    }

    #[test]
    fn equal_ranks_and_small_differences_are_none() {
        assert!(slow(&[5, 5, 5, 5]).is_empty());
        assert!(slow(&[12, 9, 4, 12]).is_empty());
        assert!(slow(&[7]).is_empty());
        // A root that waits for all others is not kept waiting by all others.
        assert!(slow(&[60, 3, 3, 3, 3]).is_empty());
    }

    #[test]
    fn several_slow_ranks_are_named_the_slowest_first() {
        assert_eq!(slow(&[40, 0]), [1]);
        assert_eq!(slow(&[40, 10, 40, 5, 40, 40]), [3, 1]);
        assert_eq!(slow(&[0, 0, 40, 40]), [0, 1]);
    }

    #[test]
    fn without_steps_the_share_is_reported() {
        let mut report = report(&[30, 5]);
        report.step_time = None;
        report.step = None;
        let text = "rank 1 is slow: the others wait for it 25 % of the time";
        assert_eq!(report.to_string(), text);
    }

    #[test]
    fn what_came_before_the_first_step_does_not_count() {
        let start = Instant::now();
        let mut stragglers = Stragglers::new(1, start);
        let beat = |step, alive_s| Heartbeat {
            step,
            waited: Duration::ZERO,
            alive: Duration::from_secs(alive_s),
        };
        for heartbeat in [Heartbeat::default(), beat(None, 1), beat(Some(0), 5), beat(Some(4), 9)] {
            stragglers.receive_beat(Rank::new(0), heartbeat);
        }
        let report = stragglers.report(start + WINDOW).unwrap();
        assert_eq!(report.step_time, Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_line_is_logged_at_most_once_a_minute() {
        let start = Instant::now();
        let mut stragglers = Stragglers::new(2, start);
        let slow = report(&[30, 5]);
        assert!(!stragglers.is_worth_a_line(&report(&[5, 5]), start));
        assert!(stragglers.is_worth_a_line(&slow, start));
        assert!(!stragglers.is_worth_a_line(&slow, start + LOG_PERIOD / 2));
        assert!(stragglers.is_worth_a_line(&slow, start + LOG_PERIOD));
    }
}
