//! What the threads of one group have in common: made by the first that asks, taken once by each.

use std::any::Any;

use bonfire_plan::{Rank, WorldSize};

use super::ProcessGroup;
use super::roster::Origin;
use bonfire_connect::platform::sync::Mutex;

/// What not all ranks have taken yet.
#[derive(Debug, Default)]
pub(super) struct SharedValues {
    values: Mutex<Vec<SharedValue>>,
}

#[derive(Debug)]
struct SharedValue {
    group: u32,
    value: Box<dyn Any + Send>,
    taken: Vec<bool>,
}

impl SharedValues {
    /// The value that every rank of a group gets when it asks for the same time. All ranks ask for values
    /// of the same types in the same order.
    pub(super) fn take<T: Any + Clone + Send>(
        &self,
        group: u32,
        rank: Rank,
        world_size: WorldSize,
        make: impl FnOnce() -> T,
    ) -> T {
        // Each call leaves the list complete, so a panic elsewhere does not spoil it.
        let mut values = self.values.lock();
        let open = |shared: &SharedValue| shared.group == group && !shared.taken[rank.index()];
        let index = values.iter().position(open).unwrap_or_else(|| {
            values.push(SharedValue {
                group,
                value: Box::new(make()),
                taken: vec![false; world_size.len()],
            });
            values.len() - 1
        });
        let shared = &mut values[index];
        shared.taken[rank.index()] = true;
        let value =
            shared.value.downcast_ref::<T>().expect("all ranks ask for the same type").clone();
        if shared.taken.iter().all(|taken| *taken) {
            values.remove(index);
        }
        value
    }
}

impl ProcessGroup {
    /// A value that the ranks of this group in one process have in common, which the first of them makes: the same
    /// for the ranks of a [local](Self::local) group, one of its own for every process of another. What stands on a
    /// group keeps there what its threads share. Every rank asks for values of the same types in the same order.
    pub fn in_common<T: Any + Clone + Send>(&self, make: impl FnOnce() -> T) -> T {
        let roster = self.roster();
        match &roster.origin {
            Origin::Threads(pool) => {
                let (rank, world_size) = (self.rank(), self.world_size());
                pool.shared_values().take(roster.number, rank, world_size, make)
            }
            Origin::Processes(_) => make(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_of_a_group_get_the_same_and_nothing_stays() {
        let shared_values = SharedValues::default();
        let two = WorldSize::new(2).unwrap();
        let mut made = 0;
        let mut take = |group, rank| {
            shared_values.take(group, Rank::new(rank), two, || {
                made += 1;
                made
            })
        };
        // One rank is two values ahead, and another group asks between.
        assert_eq!([take(0, 1), take(5, 0), take(0, 1)], [1, 2, 3]);
        assert_eq!([take(0, 0), take(0, 0), take(5, 1)], [1, 3, 2]);
        assert_eq!([take(0, 0), take(0, 1)], [4, 4]);
        assert!(shared_values.values.lock().is_empty());
    }
}
