//! Memory that sharded buckets share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::values::Values;
use bonfire_collective::ProcessGroup;
use bonfire_plan::buckets::lent_bytes_max;
use bonfire_plan::{Bytes, DType};

/// Memory that buckets whose gradients are sharded share: each needs it from its first gradient until the
/// ranks have summed it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spare(Arc<Mutex<Pool>>);

#[derive(Debug, Default)]
struct Pool {
    free: Vec<Values>,
    bucket_bytes: Vec<u64>,
    bytes: u64,
}

impl Spare {
    pub(super) fn join(&self, dtype: DType, elems: usize) {
        self.pool()
            .bucket_bytes
            .push(Bytes::of(elems as u64, dtype).get());
    }

    /// A buffer for some values, or a larger one: the smallest that is free, for buckets that need more may come next.
    /// While the buckets have less than they may need at one time, a bucket takes no more than it needs.
    pub(super) fn take(&self, group: &ProcessGroup, dtype: DType, elems: usize) -> Values {
        let mut pool = self.pool();
        let bytes = Bytes::of(elems as u64, dtype).get();
        let fits = |values: &Values| values.dtype() == dtype && values.len() >= elems;
        let fitting = pool
            .free
            .iter()
            .enumerate()
            .filter(|(_, values)| fits(values));
        let least = fitting.min_by_key(|(_, values)| values.len());
        let least = least.map(|(index, values)| (index, values.len()));
        let is_full = pool.bytes + bytes > lent_bytes_max(&pool.bucket_bytes);
        if let Some((index, len)) = least
            && (is_full || len == elems)
        {
            return pool.free.swap_remove(index);
        }
        // What is too small makes room.
        while pool.bytes + bytes > lent_bytes_max(&pool.bucket_bytes)
            && let Some(values) = pool.free.pop()
        {
            pool.bytes -= Bytes::of(values.len() as u64, values.dtype()).get();
        }
        pool.bytes += bytes;
        Values::shared(group, dtype, elems)
    }

    pub(super) fn give(&self, values: Values) {
        self.pool().free.push(values);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use bonfire_collective::GroupOptions;
    use bonfire_plan::buckets::LENT_MAX;
    use bonfire_testkit::local;

    use super::*;

    /// Otherwise a small bucket takes the memory of a large one, and the large one makes more.
    #[test]
    fn a_small_bucket_leaves_the_memory_of_large_ones() {
        local(1, GroupOptions::default(), |group| {
            let spare = Spare::default();
            let buckets = [30, 10, 20];
            for elems in buckets {
                spare.join(DType::F32, elems);
            }
            let take = |elems| spare.take(&group, DType::F32, elems);
            for large in [20, 30, 30] {
                let first = take(large);
                assert_eq!(first.len(), large);
                spare.give(first);
                let taken = buckets.map(take);
                assert_eq!(taken.each_ref().map(Values::len), buckets);
                taken.into_iter().for_each(|values| spare.give(values));
                assert_eq!(spare.pool().bytes, 4 * 60);
            }
        });
    }

    #[test]
    fn four_buckets_of_which_three_have_memory_at_a_time_share_that_of_the_largest() {
        local(1, GroupOptions::default(), |group| {
            let spare = Spare::default();
            let buckets = [10, 30, 25, 20];
            for elems in buckets {
                spare.join(DType::F32, elems);
            }
            let take = |elems| spare.take(&group, DType::F32, elems);
            for _ in 0..4 {
                let mut taken = VecDeque::new();
                for elems in buckets {
                    if taken.len() > LENT_MAX
                        && let Some(values) = taken.pop_front()
                    {
                        spare.give(values);
                    }
                    taken.push_back(take(elems));
                    assert!(spare.pool().bytes <= 4 * (30 + 25 + 20));
                }
                taken.into_iter().for_each(|values| spare.give(values));
            }
        });
    }
}
