//! The lines that rank 0 shows while it trains, in Distribuuuu's form.

use std::time::{Duration, Instant};

use crate::tally::Figures;

/// A duration of the latest step, and the mean of all steps so far.
#[derive(Debug, Clone, Copy, Default)]
struct Meter {
    latest: Duration,
    total: Duration,
    steps: u32,
}

#[derive(Debug)]
pub struct Meters {
    /// The first part of the line.
    prefix: String,
    /// The k of the second accuracy.
    k: usize,
    time: Meter,
    data: Meter,
    last: Instant,
    done: usize,
    left: usize,
}

impl Meter {
    fn update(&mut self, latest: Duration) {
        self.latest = latest;
        self.total += latest;
        self.steps += 1;
    }

    fn mean(&self) -> Duration {
        self.total.checked_div(self.steps).unwrap_or_default()
    }

    fn shown(&self) -> String {
        let (latest, mean) = (self.latest.as_secs_f64(), self.mean().as_secs_f64());
        format!("{latest:6.3} ({mean:6.3})")
    }
}

impl Meters {
    pub fn new(prefix: String, k: usize) -> Self {
        Self {
            prefix,
            k,
            time: Meter::default(),
            data: Meter::default(),
            last: Instant::now(),
            done: 0,
            left: 0,
        }
    }

    pub fn data_ready(&mut self) {
        self.data.update(self.last.elapsed());
    }

    /// Records a step, after which `left` follow.
    pub fn step(&mut self, left: usize) {
        (self.done, self.left) = (self.done + 1, left);
        self.time.update(self.last.elapsed());
        self.last = Instant::now();
    }

    /// Returns true if a line is due: every `interval` steps and after the last.
    pub fn is_due(&self, interval: usize) -> bool {
        self.done.is_multiple_of(interval) || self.left == 0
    }

    /// Formats the line, with the latest loss; `steps_after` follow in later epochs.
    pub fn line(&self, loss: f64, figures: Figures, steps_after: usize) -> String {
        let steps = self.done + self.left;
        let left = (self.left + steps_after) as f64;
        let eta = Duration::from_secs_f64(self.time.mean().as_secs_f64() * left);
        let Figures { loss: mean, top1, topk, .. } = figures;
        format!(
            "{}[{:>width$}/{}] | Time {} | Data {} | Loss {loss:7.4} ({mean:7.4}) | \
             Acc@1 {top1:6.2} | Acc@{} {topk:6.2} | ETA {}",
            self.prefix,
            self.done,
            steps,
            self.time.shown(),
            self.data.shown(),
            self.k,
            clock(eta),
            width = steps.to_string().len(),
        )
    }
}

/// Days, hours, minutes and seconds.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        days => format!("{days}d {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_every_so_often_and_at_the_end() {
        let mut meters = Meters::new(String::new(), 5);
        let mut due = Vec::new();
        for step in 1..=5 {
            meters.data_ready();
            meters.step(5 - step);
            if meters.is_due(2) {
                due.push(step);
            }
        }
        assert_eq!(due, [2, 4, 5]);
    }

    #[test]
    fn a_line_has_all_figures_and_the_time_left() {
        let mut meters = Meters::new("TRAIN [1]".to_owned(), 3);
        for seconds in [1, 3] {
            meters.time.update(Duration::from_secs(seconds));
            meters.data.update(Duration::from_millis(500));
            meters.done += 1;
        }
        meters.left = 18;
        let figures = Figures { loss: 2.5, top1: 12.5, topk: 50.0, samples: 64 };
        // 18 steps here and 30 later, of two seconds each.
        assert_eq!(
            meters.line(2.25, figures, 30),
            "TRAIN [1][ 2/20] | Time  3.000 ( 2.000) | Data  0.500 ( 0.500) | \
             Loss  2.2500 ( 2.5000) | Acc@1  12.50 | Acc@3  50.00 | ETA 00:01:36"
        );
    }

    #[test]
    fn long_times_are_in_days() {
        assert_eq!(clock(Duration::from_secs(59)), "00:00:59");
        assert_eq!(clock(Duration::from_secs(90_061)), "1d 01:01:01");
    }
}
