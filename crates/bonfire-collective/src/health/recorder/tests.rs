use std::sync::atomic::AtomicBool;
use std::thread;

use bonfire_plan::CallSite;
use bonfire_plan::{Algorithm, Collective, DType, Rank, ReduceOp};

use super::*;

fn operation(count: u64) -> Operation {
    Operation {
        group: 0,
        seq: 0,
        step: None,
        collective: Collective::AllReduce,
        algorithm: Algorithm::OneShot,
        dtype: DType::F32,
        reduce: Some(ReduceOp::Sum),
        count,
        layout: 0,
        call_site: CallSite::default(),
    }
}

#[test]
fn operations_are_read_latest_first_with_their_names() {
    let recorder = Recorder::default();
    let plain = recorder.learn(operation(1), Name::default());
    let named = recorder.learn(operation(2), recorder.name("layers.7.weight"));
    assert_eq!(recorder.name("layers.7.weight"), recorder.name("layers.7.weight"));
    recorder.begin(plain, 5, 4);
    recorder.end_at_pace(Pace::Instant);
    recorder.begin(named, 6, 1 << 20);
    let records: Vec<FlightOperation> = recorder.records().collect();
    let [latest, before] = &records[..] else {
        panic!("two operations, got {records:?}");
    };
    assert_eq!(latest.to_string(), "all_reduce #6 (sum, f32 x 2, one_shot) (layers.7.weight)");
    assert_eq!(latest.ended_ago, None);
    assert_eq!(before.operation.seq, 5);
    assert!(before.ended_ago.is_some_and(|ago| ago <= before.started_ago));
}

#[test]
fn only_what_takes_time_is_timed() {
    let waited = Duration::from_nanos(1);
    assert_eq!(Pace::of(4, Duration::ZERO), Pace::Instant);
    assert_eq!(Pace::of(4, waited), Pace::Timed);
    assert_eq!(Pace::of(1 << 20, Duration::ZERO), Pace::Timed);
    let recorder = Recorder::default();
    let call = recorder.learn(operation(1), Name::default());
    for (pace, took_time) in [(Pace::Instant, false), (Pace::Timed, true)] {
        recorder.begin(call, 0, 1 << 20);
        thread::sleep(Duration::from_millis(2));
        recorder.end_at_pace(pace);
        let record = recorder.records().next().unwrap();
        let took = record.started_ago - record.ended_ago.unwrap();
        assert_eq!(took >= Duration::from_millis(2), took_time, "{pace:?}: {took:?}");
    }
}

#[test]
fn what_was_withdrawn_never_was() {
    let recorder = Recorder::default();
    let call = recorder.learn(operation(1), Name::default());
    recorder.begin(call, 0, 4);
    recorder.withdraw();
    assert_eq!(recorder.records().count(), 0);
    recorder.begin(call, 0, 4);
    assert_eq!(recorder.records().count(), 1);
}

#[test]
fn what_waited_for_its_turn_says_since_when() {
    let recorder = Recorder::default();
    let call = recorder.learn(operation(1), Name::default());
    let enqueued = recorder.enqueue();
    thread::sleep(Duration::from_millis(2));
    recorder.dequeue(enqueued);
    // Withdrawn and begun again, it has waited all the same.
    recorder.begin(call, 0, 1 << 20);
    recorder.withdraw();
    recorder.begin(call, 0, 1 << 20);
    recorder.end_at_pace(Pace::Timed);
    // The second operation of the same turn has not.
    recorder.begin(call, 1, 1 << 20);
    let records: Vec<FlightOperation> = recorder.records().collect();
    assert_eq!(records[0].enqueued_ago, None);
    let queued = records[1].enqueued_ago.unwrap() - records[1].started_ago;
    assert!(queued >= Duration::from_millis(2), "{queued:?}");
    recorder.dequeue(recorder.enqueue());
    recorder.dequeue(Enqueued::default());
    recorder.begin(call, 2, 4);
    assert_eq!(recorder.records().next().unwrap().enqueued_ago, None);
}

#[test]
fn the_latest_operations_and_calls_are_kept() {
    let recorder = Recorder::default();
    let first = recorder.learn(operation(0), Name::default());
    recorder.begin(first, 0, 4);
    let mut call = first;
    for count in 1..=CALLS_MAX as u64 {
        call = recorder.learn(operation(count), Name::default());
    }
    assert_eq!(recorder.records().count(), 0, "the first call is forgotten");
    for seq in 0..3 * ENTRIES {
        recorder.begin(call, seq, 4);
        recorder.end_at_pace(Pace::Instant);
    }
    let seqs: Vec<u64> = recorder.records().map(|record| record.operation.seq).collect();
    let kept: Vec<u64> = (2 * ENTRIES..3 * ENTRIES).rev().collect();
    assert_eq!(seqs, kept);
}

/// Each operation's number says which call it must be.
#[test]
fn a_reader_never_sees_half_of_two_operations() {
    let recorder = Recorder::default();
    let calls: Vec<CallIndex> =
        (0..8).map(|count| recorder.learn(operation(count), Name::default())).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seq in 0..200_000 {
                recorder.begin(calls[seq % 8], seq as u64, 4);
                recorder.end_at_pace(Pace::Instant);
            }
            done.store(true, Ordering::Release);
        });
        let mut read = 0;
        while !done.load(Ordering::Acquire) || read == 0 {
            for record in recorder.records() {
                let Operation { seq, count, .. } = record.operation;
                assert_eq!(seq % 8, count);
                read += 1;
            }
        }
    });
}

#[test]
fn waits_add_up_and_progress_is_reported() {
    let recorder = Recorder::default();
    let call = recorder.learn(operation(1), Name::default());
    for waited_ms in [0, 3, 4] {
        recorder.begin(call, 0, 4);
        recorder.end(Collective::AllReduce, 4, Duration::from_millis(waited_ms));
    }
    let collective = Collective::Transfer { source: Rank::new(0), target: Rank::new(1) };
    let pair = Operation { collective, ..operation(1) };
    recorder.begin(recorder.learn(pair, Name::default()), 0, 4);
    thread::sleep(Duration::from_millis(2));
    recorder.end(collective, 4, Duration::from_millis(2));
    let (waited, counted) = recorder.waited();
    assert_eq!(waited, Duration::from_millis(7));
    assert!(counted > Duration::ZERO);
    recorder.begin(call, 3, 1 << 20);
    thread::sleep(Duration::from_millis(2));
    assert!(recorder.waited().0 >= waited + Duration::from_millis(2));
    assert!(recorder.progress().is_empty());
    recorder.set_step(0);
    assert_eq!(recorder.progress().step.unwrap().number, 0);
    recorder.set_phase(recorder.name("data loading"));
    let progress = recorder.progress().to_string();
    assert!(progress.starts_with("step 0 for 0."), "{progress}");
    assert!(progress.contains(" s, \"data loading\" for 0."), "{progress}");
}
