//! The decision, without a GPU.

use std::thread;

use bonfire_collective::{GroupOptions, WorldSize};

use super::*;

fn refusal(by: u32, of: u32) -> Refusal {
    Refusal::new(Rank::new(by), Rank::new(of), "no peer access")
}

#[test]
fn one_pair_that_fails_sends_all_data_through_the_host() {
    assert_eq!(decide(None, &[]).unwrap(), CudaPath::Peer);
    assert_eq!(decide(None, &[refusal(2, 1)]).unwrap(), CudaPath::Host);
}

#[test]
fn what_is_asked_for_is_done_or_refused() {
    let [peer, host] = [CudaPath::Peer, CudaPath::Host].map(Some);
    assert_eq!(decide(host, &[]).unwrap(), CudaPath::Host);
    assert_eq!(decide(host, &[refusal(0, 1)]).unwrap(), CudaPath::Host);
    assert_eq!(decide(peer, &[]).unwrap(), CudaPath::Peer);
    let error = decide(peer, &[refusal(3, 1), refusal(0, 1)]).unwrap_err();
    assert!(matches!(error, CudaGroupError::SetUp { rank, .. } if rank == Rank::new(3)), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1") && text.contains("no peer access"), "{text}");
    assert!(text.contains("CudaOptions::path"), "{text}");
}

#[test]
fn every_rank_learns_of_every_refusal_in_the_same_order() {
    let world_size = WorldSize::new(3).unwrap();
    let groups = ProcessGroup::local(world_size, GroupOptions::default()).unwrap();
    let expected = [refusal(1, 0), refusal(1, 2), refusal(2, 0)];
    thread::scope(|scope| {
        for group in groups {
            let expected = &expected;
            scope.spawn(move || {
                let me = group.rank().get();
                let mine: Vec<Refusal> = expected.iter().filter(|r| r.by == me).cloned().collect();
                assert_eq!(gather(&group, &mine).unwrap(), expected);
            });
        }
    });
}

#[test]
fn a_refusal_names_both_ranks_and_the_reason() {
    assert_eq!(
        refusal(2, 1).to_string(),
        "rank 2 does not reach the memory of rank 1: no peer access"
    );
}
