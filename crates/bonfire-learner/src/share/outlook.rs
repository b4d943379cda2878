//! Values that all ranks exchange before a step: samples, further batches, and requests to stop.

use bonfire_collective::{ProcessGroup, Rank};

use crate::error::LearnerError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    /// Samples of its batch; 0 without one.
    pub(crate) samples: usize,
    /// True if it has another batch after that.
    pub(crate) more: bool,
    /// True if its user asked to stop.
    pub(crate) stop: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// The samples of each rank in the step to come.
    pub(crate) samples: Vec<usize>,
    /// True if any rank has a batch after it.
    pub(crate) more: bool,
    /// The lowest rank that wants to stop.
    pub(crate) stop: Option<Rank>,
}

impl Outlook {
    #[track_caller]
    pub(crate) fn of(group: &ProcessGroup, own: Own) -> Result<Self, LearnerError> {
        let said = [own.samples as i64, own.more.into(), own.stop.into()];
        let all = group.all_gather(&said)?;
        let mut outlook = Self {
            samples: Vec::with_capacity(group.world_size().len()),
            more: false,
            stop: None,
        };
        for (rank, said) in group.world_size().ranks().zip(all.chunks_exact(said.len())) {
            outlook.samples.push(said[0] as usize);
            outlook.more |= said[1] != 0;
            if said[2] != 0 {
                outlook.stop.get_or_insert(rank);
            }
        }
        Ok(outlook)
    }

    /// The samples of all ranks; 0 at the end of an epoch.
    pub(crate) fn total(&self) -> usize {
        self.samples.iter().sum()
    }
}
