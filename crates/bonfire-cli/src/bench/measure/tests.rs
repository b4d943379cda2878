use super::*;
use crate::quantity::sizes;
use bonfire_collective::{GroupOptions, Rank};
use bonfire_testkit::local;
use clap::ValueEnum;

fn measurement(operation: Operation, form: Form, dtype: DType, redop: ReduceOp) -> Measurement {
    Measurement {
        operation,
        form,
        dtype,
        parameters: Parameters { redop, root: Rank::new(0) },
        buffers: Home::Region,
        iters: 5,
        time_min: Duration::ZERO,
        warmup: 2,
        rotate_bytes: 1 << 14,
    }
}

#[test]
fn sizes_step_up_to_the_largest() {
    let sizes = |block_bytes| whole_blocks(sizes(2, 64, 2).unwrap(), block_bytes);
    assert_eq!(sizes(4), [4, 8, 16, 32, 64]);
    assert_eq!(sizes(1), [2, 4, 8, 16, 32, 64]);
    assert_eq!(sizes(12), [12, 24, 36, 72]);
    assert_eq!(sizes(0), [0]);
}

#[test]
fn a_size_takes_what_is_typical_of_its_repeats() {
    let us = Duration::from_micros;
    let timing = |times: [u64; 3], wrong| Timing {
        min: us(times[0]),
        median: us(times[1]),
        mean: us(times[2]),
        samples: 10,
        batch: 2,
        algorithm: Some(Algorithm::TwoShot.name()),
        wrong,
    };
    let repeats = [timing([3, 10, 90], 0), timing([2, 30, 20], 4), timing([5, 20, 40], 1)];
    let all = Timing::typical(&repeats);
    assert_eq!((all.min, all.median, all.mean), (us(2), us(20), us(40)));
    assert_eq!((all.samples, all.batch, all.wrong), (30, 2, 5));
    assert_eq!(Timing::typical(&repeats[..2]).median, us(20));
}

#[test]
fn samples_go_on_until_they_are_many_and_have_lasted_long_enough() {
    let ms = Duration::from_millis;
    let measurement = Measurement {
        time_min: ms(2),
        ..measurement(Operation::AllReduce, Form::InPlace, DType::F32, ReduceOp::Sum)
    };
    let is_enough =
        |samples, timed, spent| measurement.is_enough(Progress { samples, timed, spent });
    assert!(!is_enough(4, ms(2), ms(3)) && is_enough(5, ms(2), ms(3)));
    assert!(!is_enough(50, ms(1), ms(19)) && is_enough(50, ms(1), ms(20)));
    // The ranks agree, though each has a clock of its own, and a group of one comes to an end.
    for ranks in 1..=3 {
        let timings =
            local(ranks, GroupOptions::default(), |group| measurement.time(&group, 64).unwrap());
        for timing in &timings {
            assert!(timing.samples >= measurement.iters, "{timing:?}");
            assert_eq!((timing.samples, timing.wrong), (timings[0].samples, 0));
        }
    }
}

#[test]
fn every_operation_is_right_for_every_number_of_ranks() {
    for &operation in Operation::value_variants() {
        for ranks in 1..=4 {
            let block_bytes = 4 * operation.blocks_per_message(ranks as usize);
            for &form in operation.forms() {
                let measurement = measurement(operation, form, DType::F32, ReduceOp::Sum);
                let timings = local(ranks, GroupOptions::default(), |group| {
                    measurement.time(&group, 333 * block_bytes).unwrap()
                });
                let name = operation.name();
                for timing in timings {
                    assert_eq!(timing.wrong, 0, "{name} of {ranks}");
                    assert!(timing.min <= timing.median, "{name}: {timing:?}");
                    assert!(timing.min <= timing.mean, "{name}: {timing:?}");
                    assert!(timing.batch >= 1, "{name}: {timing:?}");
                    let collective = operation.collective(Rank::new(0));
                    let candidates = Algorithm::candidates(collective);
                    let mut names = candidates.iter().map(|algorithm| algorithm.name());
                    match timing.algorithm {
                        Some(name) => assert!(names.any(|candidate| candidate == name)),
                        None => assert!(operation == Operation::SendRecv && ranks % 2 == 1),
                    }
                }
            }
        }
    }
}

#[test]
fn every_type_and_reduction_is_right() {
    for &dtype in DType::ALL.iter().filter(|&&dtype| dtype != DType::Bool) {
        for &redop in ReduceOp::ALL.iter().filter(|op| op.supports(dtype)) {
            let measurement = measurement(Operation::AllReduce, Form::InPlace, dtype, redop);
            let timings = local(3, GroupOptions::default(), |group| {
                measurement.time(&group, 1000 * dtype.size_bytes()).unwrap()
            });
            assert_eq!(timings[0].wrong, 0, "{redop} of {dtype}");
        }
    }
}
