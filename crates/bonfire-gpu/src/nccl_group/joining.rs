//! Joining NCCL's group, on all ranks or none.

use std::sync::Arc;
use std::time::Duration;

use bonfire_collective::ProcessGroup;
use bonfire_cuda::Context;
use bonfire_cuda::nccl::{Nccl, NcclPlace, NcclRank, UniqueId};

use super::membership::settle;
use super::occupancy::Occupancy;
use crate::error::Result;
use crate::life::agree;
use crate::life::wait::{Wait, Waited};

pub(crate) struct Ticket<'a> {
    pub(crate) nccl: &'a Arc<Nccl>,
    pub(crate) context: &'a Context,
    pub(crate) occupancy: &'a Occupancy,
    pub(crate) id: UniqueId,
    pub(crate) timeout: Duration,
}

impl Ticket<'_> {
    /// Joins, or says why that cannot be; `None` if `group` ended meanwhile.
    pub(crate) fn join(&self, group: &ProcessGroup) -> Result<Option<NcclRank>, String> {
        let place = NcclPlace { rank: group.rank().get(), world_size: group.world_size().get() };
        let timeout = self.timeout;
        let wait = Wait { group, timeout };
        let joined = NcclRank::join(self.nccl, self.context, self.id, place)
            .and_then(|mut member| Ok((settle(&wait, &mut member)?, member)));
        match joined {
            Ok((Waited::Done, member)) => Ok(Some(member)),
            Ok((Waited::Failed(_), _)) => Ok(None),
            Ok((Waited::TimedOut(elapsed), _)) => Err(format!(
                "NCCL did not connect the ranks in {} ms; set NCCL_DEBUG=INFO to see why",
                elapsed.as_millis()
            )),
            Err(error) => Err(match self.occupancy.first_on_the_same_device() {
                None => error.to_string(),
                Some([rank, other]) => format!(
                    "{error}; rank {rank} is on the device of rank {other}, which NCCL refuses: give each rank \
                     a device of its own, or use a CudaGroup"
                ),
            }),
        }
    }
}

/// Lets all ranks `join` something in which they wait for each other, or none: a rank that is refused ends the wait of
/// the others, who return `None` once the group that they are given has ended. `group` continues.
///
/// # Errors
/// [`SetUp`](crate::CudaGroupError::SetUp) on all ranks, naming the one that was refused.
pub(crate) fn on_all_or_none<T>(
    group: &ProcessGroup,
    join: impl FnOnce(&ProcessGroup) -> Result<Option<T>, String>,
) -> Result<T> {
    // That some are refused here does not end the group.
    let joining = group.detached();
    let joining = joining.split(Some(0), i64::from(group.rank().get()))?;
    let joining = joining.expect("every rank has a color");
    let joined = joining.or_abort(join(&joining));
    let joined = agree(group, joined)?;
    agree(group, joined.ok_or("NCCL did not connect the ranks"))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use bonfire_cuda::EventState;
    use bonfire_plan::{Rank, WorldSize};

    use super::*;
    use crate::error::CudaGroupError;
    use bonfire_collective::GroupOptions;

    /// What three ranks get, of which one may be refused while the others wait for it.
    fn joined(refused: Option<Rank>) -> Vec<Result<Rank>> {
        let three = WorldSize::new(3).unwrap();
        let groups = ProcessGroup::local(three, GroupOptions::default()).unwrap();
        let one = |group: ProcessGroup| {
            let joined = on_all_or_none(&group, |joining| {
                let me = joining.rank();
                if refused.is_none_or(|refused| refused == me) {
                    return refused.map_or(Ok(Some(me)), |_| Err("it has no network".to_owned()));
                }
                let wait = Wait { group: joining, timeout: Duration::from_secs(60) };
                match wait.until_done(|_| Ok(EventState::Pending)) {
                    Ok(Waited::Failed(_)) => Ok(None),
                    other => Err(format!("{other:?}")),
                }
            });
            group.barrier().expect("the group goes on");
            joined
        };
        thread::scope(|scope| {
            let one = &one;
            let ranks: Vec<_> =
                groups.into_iter().map(|group| scope.spawn(move || one(group))).collect();
            let ends = ranks.into_iter().map(|rank| rank.join());
            ends.map(|end| end.expect("no rank panics")).collect()
        })
    }

    #[test]
    fn a_rank_that_is_refused_ends_the_wait_of_the_others_and_is_named() {
        for end in joined(Some(Rank::new(1))) {
            let CudaGroupError::SetUp { rank, reason } = end.unwrap_err() else {
                panic!("another error");
            };
            assert_eq!(rank, Rank::new(1));
            assert_eq!(reason, "it has no network");
        }
    }

    #[test]
    fn all_join_where_none_is_refused() {
        let ranks: Result<Vec<Rank>, _> = joined(None).into_iter().collect();
        assert_eq!(ranks.unwrap(), [0, 1, 2].map(Rank::new));
    }
}
