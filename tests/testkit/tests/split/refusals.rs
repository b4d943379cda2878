//! What is refused when a group is split.

use bonfire_collective::{
    CollectiveError, ConnectError, ProcessGroup, Rank, ReduceOp, TransportKind,
};
use bonfire_testkit::on_hosts;

use super::{everywhere, options, sum_of_members};

fn connect_error(error: &CollectiveError) -> &ConnectError {
    match error {
        CollectiveError::Connect(error) => error,
        other => panic!("expected an error of set-up, got {other:?}"),
    }
}

#[test]
fn a_bad_list_is_refused_and_the_group_goes_on() {
    for (transport, _) in everywhere(3, |world| {
        let subgroup = |ranks: &[u32]| {
            let ranks: Vec<Rank> = ranks.iter().copied().map(Rank::new).collect();
            world.subgroup(&ranks).unwrap_err()
        };
        let error = subgroup(&[0, 3]);
        assert!(
            matches!(connect_error(&error), ConnectError::NoSuchRank { rank, .. } if rank.get() == 3)
        );
        let error = subgroup(&[1, 2, 1]);
        assert!(
            matches!(connect_error(&error), ConnectError::NamedTwice { rank } if rank.get() == 1)
        );
        // Different lists, one of them without this rank.
        let error = subgroup(&[world.rank().get() % 2]);
        let ConnectError::Disagree { what, .. } = connect_error(&error) else {
            panic!("{error}");
        };
        assert_eq!(*what, "called");
        world.barrier().unwrap();
    }) {
        assert!(!transport.is_empty());
    }
}

#[test]
fn ranks_of_a_color_must_have_the_same_options() {
    for (_, ranks) in everywhere(4, |world| {
        let me = world.rank().get();
        // The even ranks agree with each other, the odd ones do not.
        let chunk_bytes = if me == 3 { 640 } else { 1280 };
        let options = options().with_chunk_bytes(chunk_bytes);
        let half = world.split_with(Some(me % 2), 0, options);
        world.barrier().unwrap();
        half.map(|half| sum_of_members(&half.unwrap()))
    }) {
        for (rank, result) in ranks.iter().enumerate() {
            match result {
                Ok(sum) => assert_eq!((rank % 2, *sum), (0, 2)),
                Err(error) => {
                    let error = connect_error(error);
                    let is_chunk = matches!(error, ConnectError::Disagree { what, .. }
                        if *what == "chunk_bytes");
                    assert!(rank % 2 == 1 && is_chunk, "{error}");
                }
            }
        }
    }
}

#[test]
fn parts_that_cannot_connect_are_an_error_on_all_their_ranks_only() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let hosts = ["a", "a", "b", "b"];
        let options = options().with_transport(None);
        let ranks = on_hosts(&hosts, options.clone(), |world| {
            let me = world.rank().get();
            let options = options.clone().with_transport(Some(transport));
            // Ranks 0 and 1 share a host; ranks 2 and 3 are to be joined by rank 0 of another.
            let inside = world.split_with(Some(me / 2), 0, options.clone());
            let across = world.split_with(Some(me % 2), 0, options);
            world.barrier().unwrap();
            let works = |group: Result<Option<ProcessGroup>, CollectiveError>| {
                group.map(|group| sum_of_members(&group.unwrap()))
            };
            (works(inside), works(across))
        });
        for (inside, across) in ranks {
            inside.unwrap();
            match transport {
                TransportKind::Tcp => assert!(across.is_ok()),
                _ => {
                    let error = across.unwrap_err();
                    let refused = matches!(
                        connect_error(&error),
                        ConnectError::Transport { transport: TransportKind::Shm, .. }
                    );
                    assert!(refused, "{error}");
                }
            }
        }
    }
}

/// Rank 0 does something else while the others split.
fn check_mixed(other: impl Fn(&ProcessGroup) -> Result<(), CollectiveError> + Sync) {
    for (transport, errors) in everywhere(3, |world| {
        world.barrier().unwrap();
        let result = match world.rank().get() {
            0 => other(&world),
            _ => world.split(Some(0), 0).map(drop),
        };
        // A rank whose own part needed nobody learns of it at its next operation.
        result.and_then(|()| world.barrier()).unwrap_err()
    }) {
        for error in errors {
            match error {
                CollectiveError::Mismatch(mismatch) => {
                    assert_ne!(mismatch.operation, mismatch.other_operation);
                }
                // The other operation looked like a split until its content was read.
                CollectiveError::PeerFailed { cause, .. } => {
                    assert!(cause.contains("in another operation"), "{transport}: {cause}");
                }
                other => panic!("{transport}: {other}"),
            }
        }
    }
}

#[test]
fn a_split_does_not_match_another_operation() {
    check_mixed(ProcessGroup::barrier);
    check_mixed(|group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum));
    check_mixed(|group| group.all_gather(&[1_u8; 8]).map(drop));
    // As long as what the ranks of a split say to one another.
    check_mixed(|group| group.all_gather(&[b'7'; 4093]).map(drop));
    check_mixed(|group| group.all_gather(&[0_u8; 4093]).map(drop));
}
