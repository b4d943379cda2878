//! What is queued, and when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bonfire_collective::GroupOptions;
use bonfire_plan::DType;
use bonfire_plan::buckets::{Assignment, Extent};
use bonfire_testkit::local;

use super::*;
use crate::reducer::bucket::layout::BucketLayout;
use crate::reducer::timing::Stopwatch;
use crate::values::DeviceTensor;
use crate::values::{HostSlice, Scale};
use double::{Double, Memory};

pub(crate) mod double;

/// Three parameters in one bucket and one in another; the second begins at the next multiple of 16 bytes.
const SIZES: [usize; 4] = [3, 4, 1, 2];

fn extents() -> Vec<Extent> {
    let extent = |&elems| Extent { dtype: DType::F32, elems };
    SIZES.iter().map(extent).collect()
}

fn assignments() -> Vec<Assignment> {
    [vec![0, 1, 2], vec![3]]
        .into_iter()
        .map(|parameters| Assignment {
            division: bonfire_plan::Division::Whole,
            dtype: DType::F32,
            parameters,
        })
        .collect()
}

fn layouts() -> Vec<BucketLayout> {
    assignments().iter().map(|a| BucketLayout::aligned(a, &extents())).collect()
}

type Log = Arc<Mutex<Vec<String>>>;

fn buckets(group: &bonfire_collective::ProcessGroup, timing: Timing) -> (DeviceBuckets, Log) {
    let engine = Double::new(group, timing);
    let log = Arc::clone(&engine.log);
    let mut buckets = DeviceBuckets::new(Box::new(engine));
    buckets.assign(layouts(), false).unwrap();
    (buckets, log)
}

/// Runs `body` on some ranks; what it returns on the first.
fn on_ranks<R: Send>(
    ranks: u32,
    timing: Timing,
    body: impl Fn(u32, DeviceBuckets, Log) -> R + Sync,
) -> R {
    let mut all = local(ranks, GroupOptions::default(), |group| {
        let (buckets, log) = buckets(&group, timing);
        body(group.rank().get(), buckets, log)
    });
    all.swap_remove(0)
}

/// What was queued since it was last asked, each with its bucket and its range.
fn drain(log: &Log) -> Vec<String> {
    let entries = std::mem::take(&mut *log.lock().unwrap());
    entries
        .iter()
        .map(|entry| {
            let name = entry.split([' ', '{']).next().unwrap();
            let number = |field: &str| {
                let (_, rest) = entry.split_once(&format!("{field}: "))?;
                rest.split([',', ' ']).next().map(str::to_owned)
            };
            let parts = [Some(name.to_owned()), number("bucket"), number("range")];
            parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
        })
        .collect()
}

fn ones(elems: usize) -> DeviceTensor {
    double::tensor(HostSlice::F32(&vec![1.0; elems]))
}

fn target(slot: usize) -> (DeviceTensor, Arc<Memory>) {
    double::zeros(DType::F32, SIZES[slot])
}

fn values(memory: &Memory) -> Vec<f32> {
    let values = memory.lock().unwrap();
    let data = values.slice(0..values.len()).to_tensor_data(&[values.len()]);
    data.as_slice::<f32>().unwrap().to_vec()
}

/// All gradients of a pass, and the averages.
fn step(buckets: &mut DeviceBuckets) -> Vec<Arc<Memory>> {
    buckets.reopen().unwrap();
    for (slot, elems) in SIZES[..3].iter().enumerate() {
        assert!(buckets.put(0, slot, Some(ones(*elems))));
    }
    buckets.send(0, Scale::One, 1.0).unwrap();
    assert!(buckets.put(1, 0, Some(ones(2))));
    buckets.send(1, Scale::One, 1.0).unwrap();
    deliver(buckets)
}

fn deliver(buckets: &mut DeviceBuckets) -> Vec<Arc<Memory>> {
    let (targets, seen): (Vec<_>, Vec<_>) = (0..4)
        .map(|slot| {
            let (tensor, memory) = target(slot);
            ((slot / 3, slot % 3, tensor), memory)
        })
        .unzip();
    let (mut computing, mut waiting) = (Stopwatch::default(), Stopwatch::default());
    buckets.deliver(Scale::One, targets, &mut computing, &mut waiting).unwrap();
    seen
}

#[test]
fn a_bucket_is_one_launch_there_and_one_back_behind_what_the_model_does() {
    let log = on_ranks(1, Timing::Overlapped, |_, mut buckets, log| {
        step(&mut buckets);
        drain(&log)
    });
    let first = ["Behind", "Pack 0", "Run 0", "Behind", "Pack 1", "Run 1"];
    let last = ["Behind", "Unpack 0", "Unpack 1", "Computed", "settle"];
    assert_eq!(log, [&first[..], &last[..]].concat());
}

#[test]
fn the_host_waits_for_a_step_only_at_the_next_one() {
    let log = on_ranks(2, Timing::Ordered, |_, mut buckets, log| {
        let seen = step(&mut buckets);
        let first = drain(&log);
        assert_eq!(values(&seen[0]), [1.0; 3]);
        buckets.accumulate(0, 0, ones(3));
        buckets.keep(Scale::One).unwrap();
        step(&mut buckets);
        (first, drain(&log))
    });
    let sent = ["Behind", "Pack 0", "Run 0", "Behind", "Pack 1", "Run 1"];
    let handed_out = ["Behind", "Unpack 0", "Unpack 1", "Ahead"];
    assert_eq!(log.0, [&sent[..], &handed_out[..]].concat());
    // One wait behind the other's work, and never one for its own.
    let kept = ["settle", "Behind", "Pack 0", "Keep 0 0..3", "Ahead", "settle"];
    let sent_again = ["Behind", "Pack 0", "Add 0 0..3", "Run 0", "Behind", "Pack 1", "Run 1"];
    assert_eq!(log.1, [&kept[..], &sent_again[..], &handed_out[..]].concat());
}

#[test]
fn ranks_that_cannot_overlap_meet_before_anything_is_sent() {
    let log = on_ranks(2, Timing::Apart, |_, mut buckets, log| {
        let seen = step(&mut buckets);
        assert_eq!(values(&seen[0]), [1.0; 3]);
        drain(&log)
    });
    let expected = [
        "Computed", "Meet", "Pack 0", "Run 0", "Pack 1", "Run 1", "Unpack 0", "Unpack 1", "settle",
    ];
    assert_eq!(log, expected);
}

#[test]
fn slots_without_a_gradient_are_cleared_together_and_averages_are_those_of_all_ranks() {
    let log = on_ranks(2, Timing::Overlapped, |rank, mut buckets, log| {
        buckets.reopen().unwrap();
        assert!(buckets.put(0, 0, Some(ones(3))));
        let more = |elems| (rank == 1).then(|| ones(elems));
        assert_eq!(buckets.put(0, 1, more(4)), rank == 1);
        assert_eq!(buckets.put(0, 2, more(1)), rank == 1);
        buckets.send(0, Scale::One, 1.0).unwrap();
        assert!(!buckets.put(1, 0, None));
        buckets.send(1, Scale::One, 1.0).unwrap();
        let seen = deliver(&mut buckets);
        assert_eq!(values(&seen[0]), [1.0; 3]);
        assert_eq!(values(&seen[1]), [0.5; 4]);
        assert_eq!(values(&seen[2]), [0.5]);
        assert_eq!(values(&seen[3]), [0.0; 2]);
        drain(&log)
    });
    let sent = ["Behind", "Pack 0", "Clear 0 4..9", "Run 0"];
    assert_eq!(log[..4], sent, "{log:?}");
    assert_eq!(log[4..7], ["Behind", "Clear 1 0..2", "Run 1"], "{log:?}");
}

/// What is kept is added slot by slot: what one micro-batch lacks is what the others had.
#[test]
fn earlier_micro_batches_are_added_where_they_had_a_gradient() {
    let log = on_ranks(1, Timing::Overlapped, |_, mut buckets, log| {
        buckets.accumulate(0, 0, ones(3));
        buckets.accumulate(0, 1, ones(4));
        buckets.keep(Scale::By(2.0)).unwrap();
        let first = ["Behind", "Pack 0", "Scale 0", "Keep 0 0..8", "settle"];
        assert_eq!(drain(&log), first);
        buckets.accumulate(0, 1, ones(4));
        buckets.accumulate(0, 2, ones(1));
        buckets.keep(Scale::One).unwrap();
        let second = ["Behind", "Pack 0", "KeepMore 0 4..8", "Keep 0 8..9", "settle"];
        assert_eq!(drain(&log), second);

        buckets.reopen().unwrap();
        assert!(buckets.put(0, 0, None), "an earlier one left something");
        assert!(buckets.put(0, 1, Some(ones(4))));
        assert!(buckets.put(0, 2, None));
        buckets.send(0, Scale::One, 0.5).unwrap();
        assert!(!buckets.put(1, 0, None));
        buckets.send(1, Scale::One, 0.5).unwrap();
        let seen = deliver(&mut buckets);
        assert_eq!(values(&seen[0]), [1.0; 3]);
        assert_eq!(values(&seen[1]), [2.0; 4]);
        assert_eq!(values(&seen[2]), [0.5]);
        let log = drain(&log);
        buckets.end_accumulation();
        let seen = step(&mut buckets);
        assert_eq!(values(&seen[1]), [1.0; 4], "what was kept is forgotten");
        log
    });
    let expected =
        ["Behind", "Pack 0", "Restore 0 0..3", "Add 0 4..8", "Restore 0 8..9", "Scale 0", "Run 0"];
    assert_eq!(log[..7], expected, "{log:?}");
}

#[test]
fn what_a_rank_computes_itself_is_not_taken_for_communication() {
    const COMPUTING: Duration = Duration::from_millis(20);
    for timing in [Timing::Overlapped, Timing::Apart] {
        local(1, GroupOptions::default(), |group| {
            let mut engine = Double::new(&group, timing);
            engine.computing = COMPUTING;
            let engine = Box::new(engine);
            let mut buckets = DeviceBuckets::new(engine);
            buckets.assign(layouts(), false).unwrap();
            let (mut computing, mut waiting) = (Stopwatch::default(), Stopwatch::default());
            buckets.deliver(Scale::One, Vec::new(), &mut computing, &mut waiting).unwrap();
            assert!(computing.total() >= COMPUTING, "{computing:?}");
        });
    }
}

/// Says when it is dropped.
struct Watched(Arc<AtomicBool>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nobody may write to a gradient's memory before it has been packed, which nobody sees but by waiting,
/// or before the backward pass, which may still read it, is over.
#[test]
fn gradients_are_read_only_until_they_are_released_or_have_arrived() {
    for released in [false, true] {
        on_ranks(1, Timing::Overlapped, |_, mut buckets, _| {
            let dropped = Arc::new(AtomicBool::new(false));
            buckets.reopen().unwrap();
            let mut first = ones(3);
            first.reader = Some(Box::new(Watched(Arc::clone(&dropped))));
            buckets.put(0, 0, Some(first));
            buckets.put(0, 1, None);
            buckets.put(0, 2, None);
            buckets.send(0, Scale::One, 1.0).unwrap();
            buckets.put(1, 0, None);
            buckets.send(1, Scale::One, 1.0).unwrap();
            assert!(!dropped.load(Ordering::Relaxed));
            if released {
                buckets.release();
                assert!(dropped.load(Ordering::Relaxed));
            }
            deliver(&mut buckets);
            assert!(dropped.load(Ordering::Relaxed));
        });
    }
}

#[test]
#[should_panic(expected = "a gradient must fill its slot")]
fn a_gradient_of_another_size_is_refused() {
    let one = bonfire_collective::WorldSize::ONE;
    let groups = bonfire_collective::ProcessGroup::local(one, GroupOptions::default()).unwrap();
    let (mut buckets, _) = buckets(&groups[0], Timing::Overlapped);
    buckets.put(0, 0, Some(ones(2)));
}
