//! Groups made out of groups: who is in them, that they work, and what ends which.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod ends;
mod forming;
mod refusals;

use std::time::Duration;

use bonfire_collective::{GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use bonfire_testkit::{connected, local};

fn options() -> GroupOptions {
    GroupOptions::default().with_timeout(Duration::from_secs(100)).with_chunk_bytes(320)
}

fn over(transport: TransportKind) -> GroupOptions {
    options().with_transport(Some(transport))
}

/// The same body on threads over local memory and over every transport between processes.
fn everywhere<R: Send>(
    world_size: u32,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<(String, Vec<R>)> {
    let mut results = vec![("local".to_owned(), local(world_size, options(), &body))];
    for transport in [TransportKind::Shm, TransportKind::Unix, TransportKind::Tcp] {
        let ranks = connected(world_size, over(transport), &body);
        results.push((transport.to_string(), ranks));
    }
    results
}

/// All ranks add their ranks in the job.
fn sum_of_members(group: &ProcessGroup) -> u32 {
    let mut sum = vec![group.world_rank(group.rank()).get(); 1000];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert!(sum.iter().all(|element| *element == sum[0]));
    sum[0]
}

fn members(group: &ProcessGroup) -> Vec<u32> {
    group.members().iter().map(|rank| rank.get()).collect()
}
