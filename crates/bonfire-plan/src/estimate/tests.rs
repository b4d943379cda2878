//! Closed forms against what the verifier counts.

use std::num::NonZeroUsize;

use super::*;
use crate::types::one_of_each;
use crate::{Cost, Hosts, Partition, RankCost, Schedule, WorldSize, check};

/// Miri runs a thousand times slower; it is there for the operations, not for the numbers.
const POWERS_OF_TWO: &[u32] = if cfg!(miri) { &[4] } else { &[4, 8, 16, 32] };
const WORLDS: &[u32] = if cfg!(miri) { &[3] } else { &[2, 3, 5, 6, 7, 9, 12, 23, 33, 48] };
/// Ranks, and how many of them are on a host.
const TWO_LEVELS: &[(u32, u32)] =
    if cfg!(miri) { &[(4, 2)] } else { &[(4, 2), (16, 4), (32, 8), (24, 4)] };

/// Blocks of this many elements, in so many chunks, on hosts of so many ranks.
#[derive(Clone, Copy)]
struct Case {
    ranks: u32,
    block: usize,
    chunks: usize,
    host_ranks: u32,
}

fn shape(collective: Collective, algorithm: Algorithm, case: Case) -> ScheduleShape {
    let world_size = WorldSize::new(case.ranks).unwrap();
    let count = match collective {
        Collective::Barrier => 0,
        Collective::AllToAll => case.block * world_size.len() * world_size.len(),
        _ => case.block * world_size.len(),
    };
    let hosts = (0..case.ranks).map(|rank| rank / case.host_ranks).collect();
    ScheduleShape {
        collective,
        algorithm,
        world_size,
        count,
        chunk_elems_max: NonZeroUsize::new(case.block / case.chunks).unwrap(),
        partition: Partition::Balanced,
        hosts: Hosts::new(hosts),
    }
}

fn counted(shape: &ScheduleShape) -> Cost {
    let schedule = Schedule::new(shape.clone()).unwrap();
    check(&schedule, NonZeroUsize::MIN).unwrap().cost
}

fn most(cost: &Cost, of: fn(&RankCost) -> u64) -> f64 {
    cost.ranks().iter().map(of).max().unwrap() as f64
}

fn kinds() -> impl Iterator<Item = (Collective, Algorithm)> {
    one_of_each().into_iter().flat_map(|collective| {
        let algorithms = Algorithm::candidates(collective).iter();
        algorithms.map(move |&algorithm| (collective, algorithm))
    })
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &ranks in POWERS_OF_TWO {
        for chunks in [1, 3] {
            cases.push(Case { ranks, block: 12, chunks, host_ranks: ranks });
        }
    }
    cases
}

/// Powers of two and equal blocks, where the forms are exact.
#[test]
fn closed_forms_count_what_the_verifier_counts() {
    for case in cases() {
        for (collective, algorithm) in kinds() {
            let shape = shape(collective, algorithm, case);
            let terms = Form::new(&shape).terms();
            let cost = counted(&shape);
            assert_eq!(terms.between, Traffic::default(), "{shape:?}");
            assert_eq!(terms.folded, most(&cost, |rank| rank.elems_folded), "{shape:?}");
            let written = most(&cost, |rank| rank.elems_written_direct);
            let sent = most(&cost, |rank| rank.elems_sent);
            let received = most(&cost, |rank| rank.elems_received);
            let moved = sent.max(received) + written;
            let (rounds, elems) = (terms.within.rounds, terms.within.elems);
            let counted_rounds = cost.rounds() as f64;
            if terms.streams {
                // Units of a frame, of which the last ones wait for the levels.
                let chunk = shape.chunk_elems_max.get() as f64;
                assert_eq!(elems, cost.rounds_one_port() as f64 * chunk, "{shape:?}");
                assert!((counted_rounds..2.0 * counted_rounds).contains(&rounds), "{shape:?}");
            } else {
                assert_eq!(elems, moved, "{shape:?}");
                assert_eq!(rounds - terms.hidden_rounds, counted_rounds, "{shape:?}");
            }
        }
    }
}

/// Any number of ranks, and blocks of unequal length: not exact, but not far off either.
#[test]
fn closed_forms_are_close_in_any_world() {
    let case = Case { ranks: 0, block: 12, chunks: 1, host_ranks: 100 };
    for &ranks in WORLDS {
        for (collective, algorithm) in kinds() {
            let named = collective.named();
            let mut named = named.first.into_iter().chain(named.second);
            if named.any(|rank| rank.get() >= ranks) {
                continue;
            }
            let even = shape(collective, algorithm, Case { ranks, ..case });
            let count = match collective {
                Collective::Barrier | Collective::AllToAll => even.count,
                _ => even.count + 1,
            };
            let shape = ScheduleShape { count, ..even };
            let terms = Form::new(&shape).terms();
            let cost = counted(&shape);
            let written = most(&cost, |rank| rank.elems_written_direct);
            let sent = most(&cost, |rank| rank.elems_sent);
            let received = most(&cost, |rank| rank.elems_received);
            let moved = sent.max(received) + written;
            let folded = most(&cost, |rank| rank.elems_folded);
            let near = |form: f64, counted: f64, name: &str| {
                let range = 0.9 * counted..=2.0 * counted + 1.0;
                assert!(range.contains(&form), "{name}: {form} for {counted} of {shape:?}");
            };
            if terms.streams {
                near(terms.within.rounds, cost.rounds() as f64, "rounds");
            } else {
                near(terms.within.elems, moved, "elements");
                near(terms.within.rounds, cost.rounds() as f64, "rounds");
            }
            near(terms.folded, folded, "folds");
        }
    }
}

/// The frames of a two-level plan, counted by whether they leave the host.
#[test]
fn two_levels_are_distinguished() {
    for &(ranks, host_ranks) in TWO_LEVELS {
        let case = Case { ranks, block: 10, chunks: 2, host_ranks };
        // A root has work of its own, which depends on its host.
        let alike = kinds().filter(|(collective, _)| collective.root().is_none());
        for (collective, algorithm) in alike.filter(|(_, algorithm)| algorithm.looks_at_hosts()) {
            let shape = shape(collective, algorithm, case);
            let terms = Form::new(&shape).terms();
            let schedule = Schedule::new(shape.clone()).unwrap();
            let host = |rank: Rank| rank.get() / host_ranks;
            // Sent and received, of each rank within its host and of each host.
            let mut near = vec![[0; 2]; ranks as usize];
            let mut far = vec![[0; 2]; (ranks / host_ranks) as usize];
            for rank in schedule.world_size().ranks() {
                for step in schedule.steps(rank) {
                    if let crate::Step::Put { peer, source } = step {
                        let [from, to] = [rank, peer].map(host);
                        if from == to {
                            near[rank.index()][0] += source.len();
                            near[peer.index()][1] += source.len();
                        } else {
                            far[from as usize][0] += source.len();
                            far[to as usize][1] += source.len();
                        }
                    }
                }
            }
            let most_moved = |ports: &[[usize; 2]]| *ports.as_flattened().iter().max().unwrap();
            assert_eq!(terms.within.elems, most_moved(&near) as f64, "{shape:?}");
            assert_eq!(terms.between.elems, most_moved(&far) as f64, "{shape:?}");
            let rounds = terms.within.rounds + terms.between.rounds;
            let cost = check(&schedule, NonZeroUsize::MIN).unwrap().cost;
            assert_eq!(rounds, cost.rounds() as f64, "{shape:?}");
            assert_eq!(terms.folded, most(&cost, |rank| rank.elems_folded));
        }
    }
}

/// Rings with a slow hop pay for it in every round; two levels pay once each way.
#[test]
fn slow_links_between_hosts_make_two_levels_worth_it() {
    let figures = LinkFigures {
        intra_host: LinkCosts { alpha_s: 1e-6, beta_s_per_byte: 1e-10 },
        inter_host: LinkCosts { alpha_s: 3e-5, beta_s_per_byte: 1e-9 },
        gamma_s_per_byte: 1e-10,
    };
    let case = Case { ranks: 32, block: 1 << 15, chunks: 1, host_ranks: 8 };
    let time = |algorithm| {
        let shape = shape(Collective::AllReduce, algorithm, case);
        estimate(&shape, DType::F32, &figures)
    };
    let two_levels = time(Algorithm::Hierarchical);
    for flat in [Algorithm::Ring, Algorithm::OneShot, Algorithm::TwoShot] {
        assert!(two_levels < time(flat), "{flat}");
    }
    // 2 (n - 1) rounds and 2 (n - 1) / n of the bytes over the slow link, and one fold of them.
    let bytes = f64::from(32 * (1 << 15) * 4);
    let share = 31.0 / 32.0 * bytes;
    let ring = 62.0 * 3e-5 + 2.0 * share * 1e-9 + share * 1e-10;
    assert!((time(Algorithm::Ring) / ring - 1.0).abs() < 1e-9);
}

#[test]
#[should_panic(expected = "an estimate is for a shape that has a plan")]
fn a_shape_without_a_plan_has_no_estimate() {
    let case = cases()[0];
    let shape = shape(Collective::Barrier, Algorithm::Ring, case);
    estimate(&shape, DType::F32, &LinkFigures::default());
}

#[test]
fn rounds_are_whole_logarithms() {
    let expected = [0, 1, 2, 2, 3, 3, 3, 3, 4];
    for (number, rounds) in (1..).zip(expected) {
        assert_eq!(log2_ceil(number), f64::from(rounds), "of {number}");
    }
    assert_eq!(log2_ceil(u32::MAX), 32.0);
}
