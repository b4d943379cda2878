//! When the ranks are asked, and then made, to end. Pure: the time is an argument.

use std::time::{Duration, Instant};

use super::Graces;

/// How long killed processes may take to vanish. Only the kernel can delay them, as in a device
/// driver that does not answer.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// What the supervisor is to do with the ranks that still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Wait,
    Terminate,
    Kill,
    Abandon,
}

/// How far the end of the job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A rank has failed and the others learn of it by themselves.
    Failing {
        until: Instant,
    },
    Terminating {
        until: Instant,
    },
    Killing {
        until: Instant,
    },
    Abandoned,
}

/// Carries a job from its first failure or interrupt to its end.
#[derive(Debug)]
pub(super) struct Ending {
    graces: Graces,
    phase: Phase,
}

impl Ending {
    pub(super) fn new(graces: Graces) -> Self {
        Self { graces, phase: Phase::Running }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running | Phase::Abandoned => None,
            Phase::Failing { until } | Phase::Terminating { until } | Phase::Killing { until } => {
                Some(until)
            }
        }
    }

    /// Whether a rank that a signal ends from now on may have been ended by us.
    pub(super) fn has_signalled(&self) -> bool {
        !matches!(self.phase, Phase::Running | Phase::Failing { .. })
    }

    pub(super) fn rank_failed(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            self.phase = Phase::Failing { until: now + self.graces.after_failure };
        }
    }

    /// Nobody ran for so long, this process included: that counts for no grace.
    pub(super) fn stood_still(&mut self, pause: Duration) {
        match &mut self.phase {
            Phase::Running | Phase::Abandoned => {}
            Phase::Failing { until } | Phase::Terminating { until } | Phase::Killing { until } => {
                *until += pause;
            }
        }
    }

    /// None of the ranks that still run can end by itself, whatever time it has.
    pub(super) fn cut_short(&mut self, now: Instant) -> Order {
        match self.phase {
            Phase::Failing { .. } => {
                self.phase = Phase::Failing { until: now };
                self.time_passed(now)
            }
            _ => Order::Wait,
        }
    }

    /// The user or the system wants the job to end.
    pub(super) fn interrupted(&mut self, now: Instant) -> Order {
        match self.phase {
            Phase::Running | Phase::Failing { .. } => {
                self.phase = Phase::Terminating { until: now + self.graces.after_interrupt };
                Order::Terminate
            }
            Phase::Terminating { .. } => self.kill(now),
            Phase::Killing { .. } | Phase::Abandoned => Order::Wait,
        }
    }

    pub(super) fn time_passed(&mut self, now: Instant) -> Order {
        if self.deadline().is_none_or(|until| now < until) {
            return Order::Wait;
        }
        match self.phase {
            Phase::Running | Phase::Abandoned => Order::Wait,
            Phase::Failing { .. } => {
                self.phase = Phase::Terminating { until: now + self.graces.after_terminate };
                Order::Terminate
            }
            Phase::Terminating { .. } => self.kill(now),
            Phase::Killing { .. } => {
                self.phase = Phase::Abandoned;
                Order::Abandon
            }
        }
    }

    fn kill(&mut self, now: Instant) -> Order {
        self.phase = Phase::Killing { until: now + KILL_WAIT };
        Order::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACES: Graces = Graces {
        after_failure: Duration::from_secs(1),
        after_terminate: Duration::from_secs(2),
        after_interrupt: Duration::from_secs(4),
    };

    #[test]
    fn a_failure_leads_to_term_then_kill_then_giving_up() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut ending = Ending::new(GRACES);
        assert_eq!(ending.deadline(), None);
        ending.rank_failed(at(0));
        assert!(!ending.has_signalled());
        assert_eq!(ending.deadline(), Some(at(1)));
        ending.rank_failed(at(1));
        assert_eq!(ending.deadline(), Some(at(1)), "a second failure gives no second grace");
        assert_eq!(ending.time_passed(at(0)), Order::Wait);
        assert_eq!(ending.time_passed(at(1)), Order::Terminate);
        assert!(ending.has_signalled());
        assert_eq!(ending.time_passed(at(2)), Order::Wait);
        assert_eq!(ending.time_passed(at(3)), Order::Kill);
        assert_eq!(ending.time_passed(at(6)), Order::Abandon);
        assert_eq!(ending.deadline(), None);
    }

    #[test]
    fn the_default_graces_end_every_process_within_ten_seconds() {
        let graces = Graces::default();
        let total = graces.after_failure + graces.after_terminate + KILL_WAIT;
        assert!(total < Duration::from_secs(10), "{total:?}");
    }

    #[test]
    fn the_second_interrupt_kills_at_once() {
        let now = Instant::now();
        let mut ending = Ending::new(GRACES);
        assert_eq!(ending.interrupted(now), Order::Terminate);
        assert_eq!(ending.deadline(), Some(now + GRACES.after_interrupt));
        assert_eq!(ending.interrupted(now), Order::Kill);
        assert_eq!(ending.interrupted(now), Order::Wait);
    }

    #[test]
    fn a_grace_stands_still_with_the_job() {
        let now = Instant::now();
        let mut ending = Ending::new(GRACES);
        ending.stood_still(Duration::from_secs(60));
        ending.interrupted(now);
        ending.stood_still(Duration::from_secs(60));
        let later = now + Duration::from_secs(60);
        assert_eq!(ending.time_passed(later), Order::Wait);
        assert_eq!(ending.deadline(), Some(later + GRACES.after_interrupt));
    }

    #[test]
    fn nobody_waits_for_ranks_that_cannot_end() {
        let now = Instant::now();
        let mut ending = Ending::new(GRACES);
        assert_eq!(ending.cut_short(now), Order::Wait, "nothing has failed");
        ending.rank_failed(now);
        assert_eq!(ending.cut_short(now), Order::Terminate);
        assert_eq!(ending.deadline(), Some(now + GRACES.after_terminate));
        assert_eq!(ending.cut_short(now), Order::Wait);
    }

    #[test]
    fn an_interrupt_after_a_failure_does_not_wait_for_the_peers() {
        let now = Instant::now();
        let mut ending = Ending::new(GRACES);
        ending.rank_failed(now);
        assert_eq!(ending.interrupted(now), Order::Terminate);
    }
}
