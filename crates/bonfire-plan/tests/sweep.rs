//! Every plan of every algorithm holds in every world up to 64 ranks, for counts that do not divide, with one slot.
//!
//! Exact costs are checked where the plans of an algorithm are: here only that plans are right.

mod support;

use bonfire_plan::{Algorithm, Collective, Rank};
use support::{Sizes, UNCHUNKED, compute, possible_count, prove, schedule};

const RANKS_MAX: usize = 64;

/// Counts around the number of ranks, one that is prime, and chunks of a few elements and of all.
fn sizes(collective: Collective, ranks: usize) -> Vec<Sizes> {
    let counts = match collective {
        Collective::Barrier => vec![0],
        // Blocks of no, of one and of a few elements.
        Collective::AllToAll => [0, 1, 7].map(|len| len * ranks * ranks).into(),
        _ => vec![0, 1, ranks - 1, ranks, ranks + 1, 127],
    };
    let mut sizes = Vec::new();
    for count in counts {
        for chunk in [5, UNCHUNKED] {
            assert_eq!(count, possible_count(collective, ranks, count));
            sizes.push(Sizes { ranks, count, chunk });
        }
    }
    sizes
}

/// By every algorithm. The worst order of any world is the one that the algorithm declares.
fn holds_in(collective: Collective, ranks: usize) {
    for &algorithm in Algorithm::candidates(collective) {
        for sizes in sizes(collective, ranks) {
            let schedule = schedule(collective, algorithm, sizes);
            let report = prove(&schedule);
            if ranks <= 5 {
                compute(&schedule, 17);
            }
            assert!(report.order <= algorithm.order(collective), "{schedule}");
        }
    }
}

fn holds_everywhere(collective: Collective) {
    for ranks in 1..=RANKS_MAX {
        holds_in(collective, ranks);
    }
}

/// With the root in the first place, in the last, and in between.
fn holds_for_every_root(collective: impl Fn(Rank) -> Collective) {
    for ranks in 1..=RANKS_MAX {
        let mut roots = vec![0, ranks / 2, ranks - 1];
        roots.dedup();
        for root in roots {
            let root = Rank::new(u32::try_from(root).expect("a small world"));
            holds_in(collective(root), ranks);
        }
    }
}

macro_rules! everywhere {
    ($($name:ident: $Collective:ident;)+) => {$(
        #[test]
        fn $name() {
            holds_everywhere(Collective::$Collective);
        }
    )+};
}

macro_rules! every_root {
    ($($name:ident: $Collective:ident;)+) => {$(
        #[test]
        fn $name() {
            holds_for_every_root(|root| Collective::$Collective { root });
        }
    )+};
}

everywhere! {
    all_reduce: AllReduce;
    reduce_scatter: ReduceScatter;
    all_gather: AllGather;
    all_to_all: AllToAll;
    barrier: Barrier;
}

every_root! {
    broadcast: Broadcast;
    reduce: Reduce;
    gather: Gather;
    scatter: Scatter;
}

/// Any two of the first five ranks, in worlds with and without others.
#[test]
fn pairs_transfer_and_exchange() {
    for ranks in 2..=7 {
        for first in 0..ranks.min(5) {
            for second in first + 1..ranks.min(5) {
                let [first, second] = [first, second].map(|rank| Rank::new(rank as u32));
                for (source, target) in [(first, second), (second, first)] {
                    holds_in(Collective::Transfer { source, target }, ranks);
                }
                holds_in(Collective::Exchange { first, second }, ranks);
            }
        }
    }
}
