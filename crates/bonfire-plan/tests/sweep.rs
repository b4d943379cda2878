//! Every plan holds in every world up to 64 ranks, for counts that do not divide, with one slot.
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

/// The worst order of any world is the one that the algorithm declares.
fn holds_in(collective: Collective, algorithm: Algorithm, ranks: usize) {
    for sizes in sizes(collective, ranks) {
        let schedule = schedule(collective, algorithm, sizes);
        let report = prove(&schedule);
        if ranks <= 5 {
            compute(&schedule, 17);
        }
        assert!(report.order <= algorithm.order(collective), "{schedule}");
    }
}

fn holds_everywhere(collective: Collective, algorithm: Algorithm) {
    for ranks in 1..=RANKS_MAX {
        holds_in(collective, algorithm, ranks);
    }
}

/// With the root in the first place, in the last, and in between.
fn holds_for_every_root(algorithm: Algorithm, collective: impl Fn(Rank) -> Collective) {
    for ranks in 1..=RANKS_MAX {
        let mut roots = vec![0, ranks / 2, ranks - 1];
        roots.dedup();
        for root in roots {
            let root = Rank::new(u32::try_from(root).expect("a small world"));
            holds_in(collective(root), algorithm, ranks);
        }
    }
}

macro_rules! everywhere {
    ($($name:ident: $collective:ident by $algorithm:ident;)+) => {$(
        #[test]
        fn $name() {
            holds_everywhere(Collective::$collective, Algorithm::$algorithm);
        }
    )+};
}

macro_rules! every_root {
    ($($name:ident: $collective:ident by $algorithm:ident;)+) => {$(
        #[test]
        fn $name() {
            holds_for_every_root(Algorithm::$algorithm, |root| Collective::$collective { root });
        }
    )+};
}

everywhere! {
    halving_doubling_all_reduce: AllReduce by HalvingDoubling;
    halving_doubling_reduce_scatter: ReduceScatter by HalvingDoubling;
    halving_doubling_all_gather: AllGather by HalvingDoubling;
    double_tree_all_reduce: AllReduce by DoubleTree;
    zero_copy_all_reduce: AllReduce by ZeroCopy;
    zero_copy_reduce_scatter: ReduceScatter by ZeroCopy;
    zero_copy_all_gather: AllGather by ZeroCopy;
    one_shot_all_to_all: AllToAll by OneShot;
    pairwise_all_to_all: AllToAll by Pairwise;
}

every_root! {
    double_tree_broadcast: Broadcast by DoubleTree;
    double_tree_reduce: Reduce by DoubleTree;
    zero_copy_broadcast: Broadcast by ZeroCopy;
    two_shot_broadcast: Broadcast by TwoShot;
    zero_copy_reduce: Reduce by ZeroCopy;
    binomial_reduce: Reduce by Binomial;
    one_shot_reduce: Reduce by OneShot;
    two_shot_reduce: Reduce by TwoShot;
    one_shot_gather: Gather by OneShot;
    one_shot_scatter: Scatter by OneShot;
}

/// Any two of the first five ranks, in worlds with and without others.
#[test]
fn pairs_transfer_and_exchange() {
    for ranks in 2..=7 {
        for first in 0..ranks.min(5) {
            for second in first + 1..ranks.min(5) {
                let [first, second] = [first, second].map(|rank| Rank::new(rank as u32));
                for (source, target) in [(first, second), (second, first)] {
                    let transfer = Collective::Transfer { source, target };
                    holds_in(transfer, Algorithm::OneShot, ranks);
                }
                holds_in(Collective::Exchange { first, second }, Algorithm::OneShot, ranks);
            }
        }
    }
}
