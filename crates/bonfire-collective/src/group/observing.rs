//! What a program reports about itself to users who watch the job, and what it learns about the others.

use std::panic::Location;
use std::sync::Arc;

use super::ProcessGroup;
use crate::health::recorder::{Entered, Recorder};
use crate::health::stragglers::StragglerReport;

/// Until it is dropped, the operations of a group are those of one call of the program.
#[derive(Debug)]
#[must_use = "the call ends when this is dropped"]
pub struct Inside {
    /// None within another call, which lasts longer.
    recorder: Option<Arc<Recorder>>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(recorder) = &self.recorder {
            recorder.enter(None);
        }
    }
}

impl ProcessGroup {
    /// The same membership, whose operations go by this name in what the flight recorder reports after a failure: a
    /// layer, a bucket, a phase. Make it once and keep it: names are not forgotten.
    pub fn named(&self, name: &str) -> Self {
        Self { name: self.core.recorder.name(name), ..self.clone() }
    }

    /// The same as [`named`](Self::named), by a name on which the ranks agree: two that are in operations of
    /// different names get [`CollectiveError::Mismatch`](crate::CollectiveError::Mismatch) before any data
    /// moves, though the operations be alike otherwise.
    pub fn compared_by(&self, name: &str) -> Self {
        Self { agreed: crc32c::crc32c(name.as_bytes()), ..self.named(name) }
    }

    /// Says that this rank's program begins step `step`, for those who ask what it does: `bonfire inspect`, SIGUSR1,
    /// and the report after a failure. Costs some nanoseconds; call it in every step. `Ddp` does.
    pub fn progress(&self, step: u64) {
        self.core.recorder.set_step(step);
    }

    /// Says that this rank's program begins to do this, such as `"data loading"`, until it says something else, for
    /// the same people. Costs less than a microsecond; a program has some dozens of phases at most.
    pub fn phase(&self, name: &str) {
        let recorder = &self.core.recorder;
        recorder.set_phase(recorder.name(name));
    }

    /// Until what it returns is dropped, this rank's operations are those of this line of the program, in errors and
    /// in records, and of step `step`: two ranks that are in operations of different steps get
    /// [`CollectiveError::Mismatch`](crate::CollectiveError::Mismatch). Within another such call it changes nothing.
    pub fn enter(&self, call_site: &'static Location<'static>, step: u64) -> Inside {
        let recorder = &self.core.recorder;
        let is_first = recorder.entered().is_none();
        if is_first {
            let step = Some(step as u32);
            recorder.enter(Some(Entered { call_site, step }));
        }
        Inside { recorder: is_first.then(|| Arc::clone(recorder)) }
    }

    /// Where the program is, as operations that it calls are known.
    #[track_caller]
    pub(super) fn entered(&self) -> Entered {
        let here = Entered { call_site: Location::caller(), step: None };
        self.core.recorder.entered().unwrap_or(here)
    }

    /// Which ranks keep the others waiting, and what that costs, as rank 0 found out in the last ten
    /// seconds; nothing before the first time, and in groups of threads. Rank 0 also says so in a
    /// warning, at most once a minute, when a rank costs the others a tenth of their time.
    pub fn stragglers(&self) -> Option<StragglerReport> {
        self.core.poison.reports().stragglers()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bonfire_plan::WorldSize;

    use crate::health::query::{report, warning};
    use crate::health::reports::GroupReport;
    use crate::{GroupOptions, ProcessGroup};

    #[test]
    fn a_wait_is_reported_once_with_the_rank_that_is_missing() {
        let three = WorldSize::new(3).unwrap();
        let options = GroupOptions::default().with_timeout(Duration::from_secs(60));
        let groups = ProcessGroup::local(three, options).unwrap();
        std::thread::scope(|scope| {
            for waiting in &groups[1..] {
                scope.spawn(|| waiting.barrier().unwrap());
            }
            let poison = &groups[0].core.poison;
            let text = loop {
                // It is not called a wait before it has lasted for a second.
                let both_wait = "ranks 1 and 2 wait in barrier #0";
                let long_enough = |report: GroupReport| report.verdict().starts_with(both_wait);
                if report(poison, 1).is_some_and(long_enough) {
                    break warning(poison).unwrap();
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            let culprit = ": rank 0 has not entered it, and has called nothing";
            assert!(text.contains(culprit), "{text}");
            assert_eq!(warning(poison), None, "once for each operation");
            groups[0].barrier().unwrap();
        });
    }
}
