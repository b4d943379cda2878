//! Timeouts of ranks while one of them reads or writes files.

use std::ops::Deref;
use std::time::Duration;

use bonfire_collective::ProcessGroup;
use burn::module::Module;

/// The timeout while rank 0 reads or writes the smallest files, unless the group has a longer one.
const FILES_TIMEOUT: Duration = Duration::from_secs(600);

/// The throughput of a slow network file system.
const BYTES_PER_SECOND_MIN: u64 = 20 << 20;

/// Returns the group with a timeout for operations before which rank 0 reads or writes the parameters of a model,
/// perhaps with two moments of an optimizer for each.
pub fn with_file_timeout<M: Module>(group: &ProcessGroup, model: &M) -> ProcessGroup {
    with_timeout_for(group, 3 * 4 * model.num_params() as u64)
}

fn with_timeout_for(group: &ProcessGroup, bytes: u64) -> ProcessGroup {
    let files = FILES_TIMEOUT + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
    group.with_timeout(group.timeout().max(files))
}

/// The steps in which kernels are compiled and tuned: all are used in the first; the second has the hooks at other
/// places, so that others are fused.
const STEPS: u32 = 2;

/// A group whose operations may take its start-up time for the first steps, because each rank compiles its kernels on
/// first use, and one may have to while another finds them in a cache.
#[derive(Clone, Debug)]
pub(crate) struct WarmUp {
    group: ProcessGroup,
    settled: Duration,
    steps_left: u32,
}

impl WarmUp {
    pub(crate) fn new(group: &ProcessGroup, compiles: bool) -> Self {
        let settled = group.timeout();
        let longer = settled.max(group.options().startup_timeout);
        let (timeout, steps_left) = if compiles { (longer, STEPS) } else { (settled, 0) };
        Self { group: group.with_timeout(timeout), settled, steps_left }
    }

    pub(crate) fn end_step(&mut self) {
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.steps_left == 0 {
            self.group = self.group.with_timeout(self.settled);
        }
    }
}

impl Deref for WarmUp {
    type Target = ProcessGroup;

    fn deref(&self) -> &ProcessGroup {
        &self.group
    }
}

#[cfg(test)]
mod tests {
    use bonfire_collective::{GroupOptions, WorldSize};

    use super::*;

    fn group(timeout: u64) -> ProcessGroup {
        let options = GroupOptions::default()
            .with_timeout(Duration::from_secs(timeout))
            .with_startup_timeout(Duration::from_secs(300));
        let one = WorldSize::new(1).unwrap();
        ProcessGroup::local(one, options).unwrap().remove(0)
    }

    #[test]
    fn the_first_two_steps_have_the_start_up_time_where_kernels_are_compiled() {
        let mut seconds = Vec::new();
        for (timeout, compiles) in [(60, true), (60, false), (1000, true)] {
            let mut group = WarmUp::new(&group(timeout), compiles);
            for _ in 0..4 {
                seconds.push(group.timeout().as_secs());
                group.end_step();
            }
        }
        let expected = [[300, 300, 60, 60], [60; 4], [1000; 4]];
        assert_eq!(seconds, expected.concat());
    }

    #[test]
    fn files_have_ten_minutes_and_more_if_they_are_large() {
        let seconds = |timeout, bytes| {
            let group = with_timeout_for(&group(timeout), bytes);
            group.timeout().as_secs()
        };
        assert_eq!((seconds(60, 1000), seconds(1000, 1000)), (600, 1000));
        // 7 billion parameters with their moments.
        assert!(seconds(60, 84 << 30) > 4000);
    }
}
