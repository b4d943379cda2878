//! Ranks that call different things: the same error on all of them, which names both sides, and how long
//! after the last call each of them has it. With `--nocapture` it prints the times.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{
    CallSites, Checksums, CollectiveError, GroupOptions, ProcessGroup, Rank, ReduceOp,
    TransportKind,
};
use bonfire_testkit::{connected, local, meeting};

type Done = Result<(), CollectiveError>;

/// How much later than the others the last rank calls.
const LATE: Duration = Duration::from_millis(30);

/// How long a rank whose own part needed nobody listens before it calls something else.
const LISTENING: Duration = Duration::from_secs(1);

/// What the odd rank calls, and what all others call.
struct Kind {
    name: &'static str,
    odd: fn(&ProcessGroup) -> Done,
    others: fn(&ProcessGroup) -> Done,
}

const KINDS: [Kind; 10] = [
    Kind {
        name: "operation",
        odd: |group| group.all_gather(&[1.0_f32; 8]).map(drop),
        others: |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
    },
    Kind {
        name: "order",
        odd: |group| {
            group.all_reduce(&mut [1_u8], ReduceOp::Sum)?;
            group.barrier()
        },
        others: |group| {
            group.barrier()?;
            group.all_reduce(&mut [1_u8], ReduceOp::Sum)
        },
    },
    Kind {
        name: "count",
        odd: |group| group.all_reduce(&mut [1.0_f32; 7], ReduceOp::Sum),
        others: |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
    },
    Kind {
        name: "count, large",
        odd: |group| group.all_reduce(&mut vec![1.0_f32; 500_000], ReduceOp::Sum),
        others: |group| group.all_reduce(&mut vec![1.0_f32; 500_001], ReduceOp::Sum),
    },
    Kind {
        name: "dtype",
        odd: |group| group.all_reduce(&mut [1_i32; 8], ReduceOp::Sum),
        others: |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
    },
    Kind {
        name: "reduction",
        odd: |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Max),
        others: |group| group.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
    },
    Kind {
        name: "root",
        odd: |group| group.reduce(&mut [1.0_f32; 8], Rank::new(1), ReduceOp::Sum),
        others: |group| group.reduce(&mut [1.0_f32; 8], Rank::new(0), ReduceOp::Sum),
    },
    Kind {
        name: "part",
        odd: |group| group.subgroup(&[0, 1].map(Rank::new)).map(drop),
        others: |group| group.barrier(),
    },
    // The root of a broadcast sends and waits for nobody.
    Kind {
        name: "root alone",
        odd: |group| group.broadcast(&mut [1.0_f32; 8], group.rank()),
        others: |group| group.barrier(),
    },
    // And so does who sends to the root of a reduction.
    Kind {
        name: "leaf alone",
        odd: |group| {
            let other = Rank::new((group.rank().get() + 1) % 3);
            group.reduce(&mut [1.0_f32; 8], other, ReduceOp::Sum)
        },
        others: |group| group.barrier(),
    },
];

/// What a rank hears, and how: by itself, or only when it calls something else.
struct Heard {
    error: CollectiveError,
    after: Duration,
    calls_again: bool,
}

/// What each rank gives, as threads where no transport is chosen and over connections otherwise.
fn on_ranks<R: Send>(
    count: u32,
    options: GroupOptions,
    body: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    match options.transport {
        None => local(count, options, body),
        Some(_) => connected(count, options, body),
    }
}

fn hear(
    group: &ProcessGroup,
    call: impl Fn(&ProcessGroup) -> Done,
    last: &Mutex<Option<Instant>>,
    patience: Duration,
) -> Heard {
    {
        let mut last = last.lock().unwrap();
        *last = (*last).max(Some(Instant::now()));
    }
    let called = call(group);
    let listening = Instant::now();
    let mut error = called.err();
    while error.is_none() && listening.elapsed() < patience {
        thread::sleep(Duration::from_millis(1));
        error = group.failure();
    }
    let calls_again = error.is_none();
    let error = error.unwrap_or_else(|| {
        loop {
            if let Err(error) = group.barrier() {
                break error;
            }
        }
    });
    let last = last.lock().unwrap().unwrap();
    Heard { error, after: last.elapsed(), calls_again }
}

/// One kind, with the odd rank calling first or last.
fn check(kind: &Kind, transport: Option<TransportKind>, odd: u32) -> (Duration, bool) {
    let options =
        GroupOptions::default().with_transport(transport).with_timeout(Duration::from_secs(100));
    let last = Mutex::new(None);
    let body = |group: ProcessGroup| {
        group.barrier().unwrap();
        let me = group.rank().get();
        if me == 2 {
            thread::sleep(LATE);
        }
        hear(&group, if me == odd { kind.odd } else { kind.others }, &last, LISTENING)
    };
    let heard = on_ranks(3, options, body);
    for Heard { error, .. } in &heard {
        let CollectiveError::Mismatch(mismatch) = error else {
            panic!("{}, odd rank {odd}, {transport:?}: {error}", kind.name);
        };
        let sides = [mismatch.rank, mismatch.other_rank];
        assert_ne!(sides[0], sides[1], "{error}");
        assert!(sides.contains(&Rank::new(odd)), "{}: {error}", kind.name);
        assert_ne!(mismatch.operation, mismatch.other_operation, "{error}");
        assert_eq!(error.to_string().matches(".rs:").count(), 2, "{error}");
    }
    let slowest = heard.iter().map(|heard| heard.after).max();
    (slowest.unwrap(), heard.iter().any(|heard| heard.calls_again))
}

#[test]
fn every_kind_of_mismatch_reaches_all_ranks_and_names_both_sides() {
    for kind in &KINDS {
        for transport in [None, Some(TransportKind::Shm), Some(TransportKind::Tcp)] {
            for odd in [0, 2] {
                let (after, calls_again) = check(kind, transport, odd);
                let name = transport.map_or("local".to_owned(), |kind| kind.to_string());
                let ms = after.as_secs_f64() * 1e3;
                let how = if calls_again { ", one at its next operation" } else { "" };
                println!("{:<13} {name:<6} odd rank {odd}: {ms:.1} ms{how}", kind.name);
            }
        }
    }
}

/// The same operation, from two lines.
#[expect(clippy::if_same_then_else, reason = "the lines are what differs")]
fn from_two_lines(group: &ProcessGroup) -> Done {
    let mut data = [1.0_f32; 8];
    if group.rank() == Rank::new(1) {
        group.all_reduce(&mut data, ReduceOp::Sum)
    } else {
        group.all_reduce(&mut data, ReduceOp::Sum)
    }
}

#[test]
fn lines_are_a_mismatch_only_where_they_are_compared() {
    for transport in [None, Some(TransportKind::Shm), Some(TransportKind::Tcp)] {
        for call_sites in [CallSites::Named, CallSites::Compared] {
            let options =
                GroupOptions::default().with_transport(transport).with_call_sites(call_sites);
            let body = |group: ProcessGroup| {
                group.all_reduce(&mut [1_u8], ReduceOp::Sum).unwrap();
                from_two_lines(&group)
            };
            let outcomes = on_ranks(3, options, body);
            for outcome in outcomes {
                match call_sites {
                    CallSites::Named => outcome.unwrap(),
                    CallSites::Compared => {
                        let error = outcome.unwrap_err();
                        assert!(matches!(error, CollectiveError::Mismatch(_)), "{error}");
                        let text = error.to_string();
                        assert_eq!(text.matches("mismatch.rs:").count(), 2, "{text}");
                    }
                }
            }
        }
    }
}

/// Ranks with different options do not meet, and learn which variable sets it.
fn assert_refused(ranks: [GroupOptions; 2], variable: &str) {
    for outcome in meeting(ranks.to_vec()) {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(variable), "{error}");
    }
}

#[test]
fn ranks_that_differ_in_what_lines_count_do_not_meet() {
    let ranks = [CallSites::Named, CallSites::Compared].map(|call_sites| {
        GroupOptions::default().with_transport(Some(TransportKind::Tcp)).with_call_sites(call_sites)
    });
    assert_refused(ranks, "BONFIRE_CALL_SITES");
}

/// Calls in which every rank only sends, of so many elements.
type OneSided = fn(&ProcessGroup, usize) -> Done;

const ONE_SIDED: [(&str, OneSided); 4] = [
    ("broadcast", |group, count| group.broadcast(&mut vec![0_u32; count], group.rank())),
    ("reduce", |group, count| group.reduce(&mut vec![0_u32; count], next(group), ReduceOp::Sum)),
    ("scatter", |group, count| {
        let parts = vec![0_u32; count * group.world_size().len()];
        group.scatter_into(&parts, &mut vec![0_u32; count], group.rank())
    }),
    ("gather", |group, count| group.gather(&vec![0_u32; count], next(group)).map(drop)),
];

fn next(group: &ProcessGroup) -> Rank {
    Rank::new((group.rank().get() + 1) % group.world_size().get())
}

/// Nobody waits for anybody, so nobody would see it who does not look.
#[test]
fn roots_of_which_each_only_sends_are_found_without_a_further_operation() {
    for transport in [None, Some(TransportKind::Shm), Some(TransportKind::Tcp)] {
        for (name, call) in ONE_SIDED {
            // Few that lie in a slot, and more than there is room for.
            for count in [1, 3_000_000] {
                let options = GroupOptions::default()
                    .with_transport(transport)
                    .with_timeout(Duration::from_secs(100));
                let last = Mutex::new(None);
                let body = |group: ProcessGroup| {
                    // The first operation may measure the links, and would find it.
                    group.all_reduce(&mut [0_u32], ReduceOp::Sum).unwrap();
                    if group.rank() == Rank::new(1) {
                        thread::sleep(LATE);
                    }
                    let patience = Duration::from_secs(60);
                    hear(&group, |group| call(group, count), &last, patience)
                };
                let heard = on_ranks(2, options, body);
                for Heard { error, after, calls_again } in heard {
                    println!("{name} {count} {transport:?}: {after:?}");
                    assert!(matches!(error, CollectiveError::Mismatch(_)), "{error}");
                    assert!(error.to_string().contains(name), "{error}");
                    assert!(!calls_again, "{name} of {count} over {transport:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn ranks_that_differ_in_checksums_do_not_meet() {
    let ranks = [Checksums::Off, Checksums::All].map(|checksums| {
        GroupOptions::default().with_transport(Some(TransportKind::Tcp)).with_checksums(checksums)
    });
    assert_refused(ranks, "BONFIRE_CHECKSUMS");
}
