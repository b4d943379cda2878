//! What happens in host memory, for every collective and type, without a GPU.

use std::thread;

use bonfire_collective::{GroupOptions, WorldSize};

use super::*;

const RANKS: u32 = 3;

/// The memory of each rank after an operation on elements that [`number`] gives, and which of them the
/// device gets.
fn after<T: Element + Pod + From<u8>>(job: HostJob) -> Vec<(Vec<T>, Range<usize>)> {
    let world_size = WorldSize::new(RANKS).unwrap();
    let groups = ProcessGroup::local(world_size, GroupOptions::default()).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .map(|group| {
                scope.spawn(move || {
                    let mut path = HostPath::new();
                    let words = (job.count * size_of::<T>()).div_ceil(8);
                    path.memory = host_memory(group.buffer::<u64>(words).unwrap());
                    let elements = bytemuck::cast_slice_mut::<u64, T>(&mut path.memory);
                    let me = group.rank().get() as usize;
                    for (index, element) in elements[..job.count].iter_mut().enumerate() {
                        *element = T::from(number(me, index));
                    }
                    job.run(&group, &mut path.memory).unwrap();
                    let elements = bytemuck::cast_slice::<u64, T>(&path.memory);
                    (elements[..job.count].to_vec(), job.result(&group))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Small enough for the sums of all types.
fn number(rank: usize, index: usize) -> u8 {
    ((7 * rank + 3 * index) % 17) as u8
}

fn total(index: usize) -> u8 {
    (0..RANKS as usize).map(|rank| number(rank, index)).sum()
}

fn check<T: Element + Pod + From<u8> + PartialEq + std::fmt::Debug>() {
    for count in [1, 2, 3, 50] {
        let job = |collective, reduce| HostJob { collective, dtype: T::DTYPE, count, reduce };
        let sum = Some(ReduceOp::Sum);
        let root = Rank::new(1);
        for (found, range) in after::<T>(job(Collective::AllReduce, sum)) {
            assert_eq!(range, 0..count);
            for (index, element) in found.iter().enumerate() {
                assert_eq!(*element, T::from(total(index)), "{} x {count}", T::DTYPE);
            }
        }
        let world_size = WorldSize::new(RANKS).unwrap();
        let scattered = after::<T>(job(Collective::ReduceScatter, sum));
        for ((found, range), rank) in scattered.into_iter().zip(world_size.ranks()) {
            assert_eq!(range, shard_range(count, world_size, rank).as_range());
            for index in range {
                assert_eq!(found[index], T::from(total(index)));
            }
        }
        for (found, range) in after::<T>(job(Collective::AllGather, None)) {
            assert_eq!(range, 0..count);
            for rank in world_size.ranks() {
                for index in shard_range(count, world_size, rank).as_range() {
                    assert_eq!(found[index], T::from(number(rank.index(), index)));
                }
            }
        }
        for (rank, (found, range)) in
            after::<T>(job(Collective::Broadcast { root }, None)).into_iter().enumerate()
        {
            assert_eq!(range, if rank == 1 { 0..0 } else { 0..count });
            for (index, element) in found.iter().enumerate() {
                assert_eq!(*element, T::from(number(1, index)));
            }
        }
        let reduced = after::<T>(job(Collective::Reduce { root }, sum));
        let ranges: Vec<Range<usize>> = reduced.iter().map(|(_, range)| range.clone()).collect();
        assert_eq!(ranges, [0..0, 0..count, 0..0]);
        for (index, element) in reduced[1].0.iter().enumerate() {
            assert_eq!(*element, T::from(total(index)));
        }
        check_blocks::<T>(count);
    }
}

/// What moves blocks between a root, rank 1, and the others.
fn check_blocks<T: Element + Pod + From<u8> + PartialEq + std::fmt::Debug>(count: usize) {
    let world_size = WorldSize::new(RANKS).unwrap();
    let root = Rank::new(1);
    let job = |collective| HostJob { collective, dtype: T::DTYPE, count, reduce: None };
    let shard = |rank| shard_range(count, world_size, rank).as_range();
    let gathered = after::<T>(job(Collective::Gather { root }));
    let ranges: Vec<Range<usize>> = gathered.iter().map(|(_, range)| range.clone()).collect();
    assert_eq!(ranges, [0..0, 0..count, 0..0]);
    for rank in world_size.ranks() {
        for index in shard(rank) {
            assert_eq!(gathered[1].0[index], T::from(number(rank.index(), index)));
        }
    }
    let scattered = after::<T>(job(Collective::Scatter { root }));
    for ((found, range), rank) in scattered.into_iter().zip(world_size.ranks()) {
        assert_eq!(range, if rank == root { 0..0 } else { shard(rank) });
        for index in shard(rank) {
            assert_eq!(found[index], T::from(number(1, index)));
        }
    }
}

#[test]
fn floats_go_through_the_host() {
    check::<f32>();
    check::<f64>();
}

#[test]
fn sixteen_bit_floats_go_through_the_host() {
    check::<f16>();
    check::<bf16>();
}

#[test]
fn integers_go_through_the_host() {
    check::<i16>();
    check::<i32>();
    check::<i64>();
    check::<u8>();
    check::<u16>();
    check::<u32>();
    check::<u64>();
}
