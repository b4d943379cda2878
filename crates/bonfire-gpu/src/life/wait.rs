//! Waiting for a device: with a deadline, and no longer than the group lives.

use std::time::{Duration, Instant};

use bonfire_cuda::{CudaError, EventState};

use bonfire_collective::{CollectiveError, ProcessGroup};

/// How long a failure elsewhere may go unnoticed.
const LOOK: Duration = Duration::from_millis(2);

/// A wait for what other ranks take part in.
pub(crate) struct Wait<'a> {
    pub(crate) group: &'a ProcessGroup,
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
pub(crate) enum Waited {
    Done,
    Failed(CollectiveError),
    TimedOut(Duration),
}

impl Wait<'_> {
    /// Looks until it is done. `look` may wait until the instant that it is given. What is done in a group that has
    /// failed was freed from waiting, and is not what was asked for.
    pub(crate) fn until_done(
        &self,
        mut look: impl FnMut(Instant) -> Result<EventState, CudaError>,
    ) -> Result<Waited, CudaError> {
        let started = Instant::now();
        loop {
            if let Some(failure) = self.group.failure() {
                return Ok(Waited::Failed(failure));
            }
            let left = (started + self.timeout).saturating_duration_since(Instant::now());
            if look(Instant::now() + left.min(LOOK))? == EventState::Done {
                return Ok(match self.group.failure() {
                    Some(failure) => Waited::Failed(failure),
                    None => Waited::Done,
                });
            }
            if left.is_zero() {
                return Ok(Waited::TimedOut(started.elapsed()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_collective::{GroupOptions, WorldSize};

    fn alone() -> ProcessGroup {
        let one = WorldSize::new(1).unwrap();
        let groups = ProcessGroup::local(one, GroupOptions::default()).unwrap();
        groups.into_iter().next().unwrap()
    }

    #[test]
    fn a_wait_ends_when_it_is_done() {
        let group = alone();
        let wait = Wait { group: &group, timeout: Duration::from_secs(60) };
        let mut looks = 0;
        let waited = wait.until_done(|_| {
            looks += 1;
            Ok(if looks == 3 { EventState::Done } else { EventState::Pending })
        });
        assert!(matches!(waited, Ok(Waited::Done)), "{waited:?}");
        assert_eq!(looks, 3);
    }

    #[test]
    fn a_wait_has_an_end() {
        let group = alone();
        let wait = Wait { group: &group, timeout: Duration::ZERO };
        let waited = wait.until_done(|_| Ok(EventState::Pending));
        assert!(matches!(waited, Ok(Waited::TimedOut(_))), "{waited:?}");
        // What is done already is done, however short the time.
        let waited = wait.until_done(|_| Ok(EventState::Done));
        assert!(matches!(waited, Ok(Waited::Done)), "{waited:?}");
    }

    /// What is done by then was freed from waiting.
    #[test]
    fn a_wait_ends_with_the_group_whatever_is_done() {
        for state in [EventState::Pending, EventState::Done] {
            let group = alone();
            let wait = Wait { group: &group, timeout: Duration::from_secs(60) };
            let waited = wait.until_done(|_| {
                group.abort("the test says so");
                Ok(state)
            });
            assert!(matches!(waited, Ok(Waited::Failed(_))), "{state:?}: {waited:?}");
        }
    }
}
