//! Values that all ranks exchange before a step: samples, further batches, and requests to stop.

use bonfire_collective::{ProcessGroup, Rank};

use crate::error::LearnerError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnStep {
    /// Samples of its batch; 0 without one.
    pub(crate) samples: usize,
    /// True if it has another batch after that.
    pub(crate) more: bool,
    pub(crate) stop: bool,
}

/// What all ranks know of the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepAgreement {
    /// The samples of each rank in the step to come.
    pub(crate) samples: Vec<usize>,
    /// True if any rank has a batch after it.
    pub(crate) more: bool,
    /// The lowest rank that wants to stop.
    pub(crate) stop: Option<Rank>,
}

impl StepAgreement {
    #[track_caller]
    pub(crate) fn of(group: &ProcessGroup, own: OwnStep) -> Result<Self, LearnerError> {
        let sent = [own.samples as i64, own.more.into(), own.stop.into()];
        let all = group.all_gather(&sent)?;
        let mut agreement =
            Self { samples: Vec::with_capacity(group.world_size().len()), more: false, stop: None };
        for (rank, sent) in group.world_size().ranks().zip(all.chunks_exact(sent.len())) {
            agreement.samples.push(sent[0] as usize);
            agreement.more |= sent[1] != 0;
            if sent[2] != 0 {
                agreement.stop.get_or_insert(rank);
            }
        }
        Ok(agreement)
    }

    /// The samples of all ranks; 0 at the end of an epoch.
    pub(crate) fn total(&self) -> usize {
        self.samples.iter().sum()
    }
}
