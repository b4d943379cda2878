//! An operation that was done before takes no memory from the allocator.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use allocation_counter::measure;
use bonfire_collective::{GroupOptions, ProcessGroup, Rank, ReduceOp, TransportKind};
use bonfire_testkit::{connected, local, over};

/// Elements of a message in one frame, of one in several, and of one that is reduced in place.
const LENGTHS: [usize; 3] = [12, 1200, 120_000];

/// Every operation that writes into the caller's memory.
fn operations(group: &ProcessGroup, buffers: &mut Buffers) {
    let Buffers { data, shard, all } = buffers;
    let root = Rank::new(1);
    let peer = Rank::new(1 - group.rank().get());
    group.all_reduce(data, ReduceOp::Mean).unwrap();
    group.reduce(data, root, ReduceOp::Max).unwrap();
    group.broadcast(data, root).unwrap();
    group.reduce_scatter_in_place(data, ReduceOp::Sum).unwrap();
    group.reduce_scatter_into(data, shard, ReduceOp::Sum).unwrap();
    group.all_gather_into(data, all).unwrap();
    group.all_to_all(data).unwrap();
    group.exchange(peer, data, &mut all[..data.len()]).unwrap();
    let (front, back) = data.split_at_mut(5);
    group.all_reduce_coalesced(&mut [front, back], ReduceOp::Min).unwrap();
    group.barrier().unwrap();
}

struct Buffers {
    data: Vec<f32>,
    shard: Vec<f32>,
    all: Vec<f32>,
}

/// How often the second round of all operations asks the allocator for memory.
fn allocations(group: &ProcessGroup) -> u64 {
    let mut buffers: Vec<Buffers> = LENGTHS
        .iter()
        .map(|&len| Buffers {
            data: vec![1.0; len],
            shard: vec![0.0; len / 2],
            all: vec![0.0; len * 2],
        })
        .collect();
    let mut round = || {
        buffers.iter_mut().for_each(|buffers| operations(group, buffers));
    };
    round();
    measure(round).count_total
}

#[test]
fn the_counter_counts() {
    let counted = measure(|| drop(std::hint::black_box(vec![0_u8; 10])));
    assert_eq!(counted.count_total, 1);
}

#[test]
fn threads_allocate_nothing_after_the_first_round() {
    let counts = local(2, GroupOptions::default(), |group| allocations(&group));
    assert_eq!(counts, [0, 0]);
}

#[test]
fn shared_memory_and_sockets_allocate_nothing_after_the_first_round() {
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        let options = GroupOptions::default().with_transport(Some(transport));
        let counts = connected(2, options, |group| allocations(&group));
        assert_eq!(counts, [0, 0], "over {transport}");
    }
    let counts = connected(2, over("tcp:4").unwrap(), |group| allocations(&group));
    assert_eq!(counts, [0, 0], "over four streams");
}
