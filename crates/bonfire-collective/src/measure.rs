//! What benchmarks need to see of the inside. Not for programs.

use std::time::Duration;

use bonfire_plan::wire::{CallSite, Operation};
use bonfire_plan::{Algorithm, Collective, DType, ReduceOp};

use crate::platform::clock;
use crate::recorder::{Name, Recorder};

/// How long the flight recorder takes for so many operations on `bytes` bytes, each of which has waited.
pub fn record_operations(count: u64, bytes: usize) -> Duration {
    let recorder = Recorder::default();
    let operation = Operation {
        group: 0,
        seq: 0,
        collective: Collective::AllReduce,
        algorithm: Algorithm::OneShot,
        dtype: DType::U8,
        reduce: Some(ReduceOp::Sum),
        count: bytes as u64,
        layout: 0,
        call_site: CallSite::default(),
    };
    let call = recorder.learn(operation, Name::default());
    let started = clock::now();
    for seq in 0..count {
        recorder.begin(call, seq, bytes);
        recorder.end(bytes, Duration::from_nanos(1));
    }
    clock::since(started)
}
