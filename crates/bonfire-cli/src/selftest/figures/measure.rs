//! Times of what is queued on a stream, by the device's own clock.

use std::time::Duration;

use bonfire_collective::ReduceOp;
use bonfire_gpu::Event;

use super::super::collectives::Queue;

/// Repetitions of a measurement; the median counts.
const REPEATS: usize = 5;

/// Operations that are queued back to back.
pub(in crate::selftest) fn iterations(bytes: usize) -> u32 {
    match bytes {
        0..=1_048_576 => 200,
        1_048_577..=33_554_432 => 50,
        _ => 20,
    }
}

/// Seconds per operation on the slowest rank: the median of several batches.
pub(in crate::selftest) fn seconds(
    group: &impl Queue,
    iterations: u32,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for repeat in 0..=REPEATS {
        let elapsed = batch(group, iterations, &mut once)?;
        // The first one warms up.
        if repeat > 0 {
            times.push(elapsed.as_secs_f64() / f64::from(iterations));
        }
    }
    times.sort_by(f64::total_cmp);
    let mut slowest = [times[times.len() / 2]];
    let process = group.process_group();
    process.all_reduce(&mut slowest, ReduceOp::Max)?;
    Ok(slowest[0])
}

/// The time on the device of some operations, begun together on all ranks.
pub(in crate::selftest) fn batch(
    group: &impl Queue,
    iterations: u32,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let stream = group.stream();
    let (begun, done) = (
        Event::timed(group.context())?,
        Event::timed(group.context())?,
    );
    group.synchronize()?;
    group.process_group().barrier()?;
    once()?;
    stream.record(&begun)?;
    for _ in 0..iterations {
        once()?;
    }
    stream.record(&done)?;
    group.synchronize()?;
    Ok(done.since(&begun)?)
}
