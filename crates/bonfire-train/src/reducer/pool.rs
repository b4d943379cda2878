//! Memory that sharded buckets share.

use std::sync::Arc;

use bonfire_collective::{Mutex, ProcessGroup};
use bonfire_plan::buckets::lent_bytes_max;
use bonfire_plan::{Bytes, DType};

use crate::values::BucketBuffer;

/// Memory that buckets whose gradients are sharded share: each needs it from its first gradient until the
/// ranks have summed it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<Mutex<Free>>);

#[derive(Debug, Default)]
struct Free {
    free: Vec<BucketBuffer>,
    bucket_bytes: Vec<u64>,
    bytes: u64,
}

impl Pool {
    pub(super) fn join(&self, dtype: DType, elems: usize) {
        self.0.lock().bucket_bytes.push(Bytes::of(elems as u64, dtype).get());
    }

    /// A buffer for some values, or a larger one: the smallest that is free, for buckets that need more may come next.
    /// While the buckets have less than they may need at one time, a bucket takes no more than it needs.
    pub(super) fn take(&self, group: &ProcessGroup, dtype: DType, elems: usize) -> BucketBuffer {
        let mut memory = self.0.lock();
        let bytes = Bytes::of(elems as u64, dtype).get();
        let fits = |values: &BucketBuffer| values.dtype() == dtype && values.len() >= elems;
        let fitting = memory.free.iter().enumerate().filter(|(_, values)| fits(values));
        let least = fitting.min_by_key(|(_, values)| values.len());
        let least = least.map(|(index, values)| (index, values.len()));
        let is_full = memory.bytes + bytes > lent_bytes_max(&memory.bucket_bytes);
        if let Some((index, len)) = least
            && (is_full || len == elems)
        {
            return memory.free.swap_remove(index);
        }
        // What is too small makes room.
        while memory.bytes + bytes > lent_bytes_max(&memory.bucket_bytes)
            && let Some(values) = memory.free.pop()
        {
            memory.bytes -= Bytes::of(values.len() as u64, values.dtype()).get();
        }
        memory.bytes += bytes;
        BucketBuffer::shared(group, dtype, elems)
    }

    pub(super) fn give(&self, values: BucketBuffer) {
        self.0.lock().free.push(values);
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
            let pool = Pool::default();
            let buckets = [30, 10, 20];
            for elems in buckets {
                pool.join(DType::F32, elems);
            }
            let take = |elems| pool.take(&group, DType::F32, elems);
            for large in [20, 30, 30] {
                let first = take(large);
                assert_eq!(first.len(), large);
                pool.give(first);
                let taken = buckets.map(take);
                assert_eq!(taken.each_ref().map(BucketBuffer::len), buckets);
                taken.into_iter().for_each(|values| pool.give(values));
                assert_eq!(pool.0.lock().bytes, 4 * 60);
            }
        });
    }

    #[test]
    fn four_buckets_of_which_three_have_memory_at_a_time_share_that_of_the_largest() {
        local(1, GroupOptions::default(), |group| {
            let pool = Pool::default();
            let buckets = [10, 30, 25, 20];
            for elems in buckets {
                pool.join(DType::F32, elems);
            }
            let take = |elems| pool.take(&group, DType::F32, elems);
            for _ in 0..4 {
                let mut taken = VecDeque::new();
                for elems in buckets {
                    if taken.len() > LENT_MAX
                        && let Some(values) = taken.pop_front()
                    {
                        pool.give(values);
                    }
                    taken.push_back(take(elems));
                    assert!(pool.0.lock().bytes <= 4 * (30 + 25 + 20));
                }
                taken.into_iter().for_each(|values| pool.give(values));
            }
        });
    }
}
