//! A slow rank is named before it is fatal, with what it costs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::thread;
use std::time::{Duration, Instant};

use bonfire_collective::{GroupOptions, ReduceOp, StragglerReport, TransportKind};
use bonfire_testkit::connected;

/// What the slow rank needs more for every step, which is the least that it can cost the others.
const LATE: Duration = Duration::from_millis(20);

/// Steps until rank 0 has compared the ranks; what every rank heard of that.
fn watch(transport: TransportKind, late: Option<u32>) -> Vec<StragglerReport> {
    let options = GroupOptions::default().with_transport(Some(transport));
    let limit = Instant::now() + Duration::from_secs(100);
    connected(3, options, |group| {
        let mut step = 0;
        loop {
            group.progress(step);
            step += 1;
            thread::sleep(Duration::from_millis(5));
            if Some(group.rank().get()) == late {
                thread::sleep(LATE);
            }
            let known = [u8::from(group.stragglers().is_some())];
            let mut all_know = known;
            group.all_reduce(&mut all_know, ReduceOp::Min).unwrap();
            if all_know == [1] {
                return group.stragglers().unwrap();
            }
            assert!(Instant::now() < limit, "no report comes");
        }
    })
}

#[test]
fn a_slow_rank_is_named_on_all_ranks_with_what_it_costs() {
    let watched = |transport: TransportKind| {
        for report in watch(transport, Some(1)) {
            // A busy machine may slow another rank, too, but less.
            let Some(straggler) = report.stragglers.first() else {
                panic!("{transport}: {report:?}");
            };
            assert_eq!(straggler.rank.get(), 1, "{transport}: {report:?}");
            let lost = report.lost_per_step(straggler).unwrap();
            assert!(lost >= LATE / 2, "{transport}: {report:?}");
            assert!(report.to_string().starts_with("rank 1 is slow: "), "{report}");
        }
    };
    // At the same time: a report takes ten seconds, in which ranks mostly sleep.
    thread::scope(|scope| {
        for transport in [TransportKind::Shm, TransportKind::Tcp] {
            scope.spawn(move || watched(transport));
        }
    });
}
