//! Heartbeats: each rank says from time to time that it runs, and how far it is.
//!
//! The thread that sends them does nothing else for long, so they stop only where the whole process
//! does not run: it is stopped, frozen or paused with its machine, or its host is out of reach. The
//! operating system closes no connection then, and on one host acknowledges for a stopped process.
//!
//! A rank beats to rank 0, which so knows of all, and to the next rank, so that rank 0 is heard as well: two messages
//! a second, however many ranks there are. A rank that misses a beat notifies all. Pure: the time is an argument.

use std::time::{Duration, Instant};

use bonfire_plan::Rank;

/// Time between two beats of a rank.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// A rank that was silent for this long is looked at more closely.
const QUIET: Duration = Duration::from_secs(3);
/// If the thread that listens did not run for so long, the silence is its own.
const OWN_GAP: Duration = Duration::from_secs(2);

/// When a rank beats, and whose beats it has received.
#[derive(Debug)]
pub(super) struct Pulse {
    me: Rank,
    world_size: u32,
    due: Instant,
    /// How long a rank may be silent; nothing for as long as it likes.
    silence_max: Option<Duration>,
    /// When each rank was heard last; nothing before the first time, for ranks come into a group at different times.
    heard: Vec<Option<Instant>>,
    /// From when on beats are expected of a rank that was never heard, if any are.
    awaited: Vec<Option<Instant>>,
    looked: Instant,
}

impl Pulse {
    pub(super) fn new(
        me: Rank,
        world_size: u32,
        silence_max: Option<Duration>,
        now: Instant,
    ) -> Self {
        Self {
            me,
            world_size,
            due: now,
            silence_max,
            heard: vec![None; world_size as usize],
            awaited: (0..world_size)
                .map(|peer| listens(me, peer, world_size).then_some(now))
                .collect(),
            looked: now,
        }
    }

    /// Whether it is time to beat; the next time is then a period later. Who expects no beats sends none.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if now < self.due || self.silence_max.is_none() {
            return false;
        }
        let next = self.due + PERIOD;
        // After a pause it does not make up for beats that nobody misses any more.
        self.due = if next > now { next } else { now + PERIOD };
        true
    }

    pub(super) fn is_listener(&self, peer: Rank) -> bool {
        listens(peer, self.me.get(), self.world_size)
    }

    pub(super) fn receive_beat(&mut self, peer: Rank, now: Instant) {
        self.heard[peer.index()] = Some(now);
        self.awaited[peer.index()] = None;
    }

    pub(super) fn is_quiet(&self, peer: Rank, now: Instant) -> bool {
        let heard = self.heard[peer.index()];
        heard.is_some_and(|heard| now.saturating_duration_since(heard) >= QUIET)
    }

    /// From now on nothing is expected of `peer`, until it is heard again.
    pub(super) fn forget(&mut self, peer: Rank) {
        self.heard[peer.index()] = None;
        self.awaited[peer.index()] = None;
    }

    /// A rank that was never heard is there, and may have its reasons: it has as long again.
    pub(super) fn excuse(&mut self, peer: Rank, now: Instant) {
        self.awaited[peer.index()] = Some(now);
    }

    /// The ranks that have been silent for too long, and for how long. To be called all the time: a
    /// gap between two calls is this process's own.
    pub(super) fn silent(&mut self, now: Instant) -> Vec<(Rank, Duration)> {
        let gap = now.saturating_duration_since(self.looked);
        self.looked = now;
        if gap >= OWN_GAP {
            let times = self.heard.iter_mut().chain(&mut self.awaited);
            times.flatten().for_each(|time| *time = now);
        }
        let Some(silence_max) = self.silence_max else {
            return Vec::new();
        };
        longer_than(silence_max, &self.heard, now)
    }

    /// The ranks that should beat, and have not for as long, ever: they may still be joining, or be stopped.
    pub(super) fn never_heard(&self, now: Instant) -> Vec<(Rank, Duration)> {
        let longer = |silence_max| longer_than(silence_max, &self.awaited, now);
        self.silence_max.map(longer).unwrap_or_default()
    }
}

/// Whether `listener` receives the beats of `peer`: rank 0 receives all, and each rank those of the one before it.
fn listens(listener: Rank, peer: u32, world_size: u32) -> bool {
    let next = (peer + 1) % world_size;
    listener.get() != peer && (listener == Rank::new(0) || listener.get() == next)
}

/// The ranks whose times lie so far back, and how far.
fn longer_than(
    silence_max: Duration,
    times: &[Option<Instant>],
    now: Instant,
) -> Vec<(Rank, Duration)> {
    let silence = |(rank, time): (u32, &Option<Instant>)| {
        let silence = now.saturating_duration_since((*time)?);
        (silence >= silence_max).then(|| (Rank::new(rank), silence))
    };
    (0..).zip(times).filter_map(silence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE_MAX: Duration = Duration::from_secs(15);

    fn pulse(me: u32, now: Instant) -> Pulse {
        Pulse::new(Rank::new(me), 4, Some(SILENCE_MAX), now)
    }

    /// Looks every 100 ms from `from` to `to`; the silent ranks at the end.
    fn look(pulse: &mut Pulse, start: Instant, (from, to): (f64, f64)) -> Vec<u32> {
        let mut silent = Vec::new();
        for look in 0..=((to - from) * 10.0) as u32 {
            let now = start + Duration::from_secs_f64(from) + Duration::from_millis(100) * look;
            silent = pulse.silent(now);
        }
        silent.into_iter().map(|(rank, _)| rank.get()).collect()
    }

    #[test]
    fn every_rank_is_heard_by_another_and_by_rank_0() {
        let now = Instant::now();
        let listeners = |me: u32| -> Vec<u32> {
            let pulse = pulse(me, now);
            (0..4).filter(|peer| pulse.is_listener(Rank::new(*peer))).collect()
        };
        assert_eq!(listeners(0), [1]);
        assert_eq!(listeners(1), [0, 2]);
        assert_eq!(listeners(3), [0]);
    }

    #[test]
    fn a_rank_that_was_heard_and_falls_silent_is_found() {
        let start = Instant::now();
        let mut pulse = pulse(0, start);
        pulse.receive_beat(Rank::new(2), start);
        pulse.receive_beat(Rank::new(3), start);
        assert!(look(&mut pulse, start, (0.0, 14.9)).is_empty());
        pulse.receive_beat(Rank::new(3), start + Duration::from_secs_f64(14.9));
        assert_eq!(look(&mut pulse, start, (15.0, 16.0)), [2]);
        pulse.forget(Rank::new(2));
        assert!(look(&mut pulse, start, (16.1, 17.0)).is_empty());
    }

    #[test]
    fn a_rank_that_should_beat_and_never_did_is_found_until_it_is_heard() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let ranks = |found: Vec<(Rank, Duration)>| -> Vec<u32> {
            found.into_iter().map(|(rank, _)| rank.get()).collect()
        };
        let mut first = pulse(0, start);
        assert!(first.never_heard(at(14)).is_empty());
        first.receive_beat(Rank::new(1), at(14));
        assert_eq!(ranks(first.never_heard(at(15))), [2, 3]);
        first.excuse(Rank::new(2), at(15));
        first.forget(Rank::new(3));
        assert!(first.never_heard(at(29)).is_empty());
        assert_eq!(ranks(first.never_heard(at(30))), [2]);
        // Only the rank before it is to be heard by rank 2.
        assert_eq!(ranks(pulse(2, start).never_heard(at(15))), [1]);
    }

    #[test]
    fn who_was_stopped_itself_blames_nobody() {
        let start = Instant::now();
        let mut pulse = pulse(0, start);
        pulse.receive_beat(Rank::new(1), start);
        assert!(look(&mut pulse, start, (0.0, 1.0)).is_empty());
        assert!(look(&mut pulse, start, (100.0, 114.9)).is_empty());
        assert_eq!(look(&mut pulse, start, (115.0, 116.0)), [1]);
    }

    #[test]
    fn beats_come_once_a_period_and_are_not_made_up_for() {
        let start = Instant::now();
        let mut pulse = pulse(1, start);
        let mut beats = |from: u32, to: u32| {
            let at = |tenth: u32| start + Duration::from_millis(100) * tenth;
            (from..to).filter(|tenth| pulse.is_due(at(*tenth))).count()
        };
        assert_eq!(beats(0, 1), 1, "the first at once, for who is heard is missed");
        assert_eq!(beats(1, 35), 3);
        assert_eq!(beats(1000, 1010), 1);
    }
}
