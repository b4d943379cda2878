//! Every schedule keeps its promise and costs what the closed forms say, for every world up to 64.

mod support;

use std::num::NonZeroUsize;

use bonfire_plan::{
    Algorithm, Collective, Cost, DType, Order, Rank, RankCost, Schedule, chunks, shard_range,
};
use support::{Sizes, UNCHUNKED, prove, schedule};

const RANKS_MAX: usize = 64;

/// Checks one schedule with one slot and with two; the slots must not change the report.
fn check(collective: Collective, algorithm: Algorithm, sizes: Sizes) {
    let schedule = schedule(collective, algorithm, sizes);
    let report = prove(&schedule);
    assert_eq!(report.order, expected_order(collective, algorithm, sizes), "{schedule}");
    assert_cost(&schedule, &report.cost);
}

/// A ring folds each shard from another rank on; only two operands can change places.
fn expected_order(collective: Collective, algorithm: Algorithm, sizes: Sizes) -> Order {
    let folds = matches!(collective, Collective::AllReduce | Collective::ReduceScatter);
    if folds && algorithm == Algorithm::Ring && sizes.ranks > 2 && sizes.count > 0 {
        Order::Fixed
    } else {
        Order::Canonical
    }
}

fn assert_cost(schedule: &Schedule, cost: &Cost) {
    let world = schedule.world_size();
    for rank in world.ranks() {
        let RankCost { elems_sent, elems_folded, .. } = cost.ranks()[rank.index()];
        if let Some(expected) = expected_elems_sent(schedule, rank) {
            assert_eq!(elems_sent, expected as u64, "{schedule}: elements sent by rank {rank}");
        }
        let expected = expected_elems_folded(schedule, rank);
        assert_eq!(elems_folded, expected as u64, "{schedule}: elements folded by rank {rank}");
    }
    let sum = |of: fn(&RankCost) -> u64| cost.ranks().iter().map(of).sum::<u64>();
    assert_eq!(sum(|rank| rank.frames_sent), sum(|rank| rank.frames_received), "{schedule}");
    assert_eq!(sum(|rank| rank.elems_sent), sum(|rank| rank.elems_received), "{schedule}");
    assert_rounds(schedule, cost);
}

/// The elements a rank sends, exact for shards of any length; `None` where ranks differ by their
/// place in the tree.
fn expected_elems_sent(schedule: &Schedule, rank: Rank) -> Option<usize> {
    let (world, count) = (schedule.world_size(), schedule.count());
    let shard = |rank| shard_range(count, world, rank).len();
    // Reduce-scatter sends every shard but its own, in both algorithms.
    let scattered = count - shard(rank);
    // A ring's all-gather sends every shard but the last one it receives, its next neighbour's.
    let gathered_ring = count - shard(world.next(rank));
    let gathered_direct = (world.len() - 1) * shard(rank);
    match (schedule.collective(), schedule.algorithm()) {
        (Collective::AllReduce, Algorithm::Ring) => Some(scattered + gathered_ring),
        (Collective::AllReduce, Algorithm::TwoShot) => Some(scattered + gathered_direct),
        (Collective::AllReduce, _) => Some((world.len() - 1) * count),
        (Collective::ReduceScatter, _) => Some(scattered),
        (Collective::AllGather, Algorithm::Ring) => Some(gathered_ring),
        (Collective::AllGather, _) => Some(gathered_direct),
        (Collective::Barrier, _) => Some(0),
        _ => None,
    }
}

fn expected_elems_folded(schedule: &Schedule, rank: Rank) -> usize {
    let (world, count) = (schedule.world_size(), schedule.count());
    let own = shard_range(count, world, rank).len();
    match (schedule.collective(), schedule.algorithm()) {
        (Collective::AllReduce, Algorithm::OneShot) => (world.len() - 1) * count,
        // The shards that pass through this rank: all but the one that starts its way here.
        (Collective::AllReduce | Collective::ReduceScatter, Algorithm::Ring) => {
            count - shard_range(count, world, world.prev(rank)).len()
        }
        (Collective::AllReduce | Collective::ReduceScatter, _) => (world.len() - 1) * own,
        _ => 0,
    }
}

/// Rounds are exact where all frames of a round are one chunk, and where all shards have the same
/// number of chunks; in between, frames of unequal shards overlap.
fn assert_rounds(schedule: &Schedule, cost: &Cost) {
    let (world, count) = (schedule.world_size(), schedule.count());
    let ranks = u64::from(world.get());
    let chunks_of = |rank| {
        let range = shard_range(count, world, rank);
        chunks(range, schedule.chunk_elems_max()).len() as u64
    };
    let (most, fewest) = (chunks_of(Rank::new(0)), chunks_of(Rank::new(world.get() - 1)));
    let whole = chunks(bonfire_plan::ElemRange::up_to(count), schedule.chunk_elems_max()).len();
    let phases = match (schedule.collective(), schedule.algorithm()) {
        (Collective::AllReduce, Algorithm::Ring) => 2 * (ranks - 1),
        (_, Algorithm::Ring) => ranks - 1,
        (_, Algorithm::TwoShot) => 2,
        _ => 1,
    };
    match schedule.algorithm() {
        _ if ranks == 1 => assert_eq!((cost.rounds(), cost.rounds_one_port()), (0, 0)),
        Algorithm::OneShot if schedule.collective() == Collective::AllReduce => {
            assert_eq!(cost.rounds(), whole as u64, "{schedule}");
            assert_eq!(cost.rounds_one_port(), whole as u64 * (ranks - 1), "{schedule}");
        }
        Algorithm::Ring | Algorithm::OneShot | Algorithm::TwoShot => {
            let bounds = phases * fewest..=phases * most;
            assert!(bounds.contains(&cost.rounds()), "{schedule}: {} rounds", cost.rounds());
        }
        Algorithm::Binomial if whole == 1 => {
            assert_eq!(cost.rounds(), u64::from(ranks.ilog2()), "{schedule}");
            assert_eq!(cost.rounds_one_port(), log2_ceil(ranks), "{schedule}");
        }
        Algorithm::Binomial => assert!(cost.rounds_one_port() >= whole as u64, "{schedule}"),
        _ => {
            assert_eq!(cost.rounds(), log2_ceil(ranks), "{schedule}");
            assert_eq!(cost.rounds_one_port(), log2_ceil(ranks), "{schedule}");
        }
    }
}

fn log2_ceil(number: u64) -> u64 {
    u64::from(number.next_power_of_two().ilog2())
}

/// All worlds, all sizes, and chunks of one element, of a few, and of everything.
fn check_everywhere(collective: Collective, algorithm: Algorithm) {
    for ranks in 1..=RANKS_MAX {
        check_world(collective, algorithm, ranks);
    }
}

fn check_world(collective: Collective, algorithm: Algorithm, ranks: usize) {
    let mut counts = vec![0, 1, ranks - 1, ranks, ranks + 1, 7, 61, 127, 257];
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        // A chunk of one element where frames are few; three elements divide no prime evenly.
        let shard_chunks = [1, 3, UNCHUNKED];
        let buffer_chunks = [1, 3, 50, UNCHUNKED];
        let frames_max = 24;
        let per_shard =
            algorithm != Algorithm::Binomial && !is_one_shot_all_reduce(collective, algorithm);
        let chunk_sizes: &[usize] = if per_shard { &shard_chunks } else { &buffer_chunks };
        let unit = if per_shard { count.div_ceil(ranks) } else { count };
        for &chunk in chunk_sizes {
            if unit.div_ceil(chunk) <= frames_max {
                check(collective, algorithm, Sizes { ranks, count, chunk });
            }
        }
    }
}

fn is_one_shot_all_reduce(collective: Collective, algorithm: Algorithm) -> bool {
    collective == Collective::AllReduce && algorithm == Algorithm::OneShot
}

macro_rules! everywhere {
    ($($name:ident: $collective:ident by $algorithm:ident;)+) => {$(
        #[test]
        fn $name() {
            check_everywhere(Collective::$collective, Algorithm::$algorithm);
        }
    )+};
}

everywhere! {
    ring_all_reduce: AllReduce by Ring;
    ring_reduce_scatter: ReduceScatter by Ring;
    ring_all_gather: AllGather by Ring;
    one_shot_all_reduce: AllReduce by OneShot;
    two_shot_all_reduce: AllReduce by TwoShot;
    one_shot_reduce_scatter: ReduceScatter by OneShot;
    one_shot_all_gather: AllGather by OneShot;
}

#[test]
fn binomial_broadcast_holds_everywhere() {
    for ranks in 1..=RANKS_MAX {
        let last = ranks - 1;
        let mut roots = if ranks <= 9 { (0..ranks).collect() } else { vec![0, 1, ranks / 2, last] };
        roots.dedup();
        for root in roots {
            let root = Rank::new(u32::try_from(root).unwrap());
            check_world(Collective::Broadcast { root }, Algorithm::Binomial, ranks);
        }
    }
}

#[test]
fn dissemination_barrier_holds_everywhere() {
    for ranks in 1..=RANKS_MAX {
        let sizes = Sizes { ranks, count: 0, chunk: UNCHUNKED };
        check(Collective::Barrier, Algorithm::Dissemination, sizes);
    }
}

#[test]
fn worlds_beyond_one_word_of_ranks_hold() {
    for ranks in [65, 127, 130] {
        for collective in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather]
        {
            for algorithm in [Algorithm::Ring, Algorithm::OneShot] {
                check(collective, algorithm, Sizes { ranks, count: 257, chunk: UNCHUNKED });
            }
        }
        let sizes = Sizes { ranks, count: 0, chunk: 1 };
        check(Collective::Barrier, Algorithm::Dissemination, sizes);
    }
}

/// The verifier's work depends on the ranges, not on the elements in them.
#[test]
fn a_buffer_of_a_tebi_element_is_checked_as_fast_as_a_small_one() {
    let count = 1 << 40;
    let sizes = Sizes { ranks: 8, count, chunk: count };
    check(Collective::AllReduce, Algorithm::Ring, sizes);
    check(Collective::AllReduce, Algorithm::TwoShot, sizes);
    check(Collective::Broadcast { root: Rank::new(5) }, Algorithm::Binomial, sizes);
}

/// 2 (n - 1) rounds and 2 (n - 1) / n S bytes: the closed form of a ring, where shards are equal.
#[test]
fn a_ring_all_reduce_costs_two_n_minus_one_over_n_of_the_buffer() {
    for ranks in 1..=RANKS_MAX {
        let sizes = Sizes { ranks, count: 12 * ranks, chunk: UNCHUNKED };
        for (algorithm, rounds) in [(Algorithm::Ring, 2 * (ranks - 1)), (Algorithm::TwoShot, 2)] {
            let schedule = schedule(Collective::AllReduce, algorithm, sizes);
            let cost = bonfire_plan::check(&schedule, NonZeroUsize::MIN).unwrap().cost;
            let buffer_bytes = (12 * ranks * 4) as u64;
            let expected_bytes = 2 * (ranks as u64 - 1) * buffer_bytes / ranks as u64;
            let world_is_alone = ranks == 1;
            assert_eq!(cost.rounds(), if world_is_alone { 0 } else { rounds as u64 });
            for rank in cost.ranks() {
                assert_eq!(rank.bytes_sent(DType::F32).get(), expected_bytes);
                assert_eq!(rank.bytes_received(DType::F32).get(), expected_bytes);
            }
            assert_eq!(cost.bytes_sent_max(DType::F32).get(), expected_bytes);
            let total = expected_bytes * ranks as u64;
            assert_eq!(cost.bytes_sent_total(DType::F32).get(), total);
        }
    }
}

/// One round and (n - 1) S bytes.
#[test]
fn a_one_shot_all_reduce_sends_the_buffer_to_everyone() {
    for ranks in 2..=RANKS_MAX {
        let sizes = Sizes { ranks, count: 100, chunk: UNCHUNKED };
        let schedule = schedule(Collective::AllReduce, Algorithm::OneShot, sizes);
        let cost = bonfire_plan::check(&schedule, NonZeroUsize::MIN).unwrap().cost;
        assert_eq!(cost.rounds(), 1);
        assert_eq!(cost.bytes_sent_max(DType::BF16).get(), (ranks as u64 - 1) * 200);
    }
}

/// Where a frame takes one unit of time, a chunk of each half leaves the root in every other unit, and
/// the last one has two units per level to go: 2 k + 2 log2 n, against k log2 n of a binomial tree.
#[test]
fn a_double_tree_streams_chunks_through_logarithmic_depth() {
    for (ranks, depth) in [(2, 1), (4, 2), (8, 3), (16, 4), (32, 5), (64, 6)] {
        for chunks in [1, 2, 5, 16, 40] {
            let sizes = Sizes { ranks, count: 2 * 7 * chunks, chunk: 7 };
            let one_port = |collective| {
                let schedule = schedule(collective, Algorithm::DoubleTree, sizes);
                prove(&schedule).cost.rounds_one_port() as usize
            };
            let root = Rank::new(1);
            let last = 2 * (chunks - 1);
            let down = one_port(Collective::Broadcast { root });
            assert_eq!(down, last + 2 * depth, "{ranks} ranks, {chunks} chunks");
            let up = one_port(Collective::Reduce { root });
            assert_eq!(up, last + depth + 1, "{ranks} ranks, {chunks} chunks");
            assert_eq!(one_port(Collective::AllReduce), up + down);
        }
    }
}

/// The bytes of a ring, in rounds that grow with the logarithm.
#[test]
fn halving_and_doubling_cost_a_ring_in_logarithmic_rounds() {
    for (ranks, log) in [(2, 1), (4, 2), (8, 3), (16, 4), (32, 5), (64, 6)] {
        let sizes = Sizes { ranks, count: 12 * ranks, chunk: UNCHUNKED };
        for (collective, phases) in
            [(Collective::AllReduce, 2), (Collective::ReduceScatter, 1), (Collective::AllGather, 1)]
        {
            let schedule = schedule(collective, Algorithm::HalvingDoubling, sizes);
            let cost = prove(&schedule).cost;
            assert_eq!(cost.rounds(), phases * log, "{schedule}");
            assert_eq!(cost.rounds_one_port(), phases * log, "{schedule}");
            for rank in cost.ranks() {
                assert_eq!(rank.elems_sent, phases * 12 * (ranks as u64 - 1), "{schedule}");
            }
        }
    }
}
