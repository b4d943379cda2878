//! What the ranks of a job take of the host's memory. Alone in its process, which it counts.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Barrier;

use bonfire_collective::{GroupOptions, Rank};
use bonfire_testkit::on_hosts;

/// Bytes of all regions that this process made and holds.
fn committed_bytes() -> u64 {
    let regions = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let target = fs::read_link(&path).ok()?;
        let is_region = target.to_str()?.starts_with("/memfd:bonfire-region");
        // Follows the link, to the file that has no name.
        let status = is_region.then(|| fs::metadata(&path))?.ok()?;
        Some((status.ino(), status.blocks() * 512))
    });
    // A region may be open twice.
    regions.collect::<HashMap<_, _>>().values().sum()
}

/// What ranks on these hosts take, all of which are here.
fn taken_by(hosts: &[&str]) -> u64 {
    let barrier = Barrier::new(hosts.len());
    let taken = on_hosts(hosts, GroupOptions::default(), |group| {
        barrier.wait();
        let is_first = group.rank() == Rank::new(0);
        let taken = if is_first { committed_bytes() } else { 0 };
        barrier.wait();
        taken
    });
    taken[0]
}

#[test]
fn only_ranks_of_one_host_have_memory_in_common() {
    let alone = taken_by(&["a", "b", "c"]);
    assert_eq!(alone, 0, "three hosts share nothing");
    let pair = taken_by(&["a", "a"]);
    assert!(pair > 0, "two ranks of a host share rings");
    let pairs = taken_by(&["a", "a", "b", "b", "c", "c"]);
    assert!(
        pairs <= 3 * pair,
        "{pairs} bytes for three pairs, {pair} for one: rings to ranks of other hosts take memory"
    );
}
